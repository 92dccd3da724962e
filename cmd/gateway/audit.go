package main

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/admin"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
)

// auditCommand checks and exports the record of administrative acts.
func auditCommand() *cobra.Command {
	c := &cobra.Command{Use: "audit", Short: "Verify and export the record of administrative acts"}
	c.AddCommand(auditVerify(), auditExport())
	return c
}

func auditVerify() *cobra.Command {
	var f flags
	var org, end string
	c := &cobra.Command{
		Use: "verify [--org DOMAIN]", Short: "Follow the chains and name each row that was changed, removed, reordered or added", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if end != "" && org == "" {
				return errors.New("--end is that of one chain: name it with --org")
			}
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				orgs, err := orgsOf(c, s, org)
				if err != nil {
					return err
				}
				broken := 0
				for _, id := range orgs {
					whole, err := verifyChain(c, s, id, end, c.OutOrStdout())
					if err != nil {
						return err
					}
					if !whole {
						broken++
					}
				}
				if broken > 0 {
					return fmt.Errorf("%d of %d chains are not whole", broken, len(orgs))
				}
				return nil
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&org, "org", "", "only this organisation")
	c.Flags().StringVar(&end, "end", "", "with --org: NUMBER:HASH that an earlier run printed, which must still be in the chain")
	return c
}

// orgsOf is the one named, or all.
func orgsOf(c *cobra.Command, s *libsql.Stores, name string) ([]tenancy.OrgID, error) {
	if name != "" {
		id, err := tenancy.ParseOrgID(name)
		if err != nil {
			return nil, err
		}
		_, err = s.Orgs.ByID(c.Context(), id)
		return []tenancy.OrgID{id}, err
	}
	var out []tenancy.OrgID
	for after := ""; ; {
		list, next, err := s.Orgs.List(c.Context(), after, 100)
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			out = append(out, o.ID)
		}
		if after = next; next == "" {
			return out, nil
		}
	}
}

func verifyChain(c *cobra.Command, s *libsql.Stores, org tenancy.OrgID, end string, w io.Writer) (whole bool, err error) {
	check, seq, hash, err := s.Audit.Verify(c.Context(), org)
	if err != nil {
		return false, err
	}
	if end != "" {
		num, sum, ok := strings.Cut(end, ":")
		n, err := strconv.ParseInt(num, 10, 64)
		if !ok || err != nil {
			return false, errors.New("--end must be NUMBER:HASH as this command prints it")
		}
		found := false
		if err := s.Audit.Rows(c.Context(), org, func(r tenancy.AuditRow) error {
			found = found || r.Seq == n && hex.EncodeToString(r.Hash[:]) == sum
			return nil
		}); err != nil {
			return false, err
		}
		if !found {
			check.Faults = append(check.Faults, tenancy.AuditFault{Seq: n, What: "not the one that was there: the chain was written anew"})
		}
	}
	for _, f := range check.Faults {
		what := f.What
		if f.Was > 0 {
			what += fmt.Sprintf(", was row %d", f.Was)
		}
		if _, err := fmt.Fprintf(w, "%s: row %d: %s\n", org, f.Seq, what); err != nil {
			return false, err
		}
	}
	if whole = len(check.Faults) == 0; whole {
		_, err = fmt.Fprintf(w, "%s: whole, %d rows, end %d:%x\n", org, check.Rows, seq, hash)
	}
	return whole, err
}

func auditExport() *cobra.Command {
	var f flags
	var org, format string
	c := &cobra.Command{
		Use: "export --org DOMAIN", Short: "Write an organisation's record to standard output", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			form, err := admin.AuditFormOf(format)
			if err != nil {
				return err
			}
			if org == "" {
				return errors.New("--org is needed: each organisation has a record of its own")
			}
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				orgs, err := orgsOf(c, s, org)
				if err != nil {
					return err
				}
				w := bufio.NewWriter(c.OutOrStdout())
				if _, err := w.WriteString(form.Head); err != nil {
					return err
				}
				return errors.Join(s.Audit.Rows(c.Context(), orgs[0], func(r tenancy.AuditRow) error { return form.Write(w, r) }), w.Flush())
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&org, "org", "", "the organisation")
	c.Flags().StringVar(&format, "format", "jsonl", "jsonl, or csv")
	return c
}

package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
)

// orgCommand is how an operator onboards organisations: a row in the control database; the tenant database is made when it is first used.
func orgCommand() *cobra.Command {
	c := &cobra.Command{Use: "org", Short: "Add, list and change organisations"}
	c.AddCommand(orgAdd(), orgList(), orgBilling())
	return c
}

// withStores opens the databases of a configuration for one command.
func withStores(ctx context.Context, f flags, do func(*libsql.Stores) error) (err error) {
	if f.config == "" {
		return errors.New("--config is needed: it says where the databases are")
	}
	cfg, err := f.load(defaults(), false)
	if err != nil {
		return err
	}
	lc, err := databases(cfg, f)
	if err != nil {
		return err
	}
	stores, err := libsql.Open(ctx, lc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stores.Close(context.WithoutCancel(ctx))) }()
	return do(stores)
}

func orgAdd() *cobra.Command {
	var f flags
	var slug, name, billing, plan, zone string
	var operating bool
	c := &cobra.Command{
		Use: "add DOMAIN --slug SLUG", Short: "Add an organisation; adding it again with the same slug changes nothing", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := tenancy.ParseOrgID(args[0])
			if err != nil {
				return err
			}
			handle, err := tenancy.ParseSlug(slug)
			if err != nil {
				return fmt.Errorf("--slug: %w", err)
			}
			if _, err := time.LoadLocation(zone); err != nil || zone == "" {
				return fmt.Errorf("--time-zone: %q is not an IANA time zone such as Europe/Berlin", zone)
			}
			if name == "" {
				name = args[0]
			}
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				if err := s.Orgs.Create(c.Context(), tenancy.Org{ID: id, Slug: handle, Name: name, Billing: tenancy.Billing(billing), Plan: plan, TimeZone: zone, Operating: operating, CreatedAt: time.Now()}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s is an organisation of this gateway\n", id)
				return err
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&slug, "slug", "", "short handle, [a-z0-9-]{1,40}; it names the tenant database and never changes")
	c.Flags().StringVar(&name, "name", "", "name for people; default: the domain")
	c.Flags().StringVar(&billing, "billing", "paying", "paying, lingering or suspended")
	c.Flags().StringVar(&plan, "plan", "paying", "a plan of the configuration")
	c.Flags().StringVar(&zone, "time-zone", "UTC", "IANA time zone, in which its days begin")
	c.Flags().BoolVar(&operating, "operating", false, "its superusers may act for the other organisations")
	return c
}

func orgList() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "list", Short: "List the organisations", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
				fmt.Fprintln(w, "ORGANISATION\tSLUG\tBILLING\tPLAN\tTIME ZONE")
				for after := ""; ; {
					orgs, next, err := s.Orgs.List(c.Context(), after, 200)
					if err != nil {
						return err
					}
					for _, o := range orgs {
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", o.ID, o.Slug, o.Billing, o.Plan, o.TimeZone)
					}
					if after = next; after == "" {
						return w.Flush()
					}
				}
			})
		},
	}
	f.add(c)
	return c
}

func orgBilling() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "billing DOMAIN paying|lingering|suspended", Short: "Change an organisation's billing status, live within five seconds", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := tenancy.ParseOrgID(args[0])
			if err != nil {
				return err
			}
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				if err := s.Orgs.SetBilling(c.Context(), id, tenancy.Billing(args[1])); err != nil {
					return err
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s is %s\n", id, args[1])
				return err
			})
		},
	}
	f.add(c)
	return c
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/admin"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/author"
	"github.com/lossless-group/gateway/policy/rego/worker"
	"github.com/lossless-group/gateway/tenancy"
)

// newAuthor makes what stands behind gateway policy and the routes of policies: the same code with the same limits.
func newAuthor(clock func() time.Time) (*author.Author, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("policy worker: %w", err)
	}
	return author.New(author.Options{Clock: clock, Sandbox: author.InProcesses(worker.New(exe, worker.Limits{}))})
}

// errFound ends a command with 1 after it has said why.
var errFound = errors.New("the policy is not as it should be; see above")

func policyCommand() *cobra.Command {
	c := &cobra.Command{Use: "policy", Short: "Check, format, test, ask, replay and publish policies written in Rego"}
	c.AddCommand(policyFmt(), policyCheck("check", "Check policies as publishing does"), policyCheck("lint", "Check policies, warnings count as errors"), policyTest(), policyEval(), policyReplay(), policyPublish())
	return c
}

// policyRun is one command over a policy read from files and folders.
func policyRun(c *cobra.Command, use, short string, asJSON *bool, run func(c *cobra.Command, a *author.Author, s policy.Source) error) *cobra.Command {
	c.Use, c.Short, c.Args = use+" [--json] file-or-folder...", short, cobra.MinimumNArgs(1)
	c.Flags().BoolVar(asJSON, "json", false, "print JSON")
	var settings string
	c.Flags().StringVar(&settings, "settings", "", "JSON file with the settings of the form")
	c.RunE = func(c *cobra.Command, args []string) error {
		s, err := readPolicy(args, settings)
		if err != nil {
			return err
		}
		a, err := newAuthor(time.Now)
		if err != nil {
			return err
		}
		return run(c, a, s)
	}
	return c
}

// readPolicy reads the .rego files of files and folders; names are paths below the folder that was named.
func readPolicy(paths []string, settings string) (policy.Source, error) {
	var s policy.Source
	add := func(path, name string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		// A file that is too large is refused by its size, which one byte more tells.
		text, err := io.ReadAll(io.LimitReader(f, policy.MaxFileBytes+1))
		s.Files = append(s.Files, policy.File{Name: filepath.ToSlash(name), Source: string(text)})
		return err
	}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return s, err
		}
		if !info.IsDir() {
			if err := add(p, filepath.Base(p)); err != nil {
				return s, err
			}
			continue
		}
		err = filepath.WalkDir(p, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".rego") {
				return err
			}
			name, err := filepath.Rel(p, path)
			if err != nil {
				return err
			}
			return add(path, name)
		})
		if err != nil {
			return s, err
		}
	}
	if settings != "" {
		raw, err := os.ReadFile(settings)
		if err != nil {
			return s, err
		}
		// No bytes are settings that restrict nothing to a store; in a file they are a writer that died.
		if len(bytes.TrimSpace(raw)) == 0 {
			return s, fmt.Errorf("%s is empty; for settings that restrict nothing write {}", settings)
		}
		if s.Settings, err = policy.ParseSettings(raw); err != nil {
			return s, err
		}
	}
	if len(s.Files) == 0 && settings == "" {
		return s, fmt.Errorf("there is no .rego file in %s", strings.Join(paths, ", "))
	}
	return policy.NormalizeSource(s)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func printFindings(w io.Writer, found []policy.Diagnostic) {
	for _, d := range found {
		place := d.File
		if d.Line > 0 {
			place = fmt.Sprintf("%s:%d:%d", d.File, d.Line, d.Col)
		}
		if place != "" {
			place += ": "
		}
		fmt.Fprintf(w, "%s%s [%s] %s %s\n", place, d.Severity, d.Code, d.Message, d.Hint)
	}
}

// policyFmt rewrites files, or, with --check, says which are not in the form.
func policyFmt() *cobra.Command {
	var check, asJSON bool
	c := &cobra.Command{
		Use: "fmt [--check] [--json] file-or-folder...", Short: "Format policies in place", Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			a, err := newAuthor(time.Now)
			if err != nil {
				return err
			}
			changed := []string{}
			for _, root := range args {
				err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
					if err != nil || d.IsDir() || !strings.HasSuffix(path, ".rego") {
						return err
					}
					raw, err := os.ReadFile(path)
					if err != nil {
						return err
					}
					text, err := a.Format(c.Context(), policy.File{Name: filepath.Base(path), Source: string(raw)})
					if err != nil {
						return err
					}
					if text == string(raw) {
						return nil
					}
					changed = append(changed, path)
					if check {
						return nil
					}
					info, err := d.Info()
					if err != nil {
						return err
					}
					return os.WriteFile(path, []byte(text), info.Mode().Perm())
				})
				if err != nil {
					return err
				}
			}
			if asJSON {
				if err := printJSON(c.OutOrStdout(), map[string]any{"changed": changed}); err != nil {
					return err
				}
			} else {
				for _, p := range changed {
					fmt.Fprintln(c.OutOrStdout(), p)
				}
			}
			if check && len(changed) > 0 {
				return errFound
			}
			return nil
		},
	}
	c.Flags().BoolVar(&check, "check", false, "change nothing; exit 1 when a file is not in the form")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func policyCheck(use, short string) *cobra.Command {
	var asJSON bool
	return policyRun(&cobra.Command{}, use, short, &asJSON, func(c *cobra.Command, a *author.Author, s policy.Source) error {
		r, err := a.Check(c.Context(), s)
		if err != nil {
			return err
		}
		if asJSON {
			if err := printJSON(c.OutOrStdout(), r); err != nil {
				return err
			}
		} else {
			printFindings(c.OutOrStdout(), r.Diagnostics)
		}
		strict := false
		for _, d := range r.Diagnostics {
			strict = strict || d.Severity == "warning"
		}
		if !r.OK || use == "lint" && strict {
			return errFound
		}
		return nil
	})
}

func policyTest() *cobra.Command {
	var asJSON bool
	return policyRun(&cobra.Command{}, "test", "Run the tests of policies", &asJSON, func(c *cobra.Command, a *author.Author, s policy.Source) error {
		r, err := a.Test(c.Context(), s)
		if err != nil {
			return err
		}
		out := c.OutOrStdout()
		if asJSON {
			if err := printJSON(out, r); err != nil {
				return err
			}
		} else {
			printFindings(out, r.Diagnostics)
			for _, t := range r.Tests {
				if t.Pass {
					fmt.Fprintf(out, "pass %s\n", t.Name)
					continue
				}
				fmt.Fprintf(out, "FAIL %s (%s:%d): %s\n", t.Name, t.File, t.Line, t.Error)
				for _, row := range t.Cases {
					fmt.Fprintf(out, "  case %s\n", row)
				}
				if f := t.Failure; f != nil {
					fmt.Fprintf(out, "  %s:%d: %s\n", f.File, f.Line, f.Expression)
					for _, k := range slices.Sorted(maps.Keys(f.Values)) {
						fmt.Fprintf(out, "    %s = %s\n", k, f.Values[k])
					}
				}
			}
			fmt.Fprintf(out, "%d passed, %d failed, %.0f%% of the lines covered\n", r.Passed, r.Failed, r.Coverage.Percent)
		}
		if !r.OK {
			return errFound
		}
		return nil
	})
}

// policyEval answers one question, and exits 1 when the policy refuses it.
func policyEval() *cobra.Command {
	var asJSON bool
	var input string
	c := policyRun(&cobra.Command{}, "eval", "Put one question to a policy", &asJSON, func(c *cobra.Command, a *author.Author, s policy.Source) error {
		raw, err := readInput(c, input)
		if err != nil {
			return err
		}
		r, err := a.Evaluate(c.Context(), s, raw)
		if err != nil {
			return err
		}
		out := c.OutOrStdout()
		if asJSON {
			if err := printJSON(out, r); err != nil {
				return err
			}
		} else {
			if r.Decision.Allow {
				fmt.Fprintln(out, "allowed")
			}
			for _, d := range r.Decision.Deny {
				fmt.Fprintf(out, "refused [%s] %s\n", d.Code, d.Message)
			}
			for _, f := range r.Fired {
				fmt.Fprintf(out, "  %s:%d %s = %s\n", f.File, f.Line, f.Rule, f.Value)
			}
			for _, m := range r.Missing {
				fmt.Fprintf(out, "  the input has no %s\n", m)
			}
		}
		if !r.Decision.Allow {
			return errFound
		}
		return nil
	})
	c.Flags().StringVar(&input, "input", "-", "file with the question, an input document; - is standard input")
	return c
}

func readInput(c *cobra.Command, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(c.InOrStdin())
	}
	return os.ReadFile(path)
}

// policyReplay asks a policy about exported decisions: the answer of GET .../policy/decisions, or one line of it per line.
func policyReplay() *cobra.Command {
	var asJSON bool
	var log string
	c := policyRun(&cobra.Command{}, "replay", "Ask a policy about decisions that were made", &asJSON, func(c *cobra.Command, a *author.Author, s policy.Source) error {
		raw, err := readInput(c, log)
		if err != nil {
			return err
		}
		lines, err := readDecisions(raw)
		if err != nil {
			return err
		}
		r, err := a.Replay(c.Context(), policy.ReplayInput{Draft: s, Lines: lines})
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(c.OutOrStdout(), r)
		} else {
			_, err = fmt.Fprintf(c.OutOrStdout(), "%d decisions: %d unchanged, %d newly denied, %d newly allowed, %d asked, %d errors\n", r.Replayed, r.Unchanged, r.NewlyDenied, r.NewlyAllowed, r.Asked, r.Errors)
		}
		if err == nil && r.Errors > 0 {
			return errFound
		}
		return err
	})
	c.Flags().StringVar(&log, "decisions", "-", "file with decisions, JSON; - is standard input")
	return c
}

func readDecisions(raw []byte) ([]policy.LoggedDecision, error) {
	var page struct {
		Decisions []policy.LoggedDecision `json:"decisions"`
	}
	if err := json.Unmarshal(raw, &page); err == nil && page.Decisions != nil {
		return page.Decisions, nil
	}
	var out []policy.LoggedDecision
	d := json.NewDecoder(bytes.NewReader(raw))
	for {
		var l policy.LoggedDecision
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("decisions: line %d is not a decision: %w", len(out)+1, err)
		}
		out = append(out, l)
	}
}

// policyPublish saves a policy as the draft of an organisation and publishes it, on a running server.
func policyPublish() *cobra.Command {
	var asJSON, force, shadow bool
	var url, org, note string
	c := policyRun(&cobra.Command{}, "publish", "Publish a policy on a running gateway; the token of an admin stands in GATEWAY_TOKEN", &asJSON, func(c *cobra.Command, _ *author.Author, s policy.Source) error {
		token := os.Getenv("GATEWAY_TOKEN")
		if token == "" {
			return errors.New("set GATEWAY_TOKEN to the token of an admin of the organisation")
		}
		if _, err := tenancy.ParseOrgID(org); err != nil {
			return err
		}
		r := remote{base: strings.TrimSuffix(url, "/") + "/api/orgs/" + org + "/policy", token: token}
		var draft policy.Draft
		if err := r.call(c.Context(), http.MethodGet, "/draft", "", nil, &draft); err != nil {
			return err
		}
		if draft.Author != "" && !force {
			return fmt.Errorf("%s saved a draft on %s, which publishing would replace; publish or drop it in the console, or repeat with --force", draft.Author, draft.UpdatedAt.Format("2006-01-02 15:04"))
		}
		var live policy.Revision
		if err := r.call(c.Context(), http.MethodGet, "/active", "", nil, &live); err != nil {
			return err
		}
		if !c.Flags().Changed("settings") {
			s.Settings = live.Source.Settings
		}
		mine := draft.Author == ""
		match := fmt.Sprintf("%q", fmt.Sprint(draft.Version))
		if err := r.call(c.Context(), http.MethodPut, "/draft", match, map[string]any{"source": s, "base": live.Number}, &draft); err != nil {
			return err
		}
		if shadow {
			return tryBeside(c, r, draft, org, asJSON)
		}
		var done struct {
			Revision int64  `json:"revision"`
			SHA256   string `json:"sha256"`
		}
		if err := r.call(c.Context(), http.MethodPost, "/publish", fmt.Sprintf("%q", fmt.Sprint(draft.Version)), map[string]any{"note": note, "base": live.Number}, &done); err != nil {
			var no *refusedError
			if errors.As(err, &no) && no.Code == "approval_needed" {
				return needsApproval(c, no, draft)
			}
			if mine { // what was refused must not stay behind as somebody's draft
				err = errors.Join(err, r.call(c.Context(), http.MethodDelete, "/draft", fmt.Sprintf("%q", fmt.Sprint(draft.Version)), nil, nil))
			}
			return err
		}
		if asJSON {
			return printJSON(c.OutOrStdout(), done)
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "revision %d of %s is live\n", done.Revision, org)
		return err
	})
	c.Flags().BoolVar(&force, "force", false, "replace a draft that somebody saved")
	c.Flags().BoolVar(&shadow, "shadow", false, "publish nothing; save the draft and evaluate it beside what is live")
	c.Flags().StringVar(&url, "url", "http://127.0.0.1:8080", "address of the gateway")
	c.Flags().StringVar(&org, "org", "", "organisation")
	c.Flags().StringVar(&note, "note", "", "what changed and why")
	return c
}

// tryBeside starts a draft as the organisation's shadow.
func tryBeside(c *cobra.Command, r remote, draft policy.Draft, org string, asJSON bool) error {
	var started struct {
		ID   string `json:"id"`
		Base int64  `json:"base"`
	}
	if err := r.call(c.Context(), http.MethodPost, "/shadow", fmt.Sprintf("%q", fmt.Sprint(draft.Version)), nil, &started); err != nil {
		return err
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), started)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "the draft of %s is evaluated beside revision %d and decides nothing; GET %s/shadow counts what it would change\n", org, started.Base, r.base)
	return err
}

// needsApproval says why a draft waits for a second admin and how it gets on. The draft stays: it is what has to be approved.
func needsApproval(c *cobra.Command, no *refusedError, draft policy.Draft) error {
	w := c.OutOrStdout()
	fmt.Fprintln(w, no.Detail)
	for _, r := range no.Reasons {
		fmt.Fprintf(w, "  [%s] %s\n", r.Code, r.Message)
	}
	fmt.Fprintf(w, "The draft is saved as version %d. Another admin approves it in the console, or with\n  POST %s and If-Match: \"%d\"\nThen publish it there, or with POST %s/publish; saving it again would void the approval.\n",
		draft.Version, no.Action.URL, draft.Version, strings.TrimSuffix(no.Action.URL, "/draft/approvals"))
	return no
}

// refusedError is a refusal of a running gateway.
type refusedError struct {
	Method  string         `json:"-"`
	Path    string         `json:"-"`
	Status  int            `json:"-"`
	Code    string         `json:"code"`
	Detail  string         `json:"detail"`
	Reasons []fault.Reason `json:"reasons"`
	Action  fault.Action   `json:"action"`
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("%s %s: %d %s: %s", e.Method, e.Path, e.Status, e.Code, e.Detail)
}

// remote is a running gateway.
type remote struct{ base, token string }

// call makes one request; a refusal is an error with the server's own sentence.
func (r remote) call(ctx context.Context, method, path, match string, body, into any) error {
	var b io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		b = bytes.NewReader(raw)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, b)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	req.Header.Set("Content-Type", "application/json")
	if match != "" {
		req.Header.Set("If-Match", match)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return err
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		no := &refusedError{Method: method, Path: path, Status: res.StatusCode}
		if json.Unmarshal(raw, no) != nil || no.Detail == "" {
			return fmt.Errorf("%s %s: %s", method, path, res.Status)
		}
		return no
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(raw, into)
}

var _ author.Describer = orgNames{}

// Describe says what a capability is.
func (k orgNames) Describe(name string) (title, about string, ok bool) {
	for _, c := range k.library.For(k.org).View(tenancy.TierAdmin, func(n string) bool { return n != name }) {
		return c.Title, aboutOf(c), true
	}
	return "", "", false
}

// aboutOf is what admins are told of a capability; what its app tells the model where it tells them nothing.
func aboutOf(c dispatch.Capability) string {
	return cmp.Or(c.AdminDescription, c.OneLine, c.Description)
}

// Registered lists the registry for those who administer it.
func (k known) Registered(org tenancy.OrgID) []admin.Registered {
	all := k.library.For(org).View(tenancy.TierAdmin, nil)
	out := make([]admin.Registered, len(all))
	for i, c := range all {
		out[i] = admin.Registered{Name: c.Name, App: c.App, Title: c.Title, OneLine: c.OneLine, AdminDescription: aboutOf(c), Kind: string(c.Kind), Tier: c.RequiredTier, Confirms: c.RequiresConfirmation}
	}
	return out
}

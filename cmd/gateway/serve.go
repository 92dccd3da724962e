package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/policy/rego"
	"github.com/lossless-group/gateway/provider/anthropic"
	"github.com/lossless-group/gateway/tenancy/jwks"
)

// flags are the common flags of the commands that run or check a service.
type flags struct {
	config, listen, data, logFormat, logLevel string
}

func (f *flags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.config, "config", "", "configuration file (YAML)")
	c.Flags().StringVar(&f.listen, "listen", "", "address to listen on")
	c.Flags().StringVar(&f.data, "data", "", "directory for the journal and file databases")
	c.Flags().StringVar(&f.logFormat, "log-format", "text", "text or json")
	c.Flags().StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

// load reads the configuration over base; flags win over the file.
func (f *flags) load(base Config, dev bool) (Config, error) {
	cfg := base
	var err error
	if f.config != "" {
		if cfg, err = readConfig(f.config, base); err != nil {
			return cfg, err
		}
	}
	if f.listen != "" {
		cfg.Listen = f.listen
	}
	if f.data != "" {
		cfg.Data = f.data
	}
	return cfg, cfg.complete(dev)
}

func serveCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "serve --config gateway.yaml", Short: "Run the gateway", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.config == "" {
				return errors.New("serve needs --config; to try the gateway without one, run gateway dev")
			}
			cfg, err := f.load(defaults(), false)
			if err != nil {
				return err
			}
			log, err := logger(f.logFormat, f.logLevel)
			if err != nil {
				return err
			}
			a, err := build(c.Context(), cfg, log, parts{})
			if err != nil {
				return err
			}
			return a.listen(c.Context(), func(addr string) { log.Info("listening", "address", addr, "version", version) })
		},
	}
	f.add(c)
	return c
}

func migrateCommand() *cobra.Command {
	var f flags
	var dry bool
	c := &cobra.Command{
		Use: "migrate --config gateway.yaml", Short: "Bring the control database and every tenant database up to date", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := f.load(defaults(), false)
			if err != nil {
				return err
			}
			lc, err := databases(cfg, f)
			if err != nil {
				return err
			}
			steps, err := libsql.Migrate(c.Context(), lc, dry)
			for _, s := range steps {
				fmt.Fprintln(c.OutOrStdout(), s)
			}
			if err == nil && len(steps) == 0 {
				fmt.Fprintln(c.OutOrStdout(), "nothing to do")
			}
			return err
		},
	}
	f.add(c)
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would be done and do nothing")
	return c
}

func databases(cfg Config, f flags) (libsql.Config, error) {
	log, err := logger(f.logFormat, f.logLevel)
	if err != nil {
		return libsql.Config{}, err
	}
	token, err := cfg.Database.AuthToken.Resolve()
	if err != nil {
		return libsql.Config{}, fmt.Errorf("database.authToken: %w", err)
	}
	return libsql.Config{Control: cfg.Database.Control, Tenant: cfg.Database.Tenant, AuthToken: token, Clock: time.Now, Logger: log}, nil
}

func checkCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "check --config gateway.yaml", Short: "Validate the configuration and probe every dependency", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.config == "" {
				return errors.New("check needs --config")
			}
			cfg, err := f.load(defaults(), false)
			if err != nil {
				return err
			}
			bad := 0
			for _, p := range probes(cfg, f) {
				ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
				err := p.run(ctx)
				cancel()
				if err != nil {
					bad++
					fmt.Fprintf(c.OutOrStdout(), "FAIL  %-28s %s\n      mend: %s\n", p.name, say(err), p.mend)
					continue
				}
				fmt.Fprintf(c.OutOrStdout(), "ok    %s\n", p.name)
			}
			if bad > 0 {
				return fmt.Errorf("%d of the checks failed", bad)
			}
			return nil
		},
	}
	f.add(c)
	return c
}

// probe is one thing that must work before the service can.
type probe struct {
	name, mend string
	run        func(context.Context) error
}

func probes(cfg Config, f flags) []probe {
	list := []probe{
		{"master key", "generate one with: openssl rand -base64 32", func(context.Context) error { _, _, _, err := masterKeys(cfg); return err }},
		{"data directory", "make the directory of data: writable for this user", func(context.Context) error { return writable(cfg.Data) }},
		{"databases", "check database.control and database.authToken, then run gateway migrate", func(ctx context.Context) error {
			lc, err := databases(cfg, f)
			if err != nil {
				return err
			}
			_, err = libsql.Migrate(ctx, lc, true)
			return err
		}},
		{"policy, limits, identity", "mend the setting that is named", func(ctx context.Context) error { return judged(ctx, cfg) }},
		{"models and providers", "route each model to a provider that is configured", func(context.Context) error { _, _, err := catalogue(cfg, time.Now); return err }},
	}
	for _, is := range cfg.Identity.Issuers {
		list = append(list, probe{"keys of " + is.ID, "check jwksUrl: it must answer the issuer's key set to this machine", func(ctx context.Context) error {
			doc, err := reachable(ctx, is.JWKSURL)
			if err == nil {
				_, err = jwks.Parse(doc)
			}
			return err
		}})
		if is.MeURL != "" {
			list = append(list, probe{"memberships of " + is.ID, "check meUrl and that this machine may reach it", func(ctx context.Context) error { return dial(ctx, is.MeURL) }})
		}
	}
	for name, p := range cfg.Providers {
		where := p.BaseURL
		if where == "" {
			where = anthropic.DefaultBaseURL
		}
		list = append(list, probe{"provider " + name, "check baseUrl and that this machine may reach it", func(ctx context.Context) error { return dial(ctx, where) }})
	}
	return list
}

func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".check-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func reachable(ctx context.Context, where string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, 1<<20))
}

// judged makes what serve would make of the settings, so that what serve refuses fails here first.
func judged(ctx context.Context, cfg Config) error {
	a := &app{cfg: cfg}
	_, ierr := a.identity(cfg, parts{}, time.Now)
	_, perr := rego.New(ctx, rego.Options{Clock: time.Now, RedactionFloor: cfg.Policy.RedactionFloor})
	_, lerr := billing.NewLimiter(cfg.plans(), time.Now)
	_, werr := egress.New(egress.Config{Allow: cfg.Webhooks.Allow, Others: true})
	return errors.Join(ierr, perr, lerr, werr, a.close(ctx))
}

// dial only connects: a request to a provider could cost something.
func dial(ctx context.Context, where string) error {
	u, err := url.Parse(where)
	if err != nil {
		return err
	}
	port := u.Port()
	if port == "" {
		if port = "443"; u.Scheme == "http" {
			port = "80"
		}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err
	}
	return conn.Close()
}

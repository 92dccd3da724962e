package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/labstack/echo/v4"
	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/dispatch/demoapp"
	"github.com/lossless-group/gateway/gateway/httpapi"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/tenancy/jwks"
)

// devIssuer is the issuer of tokens that only gateway dev accepts.
const devIssuer = "https://issuer.dev.invalid"

const devKeyID = "dev-1"

// devUsers are the people of each seeded organisation, named after their roles.
var devUsers = []struct {
	name string
	role tenancy.Role
}{{"viewer", tenancy.Viewer}, {"editor", tenancy.Editor}, {"admin", tenancy.OrgAdmin}, {"owner", tenancy.OrgOwner}, {"superuser", tenancy.Superuser}}

// devOrgs are the seeded organisations. In dev the first is also the operating one, so that its superuser may act for the other.
func devOrgs(now time.Time) []tenancy.Org {
	return []tenancy.Org{
		{ID: tenancy.MustOrgID("acme.example"), Slug: "acme", Name: "Acme", Billing: tenancy.Paying, Plan: "paying", TimeZone: "Europe/Berlin", Operating: true, CreatedAt: now},
		{ID: tenancy.MustOrgID("linger.example"), Slug: "linger", Name: "Linger", Billing: tenancy.Lingering, Plan: "lingering", TimeZone: "America/New_York", CreatedAt: now},
	}
}

// devUserID is stable, so that threads and keys of a person outlive a restart.
func devUserID(name, org string) tenancy.UserID { return tenancy.UserID("dev-" + name + "@" + org) }

func devCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "dev", Short: "Run everything on embedded defaults: no configuration, no key, no network", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runDev(c.Context(), f, c.OutOrStdout()) },
	}
	f.add(c)
	return c
}

func runDev(ctx context.Context, f flags, out io.Writer) error {
	cfg, err := f.load(devDefaults(), true)
	if err != nil {
		return err
	}
	log, err := logger(f.logFormat, f.logLevel)
	if err != nil {
		return err
	}
	a, key, err := buildDev(ctx, cfg, log)
	if err != nil {
		return err
	}
	return a.listen(ctx, func(addr string) { greet(out, "http://"+addr, cfg.Data, key) })
}

func devDefaults() Config {
	c := defaults()
	c.Providers = map[string]ProviderConfig{"demo": {Kind: "demo"}, "anthropic": {Kind: "anthropic"}}
	c.Models = []ModelConfig{
		{Name: "demo-1", Routes: []RouteConfig{{Provider: "demo"}}},
		{Name: "demo-mini", Routes: []RouteConfig{{Provider: "demo"}}},
		{Name: "claude-*", Routes: []RouteConfig{{Provider: "anthropic"}}},
	}
	return c
}

// buildDev puts the service together with its own issuer, its seeded organisations, the demo app and what more there is, and returns the
// issuer's key.
func buildDev(ctx context.Context, cfg Config, log *slog.Logger, more ...dispatch.Capability) (*app, ed25519.PrivateKey, error) {
	key, err := devKeys(&cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("dev keys: %w", err)
	}
	pub, err := jwks.NewKey(devKeyID, key.Public())
	if err != nil {
		return nil, nil, err
	}
	source, err := jwks.NewStatic(devIssuer, pub)
	if err != nil {
		return nil, nil, err
	}
	cfg.Apps.Allow = append(cfg.Apps.Allow, "localhost", "127.0.0.0/8", "::1") // a host app under development runs on this machine
	cfg.Identity.Issuers = []tenancy.Issuer{{ID: devIssuer, Cookie: "session", Claims: tenancy.Claims{User: "sub", Session: "sid", Org: "org_id", Role: "role", Email: "email"}}}
	a, err := build(ctx, cfg, log, parts{
		keys: source, capabilities: append(demoapp.New().Capabilities(), more...), seed: seedDev,
		routes: func(s *httpapi.Server) {
			doc := jwks.Marshal(pub)
			s.Group("/dev").GET("/jwks.json", func(c echo.Context) error { return c.Blob(http.StatusOK, "application/json", doc) })
		},
	})
	return a, key, err
}

// seedDev creates the organisations and the demo provider's key once; a second start finds them.
func seedDev(ctx context.Context, stores *libsql.Stores, keys *keyring.Keyring) error {
	for _, org := range devOrgs(time.Now()) {
		if err := stores.Orgs.Create(ctx, org); err != nil {
			return err
		}
		for _, u := range devUsers {
			if u.role == tenancy.Superuser && !org.Operating {
				continue
			}
			m := []tenancy.Membership{{Org: org.ID, Role: u.role}}
			if err := stores.Orgs.UpsertUser(ctx, devUserID(u.name, org.ID.String()), u.name+"@"+org.ID.String(), m, time.Now()); err != nil {
				return err
			}
		}
		if org.Billing != tenancy.Paying {
			continue
		}
		owner := keyring.Owner{Org: org.ID}
		have, err := keys.List(ctx, owner)
		if err != nil {
			return err
		}
		seeded := false
		for _, k := range have {
			seeded = seeded || k.Provider == "demo"
		}
		if !seeded {
			if _, err := keys.Save(ctx, owner, "demo", "seeded for dev", keyring.NewSecret("demo-key-of-"+string(org.Slug))); err != nil {
				return err
			}
		}
	}
	return nil
}

// greet prints what a newcomer needs: where, who, and a line that works when pasted.
func greet(out io.Writer, url, data string, key ed25519.PrivateKey) {
	fmt.Fprintf(out, "gateway %s is ready at %s (data in %s)\n\n", version, url, data)
	fmt.Fprintf(out, "  chat      POST %s/api/agent/chat\n  anthropic POST %s/v1/messages\n  metrics   GET  %s/metrics\n  keys      GET  %s/dev/jwks.json\n\n", url, url, url, url)
	var editor string
	for _, org := range devOrgs(time.Now()) {
		fmt.Fprintf(out, "tokens for %s (%s), valid for one day:\n", org.ID, org.Billing)
		for _, u := range devUsers {
			if u.role == tenancy.Superuser && !org.Operating {
				continue
			}
			tok, err := devToken(key, u.name, org.ID.String(), string(u.role), 24*time.Hour, time.Now())
			if err != nil {
				fmt.Fprintf(out, "  %-9s %v\n", u.name, err)
				continue
			}
			if editor == "" && u.role == tenancy.Editor {
				editor = tok
			}
			fmt.Fprintf(out, "  %-9s %s\n", u.name, tok)
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "try it:\n\ncurl -N %s/api/agent/chat -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' -d '%s'\n\n", url, editor,
		`{"projectId":"deck_abc","model":"demo-1","tools":["slide.*"],"messages":[{"role":"user","content":"Read slide 3 and write to jane@example.com about it."}]}`)
}

// devToken signs a token of the dev issuer.
func devToken(key ed25519.PrivateKey, user, org, role string, ttl time.Duration, now time.Time) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
		"iss": devIssuer, "sub": string(devUserID(user, org)), "sid": "dev-session-" + user, "org_id": org, "role": role, "email": user + "@" + org,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(ttl).Unix(),
	})
	t.Header["kid"] = devKeyID
	return t.SignedString(key)
}

func devKeyPath(data string) string { return filepath.Join(data, "dev", "issuer.pem") }

// devKeys makes, or finds, the issuer's key and a master key below the data directory.
func devKeys(cfg *Config) (ed25519.PrivateKey, error) {
	dir := filepath.Join(cfg.Data, "dev")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if cfg.MasterKey == "" {
		path := filepath.Join(dir, "master.key")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			raw := make([]byte, 32)
			rand.Read(raw) // never fails, see crypto/rand
			if err := os.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(raw)+"\n"), 0o600); err != nil {
				return nil, err
			}
		}
		cfg.MasterKey = SecretRef("file:" + path)
	}
	key, err := readDevKey(cfg.Data)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	_, key, err = ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(devKeyPath(cfg.Data), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func readDevKey(data string) (ed25519.PrivateKey, error) {
	raw, err := os.ReadFile(devKeyPath(data))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block; delete it to get a new key", devKeyPath(data))
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an Ed25519 key; delete it to get a new key", devKeyPath(data))
	}
	return key, nil
}

func tokenCommand() *cobra.Command {
	var data, user, org, role string
	var ttl time.Duration
	c := &cobra.Command{
		Use: "token", Short: "Print a token of the dev issuer", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			key, err := readDevKey(data)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is not a data directory of gateway dev; run gateway dev --data %s first", data, data)
			}
			if err != nil {
				return err
			}
			if _, err := tenancy.ParseOrgID(org); err != nil {
				return err
			}
			if role == "" {
				if role, err = roleOf(user); err != nil {
					return err
				}
			} else if _, err := tenancy.ParseRole(role); err != nil {
				return err
			}
			tok, err := devToken(key, user, org, role, ttl, time.Now())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), tok)
			return err
		},
	}
	c.Flags().StringVar(&data, "data", "./data", "data directory of gateway dev")
	c.Flags().StringVar(&user, "user", "editor", "viewer, editor, admin, owner, superuser, or any name together with --role")
	c.Flags().StringVar(&org, "org", "acme.example", "organisation")
	c.Flags().StringVar(&role, "role", "", "role in the organisation; default: the user's own")
	c.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long the token is valid")
	return c
}

func roleOf(user string) (string, error) {
	var names []string
	for _, u := range devUsers {
		if u.name == user {
			return string(u.role), nil
		}
		names = append(names, u.name)
	}
	return "", fmt.Errorf("--user: %q is not a seeded user (%s); name a --role for somebody else", user, strings.Join(names, ", "))
}

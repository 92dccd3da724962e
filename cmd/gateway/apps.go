package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lossless-group/gateway/apps"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/dispatch/mcp"
	"github.com/lossless-group/gateway/dispatch/skill"
	"github.com/lossless-group/gateway/dispatch/webhook"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/signing"
	"github.com/lossless-group/gateway/tenancy"
)

// AppsConfig says which apps an operator registers, and where apps may be.
type AppsConfig struct {
	Files   []string      `yaml:"files"`   // documents with capabilities, JSON or YAML; only these may start programs and read secrets of this machine
	Allow   []string      `yaml:"allow"`   // hosts and networks that apps may be reached at although they are private or speak plain HTTP
	Refresh time.Duration `yaml:"refresh"` // how often registrations of other replicas are looked for
}

// appsRefresh is how long a registration takes to reach every replica at most.
const appsRefresh = 3 * time.Second

// appHandlers makes what runs the capabilities of apps. Hosts are kept per document, so that one app's connections serve all of it.
type appHandlers struct {
	builtin map[string]dispatch.Handler // by capability name
	allow   []string
	signer  *signing.Keys
	clock   func() time.Time

	mu      sync.Mutex
	hosts   map[[sha256.Size]byte]*webhook.Host // by all that makes them
	servers map[[sha256.Size]byte]*mcp.Server
}

// close ends the connections and programs of every app.
func (h *appHandlers) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, s := range h.servers {
		errs = append(errs, s.Close())
	}
	for _, host := range h.hosts {
		host.Close()
	}
	return errors.Join(errs...)
}

// once returns what was made of the same parts before, or makes it. What an app no longer names stays until the gateway ends, for runs that
// began with it; its idle connections do not.
func once[T any](made map[[sha256.Size]byte]T, parts any, create func() (T, error)) (T, error) {
	var zero T
	b, err := json.Marshal(parts)
	if err != nil {
		return zero, err
	}
	key := sha256.Sum256(b)
	if v, ok := made[key]; ok {
		return v, nil
	}
	v, err := create()
	if err != nil {
		return zero, err
	}
	made[key] = v
	return v, nil
}

// Handler implements dispatch.Handlers.
func (h *appHandlers) Handler(d dispatch.Document, c dispatch.CapabilityDocument) (dispatch.Handler, error) {
	switch c.Handler.Kind {
	case "builtin":
		b := h.builtin[c.Handler.Builtin]
		if b == nil {
			return nil, fmt.Errorf("there is no built-in %q", c.Handler.Builtin)
		}
		return b, nil
	case "webhook":
		host, err := h.host(d)
		if err != nil {
			return nil, err
		}
		return host.Handler(webhook.Endpoint{Path: c.Handler.Path, ReadOnly: c.Kind == dispatch.Read, Idempotent: c.Annotations.Idempotent})
	case "mcp":
		server, err := h.server(d, c.Handler.Server)
		if err != nil {
			return nil, err
		}
		return server.Tool(mcp.ToolConfig{Name: c.Handler.Tool, Title: c.Title, ReadOnly: c.Kind == dispatch.Read, Idempotent: c.Annotations.Idempotent})
	case "skill":
		text, err := skill.Parse([]byte(d.Skills[c.Handler.Skill]))
		if err != nil {
			return nil, err
		}
		return skill.New(text)
	}
	return nil, fmt.Errorf("handlers of kind %q are not served here", c.Handler.Kind)
}

// guard lets an app be reached at public addresses and where the operator said; its own address when an operator's file allows that.
func (h *appHandlers) guard(address string, private bool) (*egress.Guard, error) {
	allow := h.allow
	if private {
		allow = append([]string{address}, allow...)
	}
	guard, err := egress.New(egress.Config{Allow: allow, Others: true})
	if err != nil {
		return nil, err
	}
	_, err = guard.CheckURL(address)
	return guard, err
}

// Discover implements apps.Tools. A server is asked over connections of its own: that somebody looked at it leaves nothing behind.
func (h *appHandlers) Discover(ctx context.Context, d dispatch.Document, server string, who tenancy.Tenant) ([]dispatch.CapabilityDocument, error) {
	c, err := h.serverConfig(d, server)
	if err != nil {
		return nil, err
	}
	s, err := mcp.New(c)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // what it said was heard
	found, err := s.Discover(ctx, who)
	if err != nil {
		return nil, err
	}
	out := make([]dispatch.CapabilityDocument, len(found))
	for i, f := range found {
		tool, ok := f.Handler.(*mcp.Tool)
		if !ok {
			return nil, fault.From(fmt.Errorf("the tool of %s is a %T", f.Name, f.Handler))
		}
		out[i] = dispatch.CapabilityDocument{Name: f.Name, Title: f.Title, Description: f.Description, OneLine: f.OneLine, InputSchema: f.InputSchema, OutputSchema: f.OutputSchema, Kind: f.Kind,
			RequiredTier: f.RequiredTier.String(), RequiresConfirmation: f.RequiresConfirmation, Annotations: f.Annotations, Handler: dispatch.HandlerDoc{Kind: "mcp", Server: server, Tool: tool.Name()}}
	}
	return out, nil
}

func (h *appHandlers) server(d dispatch.Document, name string) (*mcp.Server, error) {
	c, err := h.serverConfig(d, name)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return once(h.servers, []any{d.App, name, d.MCP[name]}, func() (*mcp.Server, error) { return mcp.New(c) })
}

// serverConfig is how a tool server of a document is reached.
func (h *appHandlers) serverConfig(d dispatch.Document, name string) (mcp.Config, error) {
	doc := d.MCP[name]
	c := mcp.Config{Name: name, App: d.App, URL: doc.URL, Command: doc.Command, Env: map[string]string{}, Signer: h.signer, Clock: h.clock}
	for k, v := range doc.Env {
		if !strings.HasPrefix(v, "env:") && !strings.HasPrefix(v, "file:") { // a plain setting
			c.Env[k] = v
			continue
		}
		secret, err := SecretRef(v).Resolve()
		if err != nil {
			return c, fault.Wrap(fault.Invalid, "apps.server", "invalid_registry", "The variable "+k+" of the tool server "+name+" names a secret that cannot be read.", err)
		}
		c.Env[k] = secret.Reveal()
	}
	if doc.URL != "" {
		var err error
		if c.Guard, err = h.guard(doc.URL, doc.AllowPrivate); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (h *appHandlers) host(d dispatch.Document) (*webhook.Host, error) {
	guard, err := h.guard(d.Webhook.URL, d.Webhook.AllowPrivate)
	if err != nil {
		return nil, err
	}
	var secrets []keyring.Secret
	for _, s := range d.Webhook.Secrets {
		v, err := appSecret(s)
		if err != nil {
			return nil, err
		}
		secrets = append(secrets, v)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return once(h.hosts, []any{d.App, d.Webhook}, func() (*webhook.Host, error) {
		return webhook.New(webhook.Config{App: d.App, URL: d.Webhook.URL, Secrets: secrets, Guard: guard, Signer: h.signer, Clock: h.clock})
	})
}

// appSecret reads a secret as a document spells it: itself, or where it lies on this machine.
func appSecret(s string) (keyring.Secret, error) {
	if strings.HasPrefix(s, "whsec_") {
		return keyring.NewSecret(s), nil
	}
	return SecretRef(s).Resolve()
}

// yamlToJSON turns one YAML document into JSON.
func yamlToJSON(raw []byte) ([]byte, error) {
	var doc any
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	return json.Marshal(doc)
}

// offers puts together what is there from the start: what this program brings, and the operator's files, whose documents it returns by app.
func offers(built []dispatch.Capability, files []string, h dispatch.Handlers) ([]dispatch.Offer, map[string]dispatch.Document, error) {
	byApp := map[string]int{}
	var out []dispatch.Offer
	for _, c := range built {
		i, ok := byApp[c.App]
		if !ok {
			i = len(out)
			byApp[c.App] = i
			out = append(out, dispatch.Offer{App: c.App})
		}
		out[i].Capabilities = append(out[i].Capabilities, c)
	}
	documents := map[string]dispatch.Document{}
	for _, path := range files {
		d, err := readApp(path)
		if err == nil {
			var o dispatch.Offer
			if o, err = apps.Offer(d, h); err == nil {
				out, documents[d.App] = append(out, o), d
			}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("apps.files: %s: %w", path, err)
		}
	}
	return out, documents, nil
}

// readApp reads a document an operator wrote, as JSON or YAML.
func readApp(path string) (dispatch.Document, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return dispatch.Document{}, err
	}
	if ext := filepath.Ext(path); ext == ".yaml" || ext == ".yml" {
		if raw, err = yamlToJSON(raw); err != nil {
			return dispatch.Document{}, err
		}
	}
	return dispatch.ParseDocument(raw, "", true)
}

// registerApps makes the library that turns are served from and the book that changes it.
func (a *app) registerApps(ctx context.Context, built []dispatch.Capability, sealer *keyring.Sealer, signer *signing.Keys, clock func() time.Time, log *slog.Logger) (*dispatch.Library, *apps.Book, error) {
	h := &appHandlers{builtin: map[string]dispatch.Handler{}, allow: a.cfg.Apps.Allow, signer: signer, clock: clock, hosts: map[[sha256.Size]byte]*webhook.Host{}, servers: map[[sha256.Size]byte]*mcp.Server{}}
	a.defer_(func(context.Context) error { return h.close() })
	for _, c := range built {
		h.builtin[c.Name] = c.Handler
	}
	initial, documents, err := offers(built, a.cfg.Apps.Files, h)
	if err != nil {
		return nil, nil, err
	}
	library, err := dispatch.NewLibrary(initial...)
	if err != nil {
		return nil, nil, err
	}
	book := apps.New(apps.Config{Store: a.stores.Apps, Sealer: sealer, Library: library, Handlers: h, Tools: h, Files: documents, Logger: log, Clock: clock})
	if err := book.Refresh(ctx); err != nil {
		return nil, nil, fault.From(err)
	}
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() { defer close(done); book.Follow(following, a.cfg.Apps.Refresh) }()
	a.defer_(func(context.Context) error { stop(); <-done; return nil })
	return library, book, nil
}

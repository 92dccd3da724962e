package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/lossless-group/gateway/admin"
	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/gateway/httpapi"
	"github.com/lossless-group/gateway/journal"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/metrics"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego"
	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/templates"
	"github.com/lossless-group/gateway/policy/spill"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/signing"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/tenancy/jwks"
	"github.com/lossless-group/gateway/tenancy/me"
)

// app is the whole service, put together and not yet listening.
type app struct {
	cfg     Config
	log     *slog.Logger
	stores  *libsql.Stores
	keys    *keyring.Keyring
	book    *policy.Book
	decided *policy.SealedLog // the decision log
	writer  *policy.LogWriter // into it
	spilled *spill.Spill      // what it cannot take yet
	journal *journal.Journal
	metrics *metrics.Metrics
	handler http.Handler
	server  *httpapi.Server
	turns   *gateway.Gateway
	going   *runs.Hub // the runs of this process
	closers []func(context.Context) error
}

// parts are what gateway dev brings along instead of configuration.
type parts struct {
	keys         tenancy.KeySource // of the built-in issuer; nil: fetched from the issuers' JWKS
	capabilities []dispatch.Capability
	seed         func(context.Context, *libsql.Stores, *keyring.Keyring) error
	routes       func(*httpapi.Server)
}

// build puts the rooms together, from the bottom up. What was opened is in app.closers even when it fails half-way.
func build(ctx context.Context, cfg Config, log *slog.Logger, p parts) (a *app, err error) {
	a = &app{cfg: cfg, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close(context.WithoutCancel(ctx)))
		}
	}()
	clock := time.Now

	// Storage and keys.
	dbToken, err := cfg.Database.AuthToken.Resolve()
	if err != nil {
		return a, fmt.Errorf("database.authToken: %w", err)
	}
	sealer, redactionKey, masters, err := masterKeys(cfg)
	if err != nil {
		return a, err
	}
	signer, err := signing.New(signing.Config{Issuer: cfg.PublicURL, Masters: masters, Clock: clock})
	if err != nil {
		return a, err
	}
	if a.stores, err = libsql.Open(ctx, libsql.Config{Control: cfg.Database.Control, Tenant: cfg.Database.Tenant, AuthToken: dbToken, Clock: clock, Logger: log}); err != nil {
		return a, fmt.Errorf("database: %w", err)
	}
	a.defer_(a.stores.Close)
	a.keys = keyring.New(a.stores.Keys, sealer, clock, keyring.Options{})
	a.defer_(func(context.Context) error { return a.keys.Close() })
	if p.seed != nil {
		if err := p.seed(ctx, a.stores, a.keys); err != nil {
			return a, fmt.Errorf("seed: %w", err)
		}
	}

	// Who is calling.
	verifier, err := a.identity(cfg, p, clock)
	if err != nil {
		return a, fmt.Errorf("identity: %w", err)
	}
	credentials := tenancy.NewTokenVerifier(verifier, a.stores.Tokens, clock)
	a.defer_(credentials.Flush)
	trusted, err := proxies(cfg.Identity.Proxies)
	if err != nil {
		return a, err
	}
	tenants := tenancy.NewResolver(a.stores.Orgs, clock, 0)
	tenants.Witness(witness(a.stores.Audit, clock))

	// What may be done, and with what.
	limiter, err := billing.NewLimiter(cfg.plans(), clock)
	if err != nil {
		return a, err
	}
	watch := &policyWatch{log: log}
	engine, err := rego.New(ctx, rego.Options{Clock: clock, RedactionFloor: cfg.Policy.RedactionFloor, Watcher: watch, Usage: spending{a.stores.Ledger}})
	if err != nil {
		return a, fmt.Errorf("policy: %w", err)
	}
	settings := policy.NewBook(a.stores.Policies, clock, bookTTL)
	a.book = settings
	a.retire(cfg.Policy.KeepDecisions, clock)
	decisions, err := a.decisionLog(cfg, sealer, clock)
	if err != nil {
		return a, err
	}
	lives, err := a.live(settings, engine, watch, clock)
	if err != nil {
		return a, fmt.Errorf("policy: %w", err)
	}
	detectors, err := cfg.detectors(clock)
	if err != nil {
		return a, err
	}
	asked := &detectorWatch{log: log}
	hide, err := redaction.New(redactionKey, asked.over(detectors)...)
	if err != nil {
		return a, err
	}
	library, registered, err := a.registerApps(ctx, p.capabilities, sealer, signer, clock, log)
	if err != nil {
		return a, err
	}
	models, pools, err := catalogue(cfg, clock)
	if err != nil {
		return a, err
	}

	// What was used.
	prices, reloadPrices, err := a.tariff(ctx)
	if err != nil {
		return a, fmt.Errorf("prices: %w", err)
	}
	if a.metrics, err = metrics.New(metricsOptions(cfg, prices.List())); err != nil {
		return a, err
	}
	asked.count = a.metrics.Detector
	where, err := place(cfg.Data)
	if err != nil {
		return a, fmt.Errorf("data: %w", err)
	}
	hooks, err := a.webhooks(ctx, sealer, clock)
	if err != nil {
		return a, err
	}
	budgets, err := a.budgets(ctx, where, hooks.Wake, prices, clock)
	if err != nil {
		return a, err
	}
	if a.journal, err = journal.Open(journal.Config{Dir: filepath.Join(cfg.Data, "journal"), Clock: clock, Logger: log, Ledger: budgetedLedger{a.stores.Ledger, budgets}, Turns: a.stores.Turns, Runs: a.stores.Runs, Price: prices}); err != nil {
		return a, fmt.Errorf("journal: %w", err)
	}
	a.defer_(a.journal.Close)
	if a.catchUp(ctx) { // what the process before used is booked, so what it kept for that is free
		if err := budgets.Bury(ctx, where); err != nil {
			log.Warn("what an earlier process held of budgets could not be given back; it lapses in a minute", "err", err)
		}
	}
	if err := errors.Join(a.metrics.Journal(journalStats(a.journal)), a.metrics.DecisionLog(decisionStats(decisions, a.spilled)), a.metrics.Pools(poolStats(pools))); err != nil {
		return a, err
	}

	// The turn, and its faces.
	a.going = a.hub(clock)
	turn := gateway.New(gateway.Config{
		Tenants: tenants, Limiter: limiter, Revisions: lives.replica, Policy: engine, Decisions: decisions, Project: engine, Shadows: lives.shadower, Keys: a.keys, Sealer: sealer, Redaction: hide, Floor: cfg.Policy.RedactionFloor, Models: models,
		Registry: library, Past: registered, Prices: prices, Budgets: budgets, Journal: a.journal, Turns: a.stores.Turns, Pending: a.stores.Pending, Previews: a.stores.Pending, Live: a.going, RunLog: a.journal, Runs: a.stores.Runs, Observer: observer{a.metrics},
		Logger: log, Clock: clock, Health: provider.NewHealth(provider.HealthConfig{Trip: cfg.Limits.Trip, Open: cfg.Limits.TripFor}, clock), Attempts: cfg.Limits.Attempts, RetryWithin: cfg.Limits.RetryFor,
		DrainFor: cfg.Limits.DrainFor, DrainBytes: cfg.Limits.DrainKiB << 10, PreviewTTL: cfg.Limits.PreviewTTL, KeepEvents: cfg.Limits.KeepEvents,
	})
	a.turns = turn
	a.sweeps()
	var metricsHandler http.Handler
	if cfg.Telemetry.MetricsListen == "" {
		metricsHandler = nearby(a.metrics.Handler())
	}
	a.server = httpapi.New(httpapi.Config{
		Gateway: turn, Verifier: credentials, Proxies: trusted, Cookies: cookies(cfg), Origins: cfg.origins(), MaxBody: int64(cfg.Limits.MaxBodyMiB) << 20,
		Observer: observer{a.metrics}, Logger: log, Clock: clock, Ready: a.ready(lives.replica), Metrics: metricsHandler, SigningKeys: published(signer), Version: version,
	})
	policies, err := a.policies(engine, hide, lives, known{library, models}, clock)
	if err != nil {
		return a, err
	}
	admin.Mount(a.server.Group("/api"), admin.Config{
		Principal: a.server.Principal, Tenants: tenants, Settings: settings, Keys: a.keys, Audit: a.stores.Audit,
		Known: known{library, models}, Clock: clock, Policies: policies,
		Redaction: admin.RedactionConfig{Engine: hide, Findings: a.stores.Turns, Floor: cfg.Policy.RedactionFloor},
		Usage:     a.usage(prices, reloadPrices, clock),
		Exports:   admin.ExportConfig{Issuer: issuer(a.stores.Orgs)},
		Budgets:   admin.BudgetConfig{Editor: a.stores.Budgets, Reader: budgets},
		Webhooks:  hooks,
		Apps:      registered,
		Tokens:    a.stores.Tokens,
	})
	admin.MountSchemas(a.server.Group("/schemas/policy/v1"), policies.Schemas)
	admin.MountSchemas(a.server.Group("/schemas/apps/v1"), map[string][]byte{"capabilities.json": dispatch.DocumentSchema()})
	if p.routes != nil {
		p.routes(a.server)
	}
	a.handler = a.server.Handler()
	return a, nil
}

// policies is what stands behind the routes of policies.
func (a *app) policies(engine *rego.Engine, hide *redaction.Engine, lives alive, names known, clock func() time.Time) (admin.PolicyConfig, error) {
	writes, err := newAuthor(clock)
	if err != nil {
		return admin.PolicyConfig{}, fmt.Errorf("policy: %w", err)
	}
	writes = writes.Redacting(hide)
	starts, err := templates.All()
	if err != nil {
		return admin.PolicyConfig{}, fmt.Errorf("policy templates: %w", err)
	}
	return admin.PolicyConfig{
		Author: writes, Knowing: func(org tenancy.OrgID) admin.PolicyAuthor { return writes.Knowing(orgNames{names, org}) }, Revisions: a.stores.Policies, History: a.stores.Policies, Decisions: a.decided, Waiting: a.stores.Pending, Schemas: check.Schemas(), Templates: starts,
		Approvals: a.stores.Policies, Requests: a.stores.Policies, Shadows: a.stores.Policies, Shadower: lives.shadower, Replicas: a.stores.Policies, Replica: lives.replica,
		Prepare: prepare(engine),
	}, nil
}

// ready reports whether requests may come: the control database answers, and policies were confirmed not too long ago.
func (a *app) ready(replica *policy.Replica) func(context.Context) error {
	return func(ctx context.Context) error { return errors.Join(a.stores.Ping(ctx), replica.Ready()) }
}

// catchUpFor is how long a start waits for what an earlier process wrote down to reach the databases.
const catchUpFor = 5 * time.Second

// catchUp brings what a dead process left in the journal into the databases before anybody asks for it: a thread's next turn must see its last
// one. When that takes long the service starts all the same, and the journal goes on. It reports whether all
// of it arrived.
func (a *app) catchUp(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, catchUpFor)
	defer cancel()
	if err := a.journal.Flush(ctx); err != nil {
		a.log.Warn("started with records of an earlier process still on their way into the databases", "backlog", a.journal.Stats().Backlog, "err", err)
		return false
	}
	return true
}

func (a *app) defer_(f func(context.Context) error) { a.closers = append(a.closers, f) }

// close undoes build in reverse: the journal is drained before the databases it drains into are closed. It joins all errors.
func (a *app) close(ctx context.Context) error {
	var errs []error
	for i := len(a.closers) - 1; i >= 0; i-- {
		errs = append(errs, a.closers[i](ctx))
	}
	a.closers = nil
	return errors.Join(errs...)
}

func (a *app) identity(cfg Config, p parts, clock func() time.Time) (*tenancy.Verifier, error) {
	vc := tenancy.VerifierConfig{Issuers: cfg.Identity.Issuers, Keys: p.keys, Clock: clock}
	if vc.Keys == nil {
		var ends []jwks.Endpoint
		for _, is := range cfg.Identity.Issuers {
			ends = append(ends, jwks.Endpoint{Issuer: is.ID, URL: is.JWKSURL, AllowPlain: is.AllowPlain})
		}
		remote, err := jwks.New(jwks.Config{Endpoints: ends, Clock: clock})
		if err != nil {
			return nil, err
		}
		a.defer_(func(context.Context) error { return remote.Close() })
		vc.Keys = remote
	}
	var asks []me.Endpoint
	for _, is := range cfg.Identity.Issuers {
		if is.MeURL != "" {
			asks = append(asks, me.Endpoint{Issuer: is.ID, URL: is.MeURL, AllowPlain: is.AllowPlain})
		}
	}
	if len(asks) > 0 {
		client, err := me.New(me.Config{Endpoints: asks, Clock: clock})
		if err != nil {
			return nil, err
		}
		a.defer_(func(context.Context) error { return client.Close() })
		vc.Me = client
	}
	return tenancy.NewVerifier(vc)
}

func cookies(cfg Config) []string {
	var names []string
	for _, is := range cfg.Identity.Issuers {
		if is.Cookie != "" {
			names = append(names, is.Cookie)
		}
	}
	return names
}

// masterKeys reads the master keys. The redaction key is derived from the oldest of them, so that adding a newer one during rotation
// changes no token of a running conversation.
func masterKeys(cfg Config) (*keyring.Sealer, []byte, []keyring.MasterKey, error) {
	list, err := cfg.MasterKey.Resolve()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("masterKey: %w", err)
	}
	masters, err := keyring.ParseMasterKeys(list.Reveal())
	if err != nil {
		return nil, nil, nil, fmt.Errorf("masterKey: %w", err)
	}
	sealer, err := keyring.NewSealer(masters)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("masterKey: %w", err)
	}
	key, err := masters[len(masters)-1].Derive("redaction/v1", 32)
	return sealer, key, masters, err
}

// witness records that a superuser acts for an organisation, in that organisation's audit.
func witness(audit *libsql.Audit, clock func() time.Time) func(context.Context, tenancy.Tenant) error {
	return func(ctx context.Context, t tenancy.Tenant) error {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		detail := map[string]string{}
		if info := tenancy.RequestOf(ctx); info != nil {
			detail["requestId"], detail["method"], detail["route"] = info.ID, info.Method, info.Route
		}
		raw, err := json.Marshal(detail)
		if err != nil {
			return err
		}
		// On a context of its own: hanging up must not keep the act out of the record.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return audit.Append(ctx, t.Org.ID, tenancy.AuditEntry{ID: id.String(), Org: t.Org.ID, Actor: t.User, HomeOrg: t.HomeOrg, Action: "act_as", Detail: raw, At: clock()})
	}
}

// nearby serves metrics on the API's own address to this machine only: they name every organisation and what it spends. A request that a
// proxy passed on is not from this machine, wherever the proxy runs.
func nearby(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() || r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != "" {
			http.Error(w, "metrics are served to this machine only; set telemetry.metricsListen to serve them elsewhere", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// known tells the admin API what policies may speak of.
type known struct {
	library *dispatch.Library
	models  *provider.Catalogue
}

// orgNames are the names one organisation has.
type orgNames struct {
	known
	org tenancy.OrgID
}

// Capabilities names what the organisation's apps offer.
func (k orgNames) Capabilities() []string { return k.known.Capabilities(k.org) }

func (k known) Capabilities(org tenancy.OrgID) []string {
	var out []string
	for _, c := range k.library.For(org).View(tenancy.TierAdmin, nil) {
		out = append(out, c.Name)
	}
	return out
}

func (k known) Models() []string {
	var out []string
	for _, m := range k.models.Models() {
		out = append(out, m.Name)
	}
	return out
}

func (k known) HasProvider(name string) bool { return k.models.HasProvider(name) }

// listen serves until ctx ends, then drains: no new connections, streams may go on until the deadline, what is left is told why and ended, the
// journal is flushed, the databases closed.
func (a *app) listen(ctx context.Context, ready func(addr string)) error {
	ln, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("listen: %w", err), a.close(context.WithoutCancel(ctx)))
	}
	base, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	var running atomic.Int64
	srv := &http.Server{
		Handler: counted(&running, a.handler), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 1200 << 10, // a token of a megabyte is refused by the verifier, with a sentence that helps, and not by a bare 431
		BaseContext:    func(net.Listener) context.Context { return base },
		ErrorLog:       slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 2)
	go func() { failed <- srv.Serve(ln) }()
	var side *http.Server
	if a.cfg.Telemetry.MetricsListen != "" {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", a.metrics.Handler())
		side = &http.Server{Addr: a.cfg.Telemetry.MetricsListen, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
		go func() { failed <- side.ListenAndServe() }()
	}
	ready(ln.Addr().String())
	select {
	case err = <-failed:
	case <-ctx.Done():
		err = nil
		a.log.Info("draining", "atMost", a.cfg.Limits.Shutdown)
	}
	return errors.Join(err, a.drain(srv, side, &running, end))
}

// counted keeps count of the requests that are being answered.
func counted(running *atomic.Int64, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		h.ServeHTTP(w, r)
	})
}

// farewell is how long a caller may take to read why its stream was ended.
const farewell = 2 * time.Second

func (a *app) drain(srv, side *http.Server, running *atomic.Int64, end context.CancelCauseFunc) error {
	patience, cancel := context.WithTimeout(context.Background(), a.cfg.Limits.Shutdown)
	defer cancel()
	err := srv.Shutdown(patience)
	if errors.Is(err, context.DeadlineExceeded) {
		end(shuttingDown())
		last, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		if err = srv.Shutdown(last); errors.Is(err, context.DeadlineExceeded) {
			// Somebody does not read. Closing the connections ends the writes that wait for them, so that these turns are settled too.
			err = errors.Join(srv.Close(), settled(running))
		}
	}
	errs := []error{err}
	if side != nil {
		errs = append(errs, side.Close())
	}
	flush, cancel2 := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel2()
	errs = append(errs, a.close(flush))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	a.log.Info("stopped")
	return nil
}

// settled waits until no request is being answered any more; closing a server does not.
func settled(running *atomic.Int64) error {
	for range 200 {
		if running.Load() == 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("%d requests did not end; what they used is settled at the next start", running.Load())
}

// logger writes what happened, never what was said.
func logger(format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is not a level; use debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(redaction.LogHandler(slog.NewTextHandler(os.Stderr, opts))), nil
	case "json":
		return slog.New(redaction.LogHandler(slog.NewJSONHandler(os.Stderr, opts))), nil
	}
	return nil, fmt.Errorf("--log-format: %q is not a format; use text or json", format)
}

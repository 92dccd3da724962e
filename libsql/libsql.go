// Package libsql owns every row the gateway keeps: the control database, the tenant databases, their migrations,
// their transactions, and the translation of driver errors into faults.
//
// It refuses to know HTTP faces, providers, and what the rows mean; the packages that own the vocabulary declare the
// interfaces this package satisfies.
//
// Invariants: a tenant's transcripts and paused runs live in its own database, and a handle for one organisation has no
// way to name another's; every write runs on a context its caller cannot cancel, in a transaction shared with the
// writes that waited beside it; a database whose schema is newer than this program, or was edited, is not opened.
package libsql

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/migrations"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

var (
	_ billing.Ledger        = (*Ledger)(nil)
	_ transcript.Store      = (*Turns)(nil)
	_ dispatch.PendingStore = (*Pending)(nil)
	_ policy.SettingsStore  = (*Settings)(nil)
	_ policy.RevisionStore  = (*Policies)(nil)
	_ policy.HistoryStore   = (*Policies)(nil)
	_ policy.ApprovalStore  = (*Policies)(nil)
	_ policy.RequestStore   = (*Policies)(nil)
	_ policy.ShadowStore    = (*Policies)(nil)
	_ policy.ReplicaStore   = (*Policies)(nil)
	_ policy.FullLog        = (*Decisions)(nil)
	_ keyring.Store         = (*Keys)(nil)
	_ tenancy.OrgStore      = (*Orgs)(nil)
)

// Config says where the databases are. A URL's scheme decides the engine: file: is SQLite in this process;
// libsql:, https: and http: are a libSQL server over the network (libsql: takes ?tls=0 for a server without TLS).
type Config struct {
	Control   string         // URL of the control database
	Tenant    string         // URL of a tenant database, with {slug} in its path or host
	AuthToken keyring.Secret // bearer token for network servers; zero: none
	Clock     func() time.Time
	Logger    *slog.Logger
	Handles   int // tenant databases kept open at most; 0: 256
}

// slugMark is where the organisation's slug goes in Config.Tenant.
const slugMark = "{slug}"

func (c Config) validate() error {
	const op = "libsql.Config"
	var faults []error
	if c.Clock == nil || c.Logger == nil {
		faults = append(faults, fault.New(fault.Internal, op, "config", "The databases need a clock and a logger."))
	}
	if strings.Contains(c.Control, slugMark) {
		faults = append(faults, fault.New(fault.Invalid, op, "config", "database.control must not contain {slug}; there is one control database."))
	}
	if strings.Count(c.Tenant, slugMark) != 1 {
		faults = append(faults, fault.New(fault.Invalid, op, "config", "database.tenant must contain {slug} exactly once, so that each organisation has its own database."))
	}
	for _, u := range []string{c.Control, strings.ReplaceAll(c.Tenant, slugMark, "x")} {
		if _, err := parseAddress(u); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// Stores are all stores over one set of databases. They are safe for concurrent use until Close.
type Stores struct {
	Orgs      *Orgs
	Keys      *Keys
	Settings  *Settings
	Policies  *Policies
	Decisions *Decisions
	Audit     *Audit
	Ledger    *Ledger
	Reports   *Reports
	Prices    *Prices
	Budgets   *Budgets
	Webhooks  *Webhooks
	Turns     *Turns
	Pending   *Pending
	Apps      *Apps
	Tokens    *Tokens
	Runs      *Runs

	control *database
	tenants *tenants
}

// Open connects to the control database and brings its schema up to date; tenant databases are opened, and created,
// when first used. Errors: fault.Invalid for a bad configuration; fault.Unavailable when the control database cannot
// be reached or its schema is newer than this program or was edited.
func Open(ctx context.Context, cfg Config) (*Stores, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Handles <= 0 {
		cfg.Handles = 256
	}
	addr, err := parseAddress(cfg.Control)
	if err != nil {
		return nil, err
	}
	control, err := openDatabase(ctx, "control", addr, cfg)
	if err != nil {
		return nil, err
	}
	if err := control.migrate(ctx, migrations.Control(), cfg.Clock); err != nil {
		return nil, errors.Join(err, control.close(ctx))
	}
	orgs := &Orgs{db: control}
	slugs, err := lru.New[tenancy.OrgID, tenancy.Slug](4096)
	if err != nil {
		return nil, errors.Join(fault.From(err), control.close(ctx))
	}
	words, err := lru.New[string, int64](8192)
	if err != nil {
		return nil, errors.Join(fault.From(err), control.close(ctx))
	}
	counters, err := lru.New[counterKey, bool](8192)
	if err != nil {
		return nil, errors.Join(fault.From(err), control.close(ctx))
	}
	zones, err := lru.New[string, *time.Location](1024)
	if err != nil {
		return nil, errors.Join(fault.From(err), control.close(ctx))
	}
	ledger := &Ledger{db: control, words: words, zones: zones, clock: cfg.Clock}
	if err := ledger.begin(ctx); err != nil {
		return nil, errors.Join(err, control.close(ctx))
	}
	audit := &Audit{db: control}
	if err := audit.link(ctx); err != nil {
		return nil, errors.Join(err, control.close(ctx))
	}
	ts := newTenants(cfg, orgs, slugs)
	policies := &Policies{db: control}
	return &Stores{
		Orgs: orgs, Keys: &Keys{db: control}, Settings: &Settings{db: control, policies: policies}, Policies: policies, Audit: audit,
		Ledger: ledger, Reports: &Reports{db: control, ledger: ledger}, Prices: &Prices{db: control}, Budgets: &Budgets{db: control, known: counters}, Webhooks: &Webhooks{db: control}, Turns: &Turns{tenants: ts}, Pending: &Pending{tenants: ts}, Apps: &Apps{db: control}, Tokens: &Tokens{db: control}, Runs: &Runs{tenants: ts}, Decisions: &Decisions{tenants: ts},
		control: control, tenants: ts,
	}, nil
}

// Ping reports whether the control database answers; fault.Unavailable or fault.Timeout when it does not.
func (s *Stores) Ping(ctx context.Context) error {
	var one int64
	_, err := s.control.row(ctx, "libsql.Ping", []any{&one}, "SELECT 1")
	return err
}

// Close waits for writes under way, until ctx ends, and closes every database. It joins all errors.
func (s *Stores) Close(ctx context.Context) error {
	return errors.Join(s.tenants.close(ctx), s.control.close(ctx))
}

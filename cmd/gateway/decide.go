package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego"
	"github.com/lossless-group/gateway/policy/spill"
	"github.com/lossless-group/gateway/tenancy"
)

// How long a published policy takes to be served: by this process at once, by another one after followEvery, and after bookTTL when it
// cannot hear of it.
const (
	bookTTL     = 2 * time.Second
	followEvery = 500 * time.Millisecond
)

// alive is what keeps this process up to date with the policies of all organisations, and what tries drafts.
type alive struct {
	replica  *policy.Replica
	shadower *policy.Shadower
}

// live starts following what other replicas publish and trying drafts, until the service closes. The decision log is open by now and
// closes later: answers of drafts go into it.
func (a *app) live(book *policy.Book, engine *rego.Engine, watch *policyWatch, clock func() time.Time) (alive, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return alive{}, err
	}
	name := "rp_" + id.String()
	replica, err := policy.NewReplica(policy.ReplicaConfig{
		ID: name, Book: book, Changes: a.stores.Policies, Store: a.stores.Policies, Clock: clock, Every: followEvery,
		UnreadyAfter: a.cfg.Policy.UnreadyAfter, RefuseAfter: a.cfg.Policy.RefuseAfter,
		Prepare:  prepare(engine),
		Standing: func(org tenancy.OrgID) policy.Standing { return standing(engine.Status(org)) },
		Report: func(err error) {
			a.log.Debug("looking for newly published policies failed", "err", err)
		},
	})
	if err != nil {
		return alive{}, err
	}
	watch.replica.Store(replica)
	// An engine of its own: what a draft uses up is not missing where decisions are made, and what it breaks stays there.
	beside, err := rego.New(context.Background(), rego.Options{Clock: clock, RedactionFloor: a.cfg.Policy.RedactionFloor, Usage: spending{a.stores.Ledger}, CacheSize: 10_000, Orgs: 200})
	if err != nil {
		return alive{}, err
	}
	shadower, err := policy.NewShadower(policy.ShadowerConfig{Store: a.stores.Policies, Decider: beside, Replica: name, Clock: clock, Report: func(err error) {
		a.log.Debug("what a tried policy said could not be written down; it is kept until the next try", "err", err)
	}})
	if err != nil {
		return alive{}, err
	}
	a.background(replica.Run)
	a.background(shadower.Run)
	return alive{replica, shadower}, nil
}

// background runs something until the service closes.
func (a *app) background(run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	a.defer_(func(context.Context) error {
		cancel()
		<-done
		return nil
	})
}

func standing(s rego.Status) policy.Standing {
	return policy.Standing{State: s.State, Revision: s.Revision, Serving: s.Serving, Code: s.Code, Cause: s.Cause}
}

func prepare(engine *rego.Engine) func(context.Context, tenancy.OrgID, policy.Revision) policy.Standing {
	return func(ctx context.Context, org tenancy.OrgID, r policy.Revision) policy.Standing {
		return standing(engine.Prepare(ctx, org, r))
	}
}

// lostEvery is how often the log repeats that decisions are lost; the series in /metrics counts each.
const lostEvery = 10 * time.Second

// decisionLog writes decisions to the organisations' databases in the background, with their questions sealed, and to local files while
// a database is away. It closes before the databases do.
func (a *app) decisionLog(cfg Config, sealer *keyring.Sealer, clock func() time.Time) (*policy.LogWriter, error) {
	a.decided = policy.NewSealedLog(a.stores.Decisions, sealer, func(org tenancy.OrgID, id string, err error) {
		a.log.Error("the question of a decision does not open; it is left out", "org", org, "decision", id, "err", err)
	})
	files, err := spill.Open(spill.Config{Dir: filepath.Join(cfg.Data, "decisions"), Sealer: sealer, Bytes: int64(cfg.Policy.DecisionSpillMiB) << 20, Report: func(err error) {
		a.log.Error("decisions that waited on disk cannot be read; the decision log has gaps", "err", err)
	}})
	if err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	a.defer_(func(context.Context) error { return files.Close() })
	if n := files.Stats().Lines; n > 0 {
		a.log.Info("decisions of an earlier process wait on disk for their database", "lines", n)
	}
	a.spilled = files
	var warned, told, full time.Time // reports come one after the other
	var lost int64
	w, err := policy.NewLogWriter(policy.LogWriterConfig{Log: a.decided, Spill: files, Report: func(r policy.LogReport) {
		now := clock()
		if lost += r.Dropped; lost > 0 && now.Sub(told) >= lostEvery {
			a.log.Error("decisions were lost; the decision log has gaps", "lines", lost, "err", r.Err)
			lost, told = 0, now
		}
		switch {
		case r.Full && now.Sub(full) >= lostEvery:
			a.log.Error("decisions find no room on disk any more and wait in memory; raise policy.decisionSpillMiB or bring the database back", "org", r.Org, "bytes", files.Stats().Bytes, "err", r.Err)
			full = now
		case !r.Full && r.Err != nil && now.Sub(warned) >= lostEvery:
			a.log.Warn("decisions wait for their database", "org", r.Org, "err", r.Err)
			warned = now
		}
	}})
	if err == nil {
		a.writer = w
		a.defer_(w.Close)
	}
	return w, err
}

// pruneEvery is how often decisions that are older than they are kept are deleted, pruneFirst when after a start: it opens every
// organisation's database, and a start has better things to do.
const (
	pruneFirst = time.Minute
	pruneEvery = time.Hour
)

// retire deletes decisions that nobody needs any more, organisation by organisation, until the service closes.
func (a *app) retire(keep time.Duration, clock func() time.Time) {
	a.background(func(ctx context.Context) {
		timer := time.NewTimer(pruneFirst)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			a.prune(ctx, clock().Add(-keep))
			timer.Reset(pruneEvery)
		}
	})
}

func (a *app) prune(ctx context.Context, before time.Time) {
	for after := ""; ; {
		orgs, next, err := a.stores.Orgs.List(ctx, after, 100)
		if err != nil {
			if ctx.Err() == nil {
				a.log.Warn("decisions could not be retired; they are kept until the next try", "err", err)
			}
			return
		}
		for _, org := range orgs {
			if _, err := a.stores.Decisions.PruneDecisions(ctx, org.ID, before); err != nil && ctx.Err() == nil {
				a.log.Warn("decisions could not be retired; they are kept until the next try", "org", org.ID, "err", err)
			}
		}
		if after = next; after == "" || ctx.Err() != nil {
			return
		}
	}
}

// policyWatch tells operators when an organisation's policy stops deciding. The cause names places in that policy, not what was asked.
type policyWatch struct {
	log     *slog.Logger
	replica atomic.Pointer[policy.Replica] // tells the console; nil until it is there
}

var _ rego.Watcher = (*policyWatch)(nil)

func (w *policyWatch) PolicyTrouble(t rego.Trouble) {
	if r := w.replica.Load(); r != nil {
		st := policy.Standing{State: rego.StateUnavailable, Revision: t.Revision, Serving: t.Serving, Code: t.Code}
		if t.Serving > 0 {
			st.State = rego.StateStale
		}
		r.Trouble(t.Org, st)
	}
	w.log.Error("an organisation's policy cannot be used", "org", t.Org, "revision", t.Revision, "code", t.Code, "serving", t.Serving, "err", t.Cause)
}

// spending tells policies what an organisation has used, from the ledger. What is still on its way there is not counted.
type spending struct{ ledger billing.Ledger }

var _ rego.UsageSource = spending{}

func (s spending) Usage(ctx context.Context, org tenancy.OrgID, now time.Time) (policy.Usage, error) {
	year, month, day := now.Date()
	var u policy.Usage
	today, err := s.ledger.Report(ctx, org, billing.Query{From: time.Date(year, month, day, 0, 0, 0, 0, now.Location()), To: now.Add(time.Second)})
	if err != nil {
		return u, err
	}
	for _, r := range today {
		u.TokensToday += r.Usage.InputTotal() + r.Usage.Output
	}
	all, err := s.ledger.Report(ctx, org, billing.Query{From: time.Date(year, month, 1, 0, 0, 0, 0, now.Location()), To: now.Add(time.Second)})
	if err != nil {
		return u, err
	}
	var cost billing.Pico
	for _, r := range all {
		if cost, err = cost.Add(r.Cost); err != nil {
			return u, err
		}
	}
	u.CostMonthUSD = cost.String()
	return u, nil
}

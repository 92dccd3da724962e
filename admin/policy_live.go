package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// This file is what is in force: the live revision, the replicas that serve it, and the draft that is tried beside it.

// replicaView is one process and how the live revision stands there.
type replicaView struct {
	ID         string          `json:"id"`
	This       bool            `json:"this"` // the one that answers
	Generation int64           `json:"generation"`
	StartedAt  string          `json:"startedAt"`
	SeenAt     string          `json:"seenAt"`
	Live       bool            `json:"live"` // the live revision decides there
	Stale      bool            `json:"stale"`
	Quarantine bool            `json:"quarantine"`
	Standing   policy.Standing `json:"standing"`
}

// statusView is where the live revision is in force.
type statusView struct {
	Live     string        `json:"live"` // "2/3"
	Seen     int           `json:"seen"`
	Total    int           `json:"total"`
	Sentence string        `json:"sentence"`
	Replicas []replicaView `json:"replicas"`
}

// standing asks every replica that lives. This one is asked itself: it makes the revision ready if it has to, so its answer is not
// about what it will do with the next request but about what it did.
func (a *api) standing(ctx context.Context, org tenancy.OrgID, live policy.Revision) (statusView, error) {
	out := statusView{}
	now := a.Clock()
	list, err := a.Policies.Replicas.Replicas(ctx, org, now.Add(-policy.SilentAfter))
	if err != nil {
		return out, err
	}
	self := a.Policies.Replica.ID()
	if !slices.ContainsFunc(list, func(s policy.ReplicaState) bool { return s.ID == self }) {
		list = append(list, policy.ReplicaState{ID: self, StartedAt: now, SeenAt: now})
	}
	served, err := a.Settings.Live(ctx, org)
	if err != nil {
		return out, err
	}
	for _, s := range list {
		st := policy.Standing{State: "live", Revision: live.Number, Serving: live.Number}
		switch {
		case s.ID == self:
			st = a.Policies.Prepare(ctx, org, served)
			if s.Generation = max(s.Generation, a.Policies.Replica.Generation()); served.Number >= live.Number {
				s.Generation = max(s.Generation, live.Generation)
			}
			s.Standing = &st
		case s.Standing != nil:
			st = *s.Standing
		case s.Generation < live.Generation:
			st = policy.Standing{State: "behind", Revision: 0, Serving: 0}
		}
		if st.State == "none" && st.Good() { // there is no Rego to go wrong
			st.State, st.Revision, st.Serving = "live", served.Number, served.Number
		}
		v := replicaView{ID: s.ID, This: s.ID == self, Generation: s.Generation, StartedAt: s.StartedAt.UTC().Format(timeForm), SeenAt: s.SeenAt.UTC().Format(timeForm),
			Live: s.Serving(live.Generation), Stale: st.State == "stale", Quarantine: st.Code == "policy_quarantined", Standing: st}
		if v.Live {
			out.Seen++
		}
		out.Replicas = append(out.Replicas, v)
	}
	out.Total = len(out.Replicas)
	out.Live = fmt.Sprintf("%d/%d", out.Seen, out.Total)
	out.Sentence = fmt.Sprintf("live on %d of %d", out.Seen, out.Total)
	return out, nil
}

const timeForm = "2006-01-02T15:04:05.000Z07:00"

// activePolicy is the live revision with its text, and where it is in force.
func (a *api) activePolicy(c echo.Context, t tenancy.Tenant) error {
	ctx := c.Request().Context()
	r, err := a.Policies.Revisions.Active(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	st, err := a.standing(ctx, t.Org.ID, r)
	if err != nil {
		return err
	}
	return versioned(c, r.Number, struct {
		policy.Revision
		statusView
	}{r, st})
}

// policyStatus says where the live revision is in force.
func (a *api) policyStatus(c echo.Context, t tenancy.Tenant) error {
	ctx := c.Request().Context()
	r, err := a.Policies.Revisions.Active(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	st, err := a.standing(ctx, t.Org.ID, r)
	if err != nil {
		return err
	}
	return versioned(c, r.Number, struct {
		Revision   int64  `json:"revision"`
		SHA256     string `json:"sha256"`
		Generation int64  `json:"generation"`
		statusView
	}{r.Number, r.SHA256, r.Generation, st})
}

// shadowView is a shadow and what it said so far.
type shadowView struct {
	ID        string              `json:"id"`
	Base      int64               `json:"base"`
	Version   int64               `json:"version"`
	SHA256    string              `json:"sha256"`
	Author    tenancy.UserID      `json:"author"`
	StartedAt string              `json:"startedAt"`
	Counts    policy.ShadowCounts `json:"counts"`
}

// startShadow freezes the draft and evaluates it beside what is live from now on. If-Match, when sent, names the draft that is meant.
func (a *api) startShadow(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.startShadow"
	ctx := c.Request().Context()
	meant, err := ifMatch(c)
	if err != nil {
		return err
	}
	d, err := a.Policies.History.Draft(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	switch {
	case meant >= 0 && meant != d.Version:
		return stale(nil)
	case d.Version == 0:
		return fault.New(fault.Unprocessable, op, "draft_missing", "There is no draft to try. PUT one first.")
	}
	if err := a.fit(ctx, d.Source, false); err != nil {
		return err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fault.From(err)
	}
	s := policy.Shadow{ID: "sh_" + id.String(), Base: d.Base, Version: d.Version, Source: d.Source, Author: t.User, StartedAt: a.Clock()}
	if s.SHA256, err = policy.HashSource(d.Source); err != nil {
		return err
	}
	if err := a.Policies.Shadows.StartShadow(lasting(c), t.Org.ID, s); err != nil {
		return err
	}
	if err := a.note(c, t, "policy.shadow.start", map[string]any{"id": s.ID, "base": s.Base, "version": s.Version, "sha256": s.SHA256}); err != nil {
		return err
	}
	a.Policies.Shadower.Refresh(lasting(c))
	return c.JSON(http.StatusCreated, viewShadow(s, policy.ShadowCounts{}))
}

func viewShadow(s policy.Shadow, n policy.ShadowCounts) shadowView {
	if n.ByCapability == nil {
		n.ByCapability = map[string]policy.ShadowCounts{}
	}
	if n.ByModel == nil {
		n.ByModel = map[string]policy.ShadowCounts{}
	}
	if n.Examples == nil {
		n.Examples = []policy.ShadowExample{}
	}
	return shadowView{ID: s.ID, Base: s.Base, Version: s.Version, SHA256: s.SHA256, Author: s.Author, StartedAt: s.StartedAt.UTC().Format(timeForm), Counts: n}
}

// shadowState is what the shadow said so far, over all replicas; what this one counted is in it to the last decision.
func (a *api) shadowState(c echo.Context, t tenancy.Tenant) error {
	ctx := c.Request().Context()
	s, err := a.Policies.Shadows.Shadow(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	if s.ID == "" {
		return noShadow("admin.shadowState")
	}
	if err := a.Policies.Shadower.Flush(lasting(c), t.Org.ID); err != nil {
		return err
	}
	n, err := a.Policies.Shadows.ShadowCounts(ctx, t.Org.ID, s.ID)
	if err != nil {
		return err
	}
	return told(c, viewShadow(s, n))
}

func noShadow(op string) error {
	return fault.New(fault.NotFound, op, "shadow_missing", "No draft is being tried. POST here to try the current one; publishing ends it.")
}

func (a *api) endShadow(c echo.Context, t tenancy.Tenant) error {
	ended, err := a.Policies.Shadows.EndShadow(lasting(c), t.Org.ID)
	if err != nil {
		return err
	}
	if !ended {
		return noShadow("admin.endShadow")
	}
	a.Policies.Shadower.Refresh(lasting(c))
	if err := a.note(c, t, "policy.shadow.stop", map[string]any{}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

package admin

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// This file is what an admin asks about a policy that is being written: checks, tests, questions, replays, and help while typing.

// checkPolicy checks a policy, and warns of settings that fit nothing.
func (a *api) checkPolicy(c echo.Context, t tenancy.Tenant) error {
	in, err := readAsk(c, "version", "source")
	if err != nil {
		return err
	}
	s, err := a.source(c, t, in)
	if err != nil {
		return err
	}
	r, err := a.author(t).Check(c.Request().Context(), s)
	if err != nil {
		return err
	}
	for _, w := range a.warnings(t.Org.ID, s.Settings) {
		r.Diagnostics = append(r.Diagnostics, policy.Diagnostic{Severity: "warning", Code: "settings_match_nothing", Message: w})
	}
	return answer(c, in, r)
}

func (a *api) formatPolicy(c echo.Context, _ tenancy.Tenant) error {
	in, err := readAsk(c, "version", "name", "text")
	if err != nil {
		return err
	}
	if !policy.ValidFileName(in.Name) {
		return fault.Invalidf("admin.formatPolicy", "/name", "name is the name of a policy file, such as org.rego.")
	}
	text, err := a.Policies.Author.Format(c.Request().Context(), policy.File{Name: in.Name, Source: in.Text})
	if err != nil {
		return fault.From(err).At("/text")
	}
	return answer(c, in, map[string]any{"text": text, "changed": text != in.Text})
}

func (a *api) testPolicy(c echo.Context, t tenancy.Tenant) error {
	in, err := readAsk(c, "version", "source")
	if err != nil {
		return err
	}
	s, err := a.source(c, t, in)
	if err != nil {
		return err
	}
	r, err := a.Policies.Author.Test(c.Request().Context(), s)
	if err != nil {
		return err
	}
	return answer(c, in, r)
}

func (a *api) evaluatePolicy(c echo.Context, t tenancy.Tenant) error {
	in, err := readAsk(c, "version", "source", "input")
	if err != nil {
		return err
	}
	s, err := a.source(c, t, in)
	if err != nil {
		return err
	}
	r, err := a.Policies.Author.Evaluate(c.Request().Context(), s, in.Input)
	if err != nil {
		return err
	}
	return answer(c, in, r)
}

// replayPolicy asks a policy about the decisions of the last days.
func (a *api) replayPolicy(c echo.Context, t tenancy.Tenant) error { return a.replay(c, t, false) }

// policyImpact is a replay that also says whether the person who asks would be refused.
func (a *api) policyImpact(c echo.Context, t tenancy.Tenant) error { return a.replay(c, t, true) }

func (a *api) replay(c echo.Context, t tenancy.Tenant, self bool) error {
	const op = "admin.replay"
	in, err := readAsk(c, "version", "source", "days", "limit")
	if err != nil {
		return err
	}
	switch {
	case in.Days < 0 || in.Days > 90:
		return fault.Invalidf(op, "/days", "days is from 1 to 90; 7 when absent.")
	case in.Limit < 0 || in.Limit > replayMost:
		return fault.Invalidf(op, "/limit", "limit is from 1 to %d decisions; %d when absent.", replayMost, replayLines)
	}
	s, err := a.source(c, t, in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), replayTimeout)
	defer cancel()
	live, err := a.Policies.Revisions.Active(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	what := policy.ReplayInput{Draft: s, Live: live.Source}
	window := replayWindow
	if in.Days > 0 {
		window = time.Duration(in.Days) * 24 * time.Hour
	}
	if what.Lines, err = a.logged(ctx, t.Org.ID, policy.DecisionQuery{From: a.Clock().Add(-window)}, in.Limit); err != nil {
		return err
	}
	what.Labels.Capabilities = map[string]string{}
	for _, r := range a.Known.Registered(t.Org.ID) {
		what.Labels.Capabilities[r.Name] = r.Title
	}
	if a.Policies.Waiting != nil {
		if what.Waiting, err = a.Policies.Waiting.Waiting(ctx, t.Org.ID, a.Clock()); err != nil {
			return err
		}
	}
	if self {
		if what.Self, err = a.ownQuestions(t); err != nil {
			return err
		}
	}
	r, err := a.Policies.Author.Replay(ctx, what)
	if err != nil {
		return err
	}
	return answer(c, in, r)
}

// logged reads the newest lines of the decision log that fit a query; limit 0 is replayLines.
func (a *api) logged(ctx context.Context, org tenancy.OrgID, q policy.DecisionQuery, limit int) ([]policy.LoggedDecision, error) {
	if limit == 0 {
		limit = replayLines
	}
	var out []policy.LoggedDecision
	for len(out) < limit {
		q.Limit = min(limit-len(out), replayLines)
		page, next, err := a.Policies.Decisions.Decisions(ctx, org, q)
		if err != nil {
			return nil, err
		}
		out = append(out, page...)
		if next == "" || len(page) == 0 {
			break
		}
		q.Before = next
	}
	return out, nil
}

// ownQuestions are the chats the calling admin could begin now, one for each model.
func (a *api) ownQuestions(t tenancy.Tenant) ([]json.RawMessage, error) {
	var acting any
	if t.ActingFor {
		acting = t.Org.ID
	}
	user := map[string]any{"id": t.User, "email": t.Email, "role": t.Role, "tier": t.Tier().String(), "actingFor": acting, "homeOrg": t.HomeOrg}
	models := a.Known.Models()
	if len(models) == 0 {
		models = []string{"none"}
	}
	var out []json.RawMessage
	for _, m := range models {
		raw, err := json.Marshal(a.plainChat(t, user, strings.TrimSuffix(m, "*"), map[string]any{}))
		if err != nil {
			return nil, fault.From(err)
		}
		out = append(out, raw)
	}
	return out, nil
}

// plainChat is the question about a chat that begins now, in which nothing was said yet.
func (a *api) plainChat(t tenancy.Tenant, user map[string]any, model string, capabilities map[string]any) map[string]any {
	zone, err := time.LoadLocation(t.Org.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	now := a.Clock().In(zone)
	return map[string]any{
		"v": 1, "action": "chat",
		"time": map[string]any{"hour": now.Hour(), "minuteOfDay": now.Hour()*60 + now.Minute(), "weekday": now.Weekday().String()},
		"org":  map[string]any{"id": t.Org.ID, "slug": t.Org.Slug, "billingStatus": t.Org.Billing, "plan": t.Org.Plan, "operating": t.Org.Operating},
		"user": user,
		"auth": map[string]any{"method": t.Method, "tokenId": nil},
		"request": map[string]any{"surface": "agent", "model": model, "provider": "", "keySource": "org", "stream": true, "maxTokens": 0,
			"projectId": "", "projectKind": "", "hasImages": false},
		"conversation": map[string]any{"id": "", "messages": 1, "chars": 100, "attachments": 0},
		"capabilities": capabilities,
	}
}

// typed reads a request of the editor.
func (a *api) typed(c echo.Context, t tenancy.Tenant) (ask, policy.Source, error) {
	in, err := readAsk(c, "version", "source", "position")
	if err != nil {
		return in, policy.Source{}, err
	}
	s, err := a.source(c, t, in)
	return in, s, err
}

func (a *api) completePolicy(c echo.Context, t tenancy.Tenant) error {
	in, s, err := a.typed(c, t)
	if err != nil {
		return err
	}
	list, err := a.author(t).Complete(c.Request().Context(), s, in.Position)
	if err != nil {
		return err
	}
	return answer(c, in, list)
}

func (a *api) hoverPolicy(c echo.Context, t tenancy.Tenant) error {
	in, s, err := a.typed(c, t)
	if err != nil {
		return err
	}
	text, err := a.author(t).Hover(c.Request().Context(), s, in.Position)
	if err != nil {
		return err
	}
	return answer(c, in, text)
}

func (a *api) policyDefinition(c echo.Context, t tenancy.Tenant) error {
	in, s, err := a.typed(c, t)
	if err != nil {
		return err
	}
	at, err := a.author(t).Definition(c.Request().Context(), s, in.Position)
	if err != nil {
		return err
	}
	return answer(c, in, at)
}

// diffPolicy compares two of: "live", "draft", a revision's number. From is live and To the draft when absent; a source that is sent
// stands in for To.
func (a *api) diffPolicy(c echo.Context, t tenancy.Tenant) error {
	in, err := readAsk(c, "version", "source", "from", "to")
	if err != nil {
		return err
	}
	from, err := a.named(c, t, in.From, "live", "/from")
	if err != nil {
		return err
	}
	var to policy.Source
	if len(in.Source) > 0 {
		to, err = readSource(in.Source, "/source")
	} else {
		to, err = a.named(c, t, in.To, "draft", "/to")
	}
	if err != nil {
		return err
	}
	return answer(c, in, policy.DiffSources(from, to))
}

func (a *api) named(c echo.Context, t tenancy.Tenant, name, otherwise, pointer string) (policy.Source, error) {
	ctx := c.Request().Context()
	if name == "" {
		name = otherwise
	}
	switch name {
	case "live":
		r, err := a.Policies.Revisions.Active(ctx, t.Org.ID)
		return r.Source, err
	case "draft":
		d, err := a.draft(c, t)
		return d.Source, err
	}
	n, err := strconv.ParseInt(name, 10, 64)
	if err != nil || n < 1 {
		return policy.Source{}, fault.Invalidf("admin.named", pointer, "This is live, draft or the number of a revision.")
	}
	r, err := a.Policies.Revisions.Revision(ctx, t.Org.ID, n)
	return r.Source, err
}

// author is the author that knows what an organisation's apps offer.
func (a *api) author(t tenancy.Tenant) PolicyAuthor {
	if a.Policies.Knowing == nil {
		return a.Policies.Author
	}
	return a.Policies.Knowing(t.Org.ID)
}

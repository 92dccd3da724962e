package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// PolicyChecker says whether a policy may go live.
type PolicyChecker interface {
	Check(ctx context.Context, s policy.Source) (policy.CheckReport, error)
	Format(ctx context.Context, f policy.File) (string, error)
	Test(ctx context.Context, s policy.Source) (policy.TestReport, error)
}

// PolicyAsker says what a policy would decide.
type PolicyAsker interface {
	Evaluate(ctx context.Context, s policy.Source, input json.RawMessage) (policy.Evaluation, error)
	Replay(ctx context.Context, in policy.ReplayInput) (policy.Replay, error)
}

// PolicyEditor helps whoever types; Hover and Definition answer nil when they know nothing.
type PolicyEditor interface {
	Complete(ctx context.Context, s policy.Source, at policy.Position) ([]policy.Completion, error)
	Hover(ctx context.Context, s policy.Source, at policy.Position) (*policy.HoverText, error)
	Definition(ctx context.Context, s policy.Source, at policy.Position) (*policy.Position, error)
}

// PolicyAuthor is all of it, and the policy as a bundle of OPA.
type PolicyAuthor interface {
	PolicyChecker
	PolicyAsker
	PolicyEditor
	Bundle(w io.Writer, s policy.Source, revision string) error
}

// PolicyRevisions reads what was published. Publishing goes through the book, so that this replica serves it at once.
type PolicyRevisions interface {
	Active(ctx context.Context, org tenancy.OrgID) (policy.Revision, error)
	Revision(ctx context.Context, org tenancy.OrgID, number int64) (policy.Revision, error)
}

// PolicyDecisions reads the decision log.
type PolicyDecisions interface {
	Decisions(ctx context.Context, org tenancy.OrgID, q policy.DecisionQuery) ([]policy.LoggedDecision, string, error)
}

// PolicyState is how an organisation's Rego stands in this replica.
type PolicyState struct {
	State    string `json:"state"`    // none, live, stale, unavailable
	Revision int64  `json:"revision"` // the newest the replica was asked about
	Serving  int64  `json:"serving"`  // the one that decides
	Code     string `json:"code,omitempty"`
	Cause    string `json:"cause,omitempty"`
}

// PolicyConfig is what the routes of policies need.
type PolicyConfig struct {
	Author    PolicyAuthor
	Revisions PolicyRevisions
	History   policy.HistoryStore
	Decisions PolicyDecisions
	State     func(tenancy.OrgID) PolicyState
	Schemas   map[string][]byte // the documents of the contract by their file names
	Templates any               // what a policy can start from, as JSON
}

// Bounds of a replay: how far back, and over how many lines.
const (
	replayWindow  = 7 * 24 * time.Hour
	replayLines   = 1000
	replayMost    = 5000
	replayTimeout = 20 * time.Second
	revisionsPage = 50
)

// schemaMaxAge is how long a schema may be kept, in seconds: its address names its version.
const schemaMaxAge = 86400

func (a *api) mountPolicy(org *echo.Group) {
	g := org.Group("/policy")
	g.GET("/draft", a.admins(a.policyDraft))
	g.PUT("/draft", a.admins(a.savePolicyDraft))
	g.DELETE("/draft", a.admins(a.dropPolicyDraft))
	g.POST("/check", a.admins(a.checkPolicy))
	g.POST("/format", a.admins(a.formatPolicy))
	g.POST("/test", a.admins(a.testPolicy))
	g.POST("/evaluate", a.admins(a.evaluatePolicy))
	g.POST("/replay", a.admins(a.replayPolicy))
	g.POST("/impact", a.admins(a.policyImpact))
	g.POST("/complete", a.admins(a.completePolicy))
	g.POST("/hover", a.admins(a.hoverPolicy))
	g.POST("/definition", a.admins(a.policyDefinition))
	g.POST("/diff", a.admins(a.diffPolicy))
	g.POST("/publish", a.admins(a.publishPolicy))
	g.POST("/rollback", a.admins(a.rollbackPolicy))
	g.GET("/revisions", a.admins(a.policyRevisions))
	g.GET("/revisions/:number", a.admins(a.policyRevision))
	g.GET("/active", a.admins(a.activePolicy))
	g.GET("/status", a.admins(a.policyStatus))
	g.GET("/export", a.admins(a.exportPolicy))
	g.GET("/decisions", a.admins(a.policyDecisions))
	g.GET("/templates", a.admins(a.policyTemplates))
}

// MountSchemas registers the documents of the policy contract, which everybody may read, on a group at /schemas/policy/v1.
func MountSchemas(g *echo.Group, schemas map[string][]byte) {
	for name, doc := range schemas {
		g.GET("/"+name, func(c echo.Context) error {
			c.Response().Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", schemaMaxAge))
			c.Response().Header().Set("Access-Control-Allow-Origin", "*") // public, and editors load it from anywhere
			return c.Blob(http.StatusOK, "application/schema+json", doc)
		})
	}
}

// ask is the body of the authoring routes. What a route does not know is refused.
type ask struct {
	Version  json.RawMessage `json:"version"` // of the text in the editor; comes back unchanged
	Source   json.RawMessage `json:"source"`  // absent: the draft, or the live policy when there is none
	Name     string          `json:"name"`
	Text     string          `json:"text"`
	Input    json.RawMessage `json:"input"`
	Position policy.Position `json:"position"`
	Days     int             `json:"days"`
	Limit    int             `json:"limit"`
	From     string          `json:"from"`
	To       string          `json:"to"`
	Base     *int64          `json:"base"`
	Note     string          `json:"note"`
	Revision int64           `json:"revision"`
}

// readAsk reads a body with the members a route knows. Errors name the member.
func readAsk(c echo.Context, known ...string) (ask, error) {
	const op = "admin.readAsk"
	var in ask
	raw, err := body(c)
	if err != nil {
		return in, err
	}
	return in, decodeObject(op, raw, "", &in, known...)
}

// decodeObject decodes one JSON object into v after looking at its members: all known, each at most once.
func decodeObject(op string, raw []byte, pointer string, v any, known ...string) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fault.Invalidf(op, pointer, "Send one JSON object with the members %s.", strings.Join(known, ", "))
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		name, _ := t.(string)
		at := pointer + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		var skipped json.RawMessage
		if err != nil || d.Decode(&skipped) != nil {
			return fault.Invalidf(op, pointer, "This is not valid JSON.")
		}
		if !slices.Contains(known, name) {
			return fault.Invalidf(op, at, "There is no member %.80q here. Known members: %s.", name, strings.Join(known, ", "))
		}
		if seen[name] {
			return fault.Invalidf(op, at, "%s stands twice; send it once.", name)
		}
		seen[name] = true
	}
	if err := json.Unmarshal(raw, v); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return fault.Invalidf(op, pointer+"/"+strings.ReplaceAll(wrong.Field, ".", "/"), "This has to be a %s.", wrong.Type.Kind())
		}
		return fault.Invalidf(op, pointer, "This is not valid JSON.")
	}
	return nil
}

// readSource reads a policy out of a body: settings and files, each optional.
func readSource(raw json.RawMessage, pointer string) (policy.Source, error) {
	const op = "admin.readSource"
	var parts struct {
		Settings json.RawMessage   `json:"settings"`
		Files    []json.RawMessage `json:"files"`
	}
	var s policy.Source
	if err := decodeObject(op, raw, pointer, &parts, "settings", "files"); err != nil {
		return s, err
	}
	if len(parts.Settings) > 0 && string(parts.Settings) != "null" {
		var err error
		if s.Settings, err = policy.ParseSettings(parts.Settings); err != nil {
			fe := fault.From(err)
			return s, fe.At(pointer + "/settings" + fe.Field)
		}
	}
	for i, f := range parts.Files {
		var file policy.File
		if err := decodeObject(op, f, fmt.Sprintf("%s/files/%d", pointer, i), &file, "name", "source"); err != nil {
			return s, err
		}
		s.Files = append(s.Files, file)
	}
	n, err := policy.NormalizeSource(s)
	if err != nil {
		fe := fault.From(err)
		return s, fe.At(pointer + fe.Field)
	}
	return n, nil
}

// source is the policy a request is about: the one it sends, else the draft, else what is live.
func (a *api) source(c echo.Context, t tenancy.Tenant, in ask) (policy.Source, error) {
	if len(in.Source) > 0 && string(in.Source) != "null" {
		return readSource(in.Source, "/source")
	}
	d, err := a.draft(c, t)
	return d.Source, err
}

// draft is the stored draft, or, with version 0, one that starts from what is live.
func (a *api) draft(c echo.Context, t tenancy.Tenant) (policy.Draft, error) {
	ctx := c.Request().Context()
	d, err := a.Policies.History.Draft(ctx, t.Org.ID)
	if err != nil || d.Version > 0 {
		return d, err
	}
	live, err := a.Policies.Revisions.Active(ctx, t.Org.ID)
	if err != nil {
		return d, err
	}
	return policy.Draft{Org: t.Org.ID, Base: live.Number, Source: live.Source}, nil
}

// answer is an answer of the authoring routes: the version that was asked about, and what it is.
func answer(c echo.Context, in ask, result any) error {
	return c.JSON(http.StatusOK, struct {
		Version json.RawMessage `json:"version,omitempty"`
		Result  any             `json:"result"`
	}{in.Version, result})
}

func setETag(c echo.Context, n int64) {
	c.Response().Header().Set("ETag", `"`+strconv.FormatInt(n, 10)+`"`)
}

// ifMatch reads If-Match; absent is -1.
func ifMatch(c echo.Context) (int64, error) {
	m := c.Request().Header.Get("If-Match")
	if m == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(strings.Trim(m, `"`), 10, 64)
	if err != nil || n < 0 {
		return 0, fault.Invalidf("admin.ifMatch", "", "If-Match must be the ETag of a GET of this.")
	}
	return n, nil
}

// stale is the answer to an If-Match that names another version than the current one.
func stale(cause error) error {
	return fault.Wrap(fault.Conflict, "admin.policy", "precondition_failed", "Somebody else saved the draft in the meantime. Read it again and repeat your change.", cause)
}

func (a *api) policyDraft(c echo.Context, t tenancy.Tenant) error {
	d, err := a.draft(c, t)
	if err != nil {
		return err
	}
	setETag(c, d.Version)
	return c.JSON(http.StatusOK, d)
}

// savePolicyDraft stores the next version of the draft. If-Match must name the current one, "0" when there is none.
func (a *api) savePolicyDraft(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.savePolicyDraft"
	expect, err := ifMatch(c)
	if err != nil {
		return err
	}
	if expect < 0 {
		return fault.Invalidf(op, "", "Send If-Match with the ETag of the draft you started from, so that nobody's work is overwritten.")
	}
	in, err := readAsk(c, "source", "base")
	if err != nil {
		return err
	}
	s, err := readSource(in.Source, "/source")
	if err != nil {
		return err
	}
	have, err := a.draft(c, t)
	if err != nil {
		return err
	}
	d := policy.Draft{Base: have.Base, Source: s, Author: t.User, UpdatedAt: a.Clock()}
	if in.Base != nil {
		d.Base = *in.Base
	}
	saved, err := a.Policies.History.SaveDraft(c.Request().Context(), t.Org.ID, expect, d)
	if fault.Is(err, fault.Conflict) {
		return stale(err)
	}
	if err != nil {
		return err
	}
	setETag(c, saved.Version)
	return c.JSON(http.StatusOK, saved)
}

func (a *api) dropPolicyDraft(c echo.Context, t tenancy.Tenant) error {
	if err := a.Policies.History.DropDraft(c.Request().Context(), t.Org.ID); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

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
	r, err := a.Policies.Author.Check(c.Request().Context(), s)
	if err != nil {
		return err
	}
	for _, w := range policy.Warnings(s.Settings, a.Known.Capabilities(), a.Known.Models()) {
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
	if what.Lines, err = a.logged(ctx, t.Org.ID, a.Clock().Add(-window), in.Limit); err != nil {
		return err
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

// logged reads the newest lines of the decision log.
func (a *api) logged(ctx context.Context, org tenancy.OrgID, from time.Time, limit int) ([]policy.LoggedDecision, error) {
	if limit == 0 {
		limit = replayLines
	}
	var out []policy.LoggedDecision
	q := policy.DecisionQuery{From: from}
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
	zone, err := time.LoadLocation(t.Org.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	now := a.Clock().In(zone)
	var acting any
	if t.ActingFor {
		acting = t.Org.ID
	}
	models := a.Known.Models()
	if len(models) == 0 {
		models = []string{"none"}
	}
	var out []json.RawMessage
	for _, m := range models {
		raw, err := json.Marshal(map[string]any{
			"v": 1, "action": "chat",
			"time": map[string]any{"hour": now.Hour(), "minuteOfDay": now.Hour()*60 + now.Minute(), "weekday": now.Weekday().String()},
			"org":  map[string]any{"id": t.Org.ID, "slug": t.Org.Slug, "billingStatus": t.Org.Billing, "plan": t.Org.Plan, "operating": t.Org.Operating},
			"user": map[string]any{"id": t.User, "email": t.Email, "role": t.Role, "tier": t.Tier().String(), "actingFor": acting, "homeOrg": t.HomeOrg},
			"auth": map[string]any{"method": t.Method, "tokenId": nil},
			"request": map[string]any{"surface": "agent", "model": strings.TrimSuffix(m, "*"), "provider": "", "keySource": "org", "stream": true, "maxTokens": 0,
				"projectId": "", "projectKind": "", "hasImages": false},
			"conversation": map[string]any{"id": "", "messages": 1, "chars": 100, "attachments": 0},
			"capabilities": map[string]any{},
		})
		if err != nil {
			return nil, fault.From(err)
		}
		out = append(out, raw)
	}
	return out, nil
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
	list, err := a.Policies.Author.Complete(c.Request().Context(), s, in.Position)
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
	text, err := a.Policies.Author.Hover(c.Request().Context(), s, in.Position)
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
	at, err := a.Policies.Author.Definition(c.Request().Context(), s, in.Position)
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

// publishPolicy makes the draft the live revision: settings and files together. It has to check without errors, and its tests have to
// pass. If-Match, when sent, names the version of the draft that is meant.
func (a *api) publishPolicy(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.publishPolicy"
	ctx := c.Request().Context()
	meant, err := ifMatch(c)
	if err != nil {
		return err
	}
	in, err := readAsk(c, "note", "base")
	if err != nil {
		return err
	}
	d, err := a.Policies.History.Draft(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	if meant >= 0 && meant != d.Version {
		return stale(nil)
	}
	if d.Version == 0 {
		return fault.New(fault.Unprocessable, op, "draft_missing", "There is no draft to publish. PUT one first.")
	}
	if in.Base != nil && *in.Base != d.Base {
		return fault.New(fault.Conflict, op, "policy_changed", fmt.Sprintf("The draft starts from revision %d. Compare it with what is live and publish again.", d.Base)).At("/base")
	}
	if err := a.fit(ctx, d.Source, true); err != nil {
		return err
	}
	r, err := a.publish(c, t, d.Base, policy.Revision{Source: d.Source, Note: in.Note}, "policy.publish")
	if err != nil {
		return err
	}
	// The draft is what is live now; a later one has another version and stays.
	if now, err := a.Policies.History.Draft(ctx, t.Org.ID); err == nil && now.Version == d.Version {
		if err := a.Policies.History.DropDraft(ctx, t.Org.ID); err != nil {
			return err
		}
	}
	setETag(c, r.Number)
	return c.JSON(http.StatusOK, summary(r))
}

// fit refuses a policy that has errors, or whose tests fail.
func (a *api) fit(ctx context.Context, s policy.Source, tests bool) error {
	const op = "admin.fit"
	if !tests {
		r, err := a.Policies.Author.Check(ctx, s)
		if err != nil {
			return err
		}
		return unfit(op, r.OK, r.Diagnostics)
	}
	r, err := a.Policies.Author.Test(ctx, s)
	if err != nil {
		return err
	}
	if err := unfit(op, r.OK || r.Failed > 0, r.Diagnostics); err != nil {
		return err
	}
	for _, t := range r.Tests {
		if !t.Pass {
			return fault.New(fault.Unprocessable, op, "policy_tests_failed", fmt.Sprintf("%d of %d tests fail, the first is %s (%s:%d). A policy goes live when all of them pass.", r.Failed, len(r.Tests), t.Name, t.File, t.Line)).At("/source/files")
		}
	}
	return nil
}

func unfit(op string, ok bool, found []policy.Diagnostic) error {
	i := slices.IndexFunc(found, func(d policy.Diagnostic) bool { return d.Severity == "error" })
	if ok && i < 0 {
		return nil
	}
	why := "it could not be tested"
	if i >= 0 {
		why = found[i].Message
		if found[i].File != "" {
			why = fmt.Sprintf("%s:%d: %s", found[i].File, found[i].Line, why)
		}
	}
	return fault.New(fault.Unprocessable, op, "policy_invalid", "The policy has errors and cannot go live. "+why).At("/source/files")
}

func (a *api) publish(c echo.Context, t tenancy.Tenant, expect int64, r policy.Revision, action string) (policy.Revision, error) {
	r.Author, r.CreatedAt = t.User, a.Clock()
	r, err := a.Settings.Publish(c.Request().Context(), t.Org.ID, expect, r)
	if err != nil {
		return r, err
	}
	return r, a.note(c, t, action, map[string]any{"revision": r.Number, "sha256": r.SHA256, "note": r.Note, "restores": r.Restores})
}

// summary is a revision without its text.
func summary(r policy.Revision) map[string]any {
	return map[string]any{"revision": r.Number, "sha256": r.SHA256, "author": r.Author, "note": r.Note, "restores": r.Restores, "createdAt": r.CreatedAt}
}

// rollbackPolicy publishes an old revision again, as a new one.
func (a *api) rollbackPolicy(c echo.Context, t tenancy.Tenant) error {
	ctx := c.Request().Context()
	in, err := readAsk(c, "revision", "note", "base")
	if err != nil {
		return err
	}
	if in.Revision < 1 {
		return fault.Invalidf("admin.rollbackPolicy", "/revision", "revision is the number of the revision to bring back.")
	}
	old, err := a.Policies.Revisions.Revision(ctx, t.Org.ID, in.Revision)
	if err != nil {
		return err
	}
	live, err := a.Policies.Revisions.Active(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	expect := live.Number
	if in.Base != nil {
		expect = *in.Base
	}
	// What was published once may break rules that are newer than it; its tests are not run, because a rollback is for emergencies.
	if err := a.fit(ctx, old.Source, false); err != nil {
		return err
	}
	r, err := a.publish(c, t, expect, policy.Revision{Source: old.Source, Note: in.Note, Restores: old.Number}, "policy.rollback")
	if err != nil {
		return err
	}
	setETag(c, r.Number)
	return c.JSON(http.StatusOK, summary(r))
}

func (a *api) policyRevisions(c echo.Context, t tenancy.Tenant) error {
	before, err := number(c, "before", 0, 0)
	if err != nil {
		return err
	}
	limit, err := number(c, "limit", revisionsPage, 200)
	if err != nil {
		return err
	}
	list, err := a.Policies.History.Revisions(c.Request().Context(), t.Org.ID, before, int(limit))
	if err != nil {
		return err
	}
	out, next := make([]map[string]any, len(list)), int64(0)
	for i, r := range list {
		out[i] = summary(r)
	}
	if len(list) == int(limit) && list[len(list)-1].Number > 1 {
		next = list[len(list)-1].Number
	}
	return c.JSON(http.StatusOK, map[string]any{"revisions": out, "next": next})
}

// number reads a whole number of the query; most 0 is no bound.
func number(c echo.Context, name string, otherwise, most int64) (int64, error) {
	v := c.QueryParam(name)
	if v == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || most > 0 && (n < 1 || n > most) {
		return 0, fault.Invalidf("admin.number", "/"+name, "%s must be a whole number in its range.", name)
	}
	return n, nil
}

func (a *api) policyRevision(c echo.Context, t tenancy.Tenant) error {
	n, err := strconv.ParseInt(c.Param("number"), 10, 64)
	if err != nil || n < 1 {
		return fault.New(fault.NotFound, "admin.policyRevision", "not_found", "There is no such revision of the policy.")
	}
	r, err := a.Policies.Revisions.Revision(c.Request().Context(), t.Org.ID, n)
	if err != nil {
		return err
	}
	setETag(c, r.Number)
	return c.JSON(http.StatusOK, r)
}

func (a *api) activePolicy(c echo.Context, t tenancy.Tenant) error {
	r, err := a.Policies.Revisions.Active(c.Request().Context(), t.Org.ID)
	if err != nil {
		return err
	}
	setETag(c, r.Number)
	return c.JSON(http.StatusOK, r)
}

// policyStatus says where the live revision is in force. There is one replica, which is this one.
func (a *api) policyStatus(c echo.Context, t tenancy.Tenant) error {
	live, err := a.Policies.Revisions.Active(c.Request().Context(), t.Org.ID)
	if err != nil {
		return err
	}
	_, served, err := a.Settings.Settings(c.Request().Context(), t.Org.ID)
	if err != nil {
		return err
	}
	st := a.Policies.State(t.Org.ID)
	on := 0
	if served == live.Number && st.State != "stale" && st.State != "unavailable" {
		on = 1
	}
	return c.JSON(http.StatusOK, map[string]any{
		"revision": live.Number, "sha256": live.SHA256, "seen": on, "total": 1, "sentence": fmt.Sprintf("live on %d of 1", on), "replicas": []PolicyState{st},
	})
}

// exportPolicy is a revision, the live one unless ?revision= says otherwise, as a bundle of OPA.
func (a *api) exportPolicy(c echo.Context, t tenancy.Tenant) error {
	ctx := c.Request().Context()
	n, err := number(c, "revision", 0, 0)
	if err != nil {
		return err
	}
	var r policy.Revision
	if n == 0 {
		r, err = a.Policies.Revisions.Active(ctx, t.Org.ID)
	} else {
		r, err = a.Policies.Revisions.Revision(ctx, t.Org.ID, n)
	}
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := a.Policies.Author.Bundle(&b, r.Source, strconv.FormatInt(r.Number, 10)); err != nil {
		return err
	}
	c.Response().Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="policy-%d.tar.gz"`, r.Number))
	return c.Blob(http.StatusOK, "application/gzip", b.Bytes())
}

// policyDecisions reads the decision log, newest first: ?from=&to=&action=&allow=&user=&capability=&before=&limit=.
func (a *api) policyDecisions(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.policyDecisions"
	zone, err := time.LoadLocation(t.Org.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	q := policy.DecisionQuery{Action: c.QueryParam("action"), User: tenancy.UserID(c.QueryParam("user")), Capability: c.QueryParam("capability"), Before: c.QueryParam("before")}
	if q.From, err = when(c, "from", zone, time.Time{}); err != nil {
		return err
	}
	if q.To, err = when(c, "to", zone, time.Time{}); err != nil {
		return err
	}
	if q.Action != "" && q.Action != "chat" && q.Action != "tool" {
		return fault.Invalidf(op, "/action", "action is chat or tool.")
	}
	if v := c.QueryParam("allow"); v != "" {
		allow, err := strconv.ParseBool(v)
		if err != nil {
			return fault.Invalidf(op, "/allow", "allow is true or false.")
		}
		q.Allow = &allow
	}
	limit, err := number(c, "limit", 100, 1000)
	if err != nil {
		return err
	}
	q.Limit = int(limit)
	list, next, err := a.Policies.Decisions.Decisions(c.Request().Context(), t.Org.ID, q)
	if err != nil {
		return err
	}
	if list == nil {
		list = []policy.LoggedDecision{}
	}
	return c.JSON(http.StatusOK, map[string]any{"decisions": list, "next": next})
}

func (a *api) policyTemplates(c echo.Context, _ tenancy.Tenant) error {
	return c.JSON(http.StatusOK, map[string]any{"templates": a.Policies.Templates})
}

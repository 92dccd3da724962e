package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
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
	policy.DecisionFinder
}

// PolicyShadower is this replica's part in trying drafts.
type PolicyShadower interface {
	// Refresh looks now for drafts that are to be tried.
	Refresh(ctx context.Context)
	// Flush writes down what was counted for an organisation.
	Flush(ctx context.Context, org tenancy.OrgID) error
}

// WaitingRuns lists the runs that wait for a person's decision, by id.
type WaitingRuns interface {
	Waiting(ctx context.Context, org tenancy.OrgID, at time.Time) ([]string, error)
}

// PolicyConfig is what the routes of policies need.
type PolicyConfig struct {
	Author    PolicyAuthor
	Knowing   func(tenancy.OrgID) PolicyAuthor // Author that knows the names an organisation has; nil: Author
	Revisions PolicyRevisions
	History   policy.HistoryStore
	Decisions PolicyDecisions
	Waiting   WaitingRuns // nil: a replay says nothing of them
	Approvals policy.ApprovalStore
	Requests  policy.RequestStore
	Shadows   policy.ShadowStore
	Shadower  PolicyShadower
	Replicas  policy.ReplicaStore
	Replica   *policy.Replica // this process
	// Prepare makes a published revision ready in this process and says how it stands.
	Prepare   func(ctx context.Context, org tenancy.OrgID, r policy.Revision) policy.Standing
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
	g.GET("/draft/approvals", a.admins(a.draftApprovals))
	g.POST("/draft/approvals", a.admins(a.approveDraft))
	g.GET("/shadow", a.admins(a.shadowState))
	g.POST("/shadow", a.admins(a.startShadow))
	g.DELETE("/shadow", a.admins(a.endShadow))
	g.POST("/publish", a.admins(a.publishPolicy))
	g.POST("/rollback", a.admins(a.rollbackPolicy))
	g.GET("/revisions", a.admins(a.policyRevisions))
	g.GET("/revisions/:number", a.admins(a.policyRevision))
	g.GET("/active", a.admins(a.activePolicy))
	g.GET("/status", a.admins(a.policyStatus))
	g.GET("/export", a.admins(a.exportPolicy))
	g.GET("/decisions", a.admins(a.policyDecisions))
	g.GET("/decisions/export", a.admins(a.exportDecisions))
	g.GET("/decisions/:id", a.admins(a.policyDecision))
	g.GET("/templates", a.admins(a.policyTemplates))
}

// MountSchemas registers the documents of the policy contract, which everybody may read, on a group at /schemas/policy/v1.
func MountSchemas(g *echo.Group, schemas map[string][]byte) {
	for name, doc := range schemas {
		g.GET("/"+name, func(c echo.Context) error {
			c.Response().Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", schemaMaxAge))
			c.Response().Header().Set("Access-Control-Allow-Origin", "*") // public, and editors load it from anywhere
			return taggedBlob(c, hashOf(doc), "application/schema+json", doc)
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
			return fault.Invalidf(op, pointer+"/"+strings.ReplaceAll(wrong.Field, ".", "/"), "This has to be %s.", jsonKind(wrong.Type))
		}
		return fault.Invalidf(op, pointer, "This is not valid JSON.")
	}
	return nil
}

// jsonKind says in words of JSON what a member has to be.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return jsonKind(t.Elem())
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
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

// ifMatch reads the number out of If-Match, which is an ETag of versioned or the number alone; absent is -1.
func ifMatch(c echo.Context) (int64, error) {
	m := c.Request().Header.Get("If-Match")
	if m == "" {
		return -1, nil
	}
	digits, _, _ := strings.Cut(strings.Trim(m, `"`), "-")
	n, err := strconv.ParseInt(digits, 10, 64)
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
	return versioned(c, d.Version, d)
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
	saved, err := a.Policies.History.SaveDraft(lasting(c), t.Org.ID, expect, d)
	if fault.Is(err, fault.Conflict) {
		return stale(err)
	}
	if err != nil {
		return err
	}
	if err := a.note(c, t, "policy.draft.save", map[string]any{"version": saved.Version, "base": saved.Base}); err != nil {
		return err
	}
	return versioned(c, saved.Version, saved)
}

func (a *api) dropPolicyDraft(c echo.Context, t tenancy.Tenant) error {
	if err := a.Policies.History.DropDraft(lasting(c), t.Org.ID); err != nil {
		return err
	}
	if err := a.note(c, t, "policy.draft.drop", map[string]any{}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
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
	return told(c, map[string]any{"revisions": out, "next": next})
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
	return versioned(c, r.Number, r)
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
	return taggedBlob(c, strconv.FormatInt(r.Number, 10)+"-"+hashOf(b.Bytes()), "application/gzip", b.Bytes())
}

func (a *api) policyTemplates(c echo.Context, _ tenancy.Tenant) error {
	return told(c, map[string]any{"templates": a.Policies.Templates})
}

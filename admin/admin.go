// Package admin owns the JSON API of the console: what organisation admins read and change.
//
// It refuses to know SQL and the turn. Who is calling, and the shape of errors, it gets from the server it is mounted on.
//
// Invariants: every route checks the role in the organisation of its path before anything else; every change leaves an audit row
// with both identities; a key is never readable.
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
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// Auditor keeps the record of administrative acts.
type Auditor interface {
	Append(ctx context.Context, org tenancy.OrgID, e tenancy.AuditEntry) error
	List(ctx context.Context, org tenancy.OrgID, before string, limit int) ([]tenancy.AuditEntry, string, error)
	Rows(ctx context.Context, org tenancy.OrgID, each func(tenancy.AuditRow) error) error
	Verify(ctx context.Context, org tenancy.OrgID) (tenancy.AuditCheck, int64, tenancy.AuditHash, error)
}

// Known names what policies may speak of, for warnings about globs that match nothing and for lists.
type Known interface {
	Capabilities(org tenancy.OrgID) []string
	Models() []string
	Registered(org tenancy.OrgID) []Registered // sorted by name
	HasProvider(name string) bool
}

// Config is everything the API needs.
type Config struct {
	Principal func(echo.Context) (tenancy.Principal, error)
	Tenants   *tenancy.Resolver
	Settings  *policy.Book
	Keys      *keyring.Keyring
	Usage     UsageConfig
	Exports   ExportConfig
	Audit     Auditor
	Known     Known
	Clock     func() time.Time
	Policies  PolicyConfig
	Redaction RedactionConfig
	Budgets   BudgetConfig
	Webhooks  WebhookConfig
	Tokens    TokenKeeper
	Apps      Apps // nil: no app registers over HTTP
}

type api struct{ Config }

// Mount registers the routes on a group at /api.
func Mount(g *echo.Group, c Config) {
	a := &api{c}
	g.GET("/me", a.me)
	org := g.Group("/orgs/:org")
	org.GET("/settings", a.admins(a.settings))
	org.PATCH("/settings", a.admins(a.patchSettings))
	org.GET("/keys", a.admins(a.listKeys))
	org.POST("/keys", a.admins(a.saveKey))
	org.DELETE("/keys/:id", a.admins(a.revokeKey))
	org.GET("/audit", a.admins(a.audit))
	org.GET("/audit/export", a.admins(a.exportAudit))
	org.GET("/audit/verify", a.admins(a.verifyAudit))
	org.GET("/capabilities", a.admins(a.capabilities))
	a.mountPolicy(org)
	a.mountRedaction(org)
	a.mountBudgets(org)
	a.mountUsage(g, org)
	a.mountExports(g, org)
	a.mountWebhooks(org)
	a.mountApps(g)
	a.mountTokens(g, org)
}

// admins lets only admins of the path's organisation through: its own, or a superuser who says so with X-Act-As-Org.
func (a *api) admins(next func(echo.Context, tenancy.Tenant) error) echo.HandlerFunc {
	const op = "admin"
	return func(c echo.Context) error {
		who, err := a.Principal(c)
		if err != nil {
			return err
		}
		org, err := tenancy.ParseOrgID(c.Param("org"))
		if err != nil {
			return fault.New(fault.NotFound, op, "org_unknown", "There is no such organisation here. Use its e-mail domain, such as acme.example.")
		}
		hint := tenancy.Hint{Org: org.String()}
		if act := c.Request().Header.Get("X-Act-As-Org"); act != "" {
			if act != org.String() {
				return fault.Invalidf(op, "", "X-Act-As-Org names another organisation than the path.")
			}
			hint = tenancy.Hint{Org: c.Request().Header.Get("X-Org-Id"), ActAs: act}
		}
		t, err := a.Tenants.Resolve(c.Request().Context(), who, hint)
		if err != nil {
			return err
		}
		if t.Org.ID != org {
			return fault.New(fault.Forbidden, op, "org_forbidden", "You do not belong to this organisation.")
		}
		if t.Tier() < tenancy.TierAdmin {
			return fault.New(fault.Forbidden, op, "role_required", "This needs the role org_admin or org_owner. Ask an administrator of your organisation.")
		}
		return next(c, t)
	}
}

// lasting is the context of a change and its audit row: a caller who hangs up in between must not leave the one without the other. The
// stores bound how long a write may take.
func lasting(c echo.Context) context.Context { return context.WithoutCancel(c.Request().Context()) }

// note writes an audit row before the change is answered; a change that cannot be recorded is reported as failed.
func (a *api) note(c echo.Context, t tenancy.Tenant, action string, detail any) error {
	return a.noteChange(c, t, action, detail, nil, nil)
}

// noteChange is note with what was there before and what is there now, both without secrets; nil: nothing.
func (a *api) noteChange(c echo.Context, t tenancy.Tenant, action string, detail, before, after any) error {
	e := tenancy.AuditEntry{Org: t.Org.ID, Actor: t.User, HomeOrg: t.HomeOrg, Action: action, At: a.Clock()}
	for from, to := range map[*any]*json.RawMessage{&detail: &e.Detail, &before: &e.Before, &after: &e.After} {
		if *from == nil {
			continue
		}
		raw, err := json.Marshal(*from)
		if err != nil {
			return err
		}
		*to = raw
	}
	if t.Token != nil {
		e.Token = t.Token.ID
	}
	return a.Audit.Append(lasting(c), t.Org.ID, e)
}

func (a *api) me(c echo.Context) error {
	who, err := a.Principal(c)
	if err != nil {
		return err
	}
	type org struct {
		ID   tenancy.OrgID `json:"id"`
		Role tenancy.Role  `json:"role"`
	}
	orgs, super := []org{}, false
	for _, m := range who.Memberships {
		orgs = append(orgs, org{m.Org, m.Role})
		super = super || m.Role == tenancy.Superuser
	}
	return c.JSON(http.StatusOK, map[string]any{"id": who.User, "email": who.Email, "orgs": orgs, "mayActAs": super, "expiresAt": who.ExpiresAt})
}

// settingsView is settings as read and as answered after a change.
type settingsView struct {
	Settings policy.Settings `json:"settings"`
	Revision int64           `json:"revision"`
	Warnings []string        `json:"warnings"`
}

func (a *api) viewSettings(c echo.Context, org tenancy.OrgID, s policy.Settings, rev int64) error {
	warnings := a.warnings(org, s)
	if warnings == nil {
		warnings = []string{}
	}
	c.Response().Header().Set("ETag", `"`+strconv.FormatInt(rev, 10)+`"`)
	return c.JSON(http.StatusOK, settingsView{s, rev, warnings})
}

func (a *api) settings(c echo.Context, t tenancy.Tenant) error {
	s, rev, err := a.Settings.Settings(c.Request().Context(), t.Org.ID)
	if err != nil {
		return err
	}
	return a.viewSettings(c, t.Org.ID, s, rev)
}

// patchSettings applies an RFC 7396 merge patch. If-Match, when sent, must name the current revision; the answer carries the revision
// that is live from the next request on.
func (a *api) patchSettings(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.patchSettings"
	patch, err := body(c)
	if err != nil {
		return err
	}
	expect := int64(-1)
	if m := c.Request().Header.Get("If-Match"); m != "" {
		if expect, err = strconv.ParseInt(strings.Trim(m, `"`), 10, 64); err != nil || expect < 0 {
			return fault.Invalidf(op, "", "If-Match must be the ETag of a GET of these settings.")
		}
	}
	if err := a.checkRedaction(c.Request().Context(), t.Org.ID, patch); err != nil {
		return err
	}
	if expect, err = a.mayPatch(c.Request().Context(), t.Org.ID, patch, expect); err != nil {
		return err
	}
	was, _, err := a.Settings.Settings(c.Request().Context(), t.Org.ID)
	if err != nil {
		return err
	}
	s, rev, err := a.Settings.Patch(lasting(c), t.Org.ID, patch, expect, t.User)
	if err != nil {
		return err
	}
	before, after, err := touched(patch, was, s)
	if err != nil {
		return err
	}
	if err := a.noteChange(c, t, "settings.patch", map[string]any{"revision": rev, "patch": json.RawMessage(patch)}, before, after); err != nil {
		return err
	}
	return a.viewSettings(c, t.Org.ID, s, rev)
}

// touched picks the members a patch names out of the settings before and after it.
func touched(patch []byte, was, is policy.Settings) (before, after map[string]json.RawMessage, err error) {
	var named map[string]json.RawMessage
	if err := json.Unmarshal(patch, &named); err != nil {
		return nil, nil, fault.From(err)
	}
	pick := func(s policy.Settings) (map[string]json.RawMessage, error) {
		raw, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		all, out := map[string]json.RawMessage{}, map[string]json.RawMessage{}
		if err := json.Unmarshal(raw, &all); err != nil {
			return nil, err
		}
		for name := range named {
			if v, ok := all[name]; ok {
				out[name] = v
			}
		}
		return out, nil
	}
	if before, err = pick(was); err != nil {
		return nil, nil, err
	}
	after, err = pick(is)
	return before, after, err
}

// mayPatch refuses a patch of the settings that needs a second admin's approval, and returns the revision it looked at: the rule that
// was in force then has to be in force still.
func (a *api) mayPatch(ctx context.Context, org tenancy.OrgID, patch []byte, expect int64) (int64, error) {
	live, err := a.Policies.Revisions.Active(ctx, org)
	if err != nil || !live.Source.Settings.ApprovalRequiredToWiden || expect >= 0 && expect != live.Number {
		return expect, err
	}
	next, err := policy.PatchSettings(live.Source.Settings, patch)
	if err != nil {
		return expect, err
	}
	if len(policy.WidenedSettings(live.Source.Settings, next)) == 0 {
		return live.Number, nil
	}
	wider, err := a.widens(ctx, org, live.Source, policy.Source{Settings: next, Files: live.Source.Files})
	if err != nil {
		return expect, err
	}
	return expect, approvalNeeded("admin.mayPatch", org, wider, "This change may allow more than now, and a second admin has to approve that. Save it as the policy's draft, have it approved, and publish it.")
}

func body(c echo.Context) ([]byte, error) { return bodyUpTo(c, 1<<20) }

// bodyUpTo reads a body of at most limit bytes, in whole MiB.
func bodyUpTo(c echo.Context, limit int64) ([]byte, error) {
	if enc := c.Request().Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, fault.Invalidf("admin.body", "", "Content-Encoding is not accepted here. Send the body uncompressed.")
	}
	b, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, limit))
	if err != nil {
		return nil, fault.New(fault.TooLarge, "admin.body", "body_too_large", fmt.Sprintf("The body is larger than %d MiB.", limit>>20))
	}
	if len(strings.TrimSpace(string(b))) == 0 {
		return nil, fault.Invalidf("admin.body", "", "The body is empty. Send a JSON object.")
	}
	return b, nil
}

// texts reads one JSON object whose members are strings, all known and each there at most once. Errors name the member and repeat no value:
// it may be a key.
func texts(raw []byte, known ...string) (map[string]string, error) {
	const op = "admin.texts"
	out := map[string]string{}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		if !json.Valid(raw) {
			return nil, fault.Invalidf(op, "", "The body is not valid JSON; send one object.")
		}
		return nil, fault.Invalidf(op, "", "The body must be a JSON object with the members %s.", strings.Join(known, ", "))
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, fault.Invalidf(op, "", "The body is not valid JSON; send one object.")
		}
		name, _ := t.(string)
		at := "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		if !slices.Contains(known, name) {
			return nil, fault.Invalidf(op, at, "There is no member %q here. Known members: %s.", name, strings.Join(known, ", "))
		}
		if _, dup := out[name]; dup {
			return nil, fault.Invalidf(op, at, "%s stands twice; send it once.", name)
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, fault.Invalidf(op, at, "The body is not valid JSON; send one object.")
		}
		var text string
		if len(v) == 0 || v[0] != '"' || !utf8.Valid(v) || json.Unmarshal(v, &text) != nil {
			return nil, fault.Invalidf(op, at, "%s must be a string of valid UTF-8.", name)
		}
		out[name] = text
	}
	if _, err := d.Token(); err != nil {
		return nil, fault.Invalidf(op, "", "The body is not valid JSON; send one object.")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fault.Invalidf(op, "", "There is something after the JSON object. Send one object only.")
	}
	return out, nil
}

// when reads a moment: RFC 3339, or a day of the organisation's zone.
func when(c echo.Context, name string, zone *time.Location, def time.Time) (time.Time, error) {
	v := c.QueryParam(name)
	if v == "" {
		return def, nil
	}
	if t, err := time.Parse(time.RFC3339, v); err == nil {
		return t, nil
	}
	if t, err := time.ParseInLocation("2006-01-02", v, zone); err == nil {
		return t, nil
	}
	return time.Time{}, fault.Invalidf("admin.usage", "/"+name, "%s must be a day such as 2026-11-30 or a moment such as 2026-11-30T12:00:00Z.", name)
}

type keyView struct {
	ID         string     `json:"id"`
	Provider   string     `json:"provider"`
	Label      string     `json:"label"`
	Hint       string     `json:"hint"`
	LastFour   string     `json:"lastFour"`
	CreatedAt  time.Time  `json:"createdAt"`
	LastUsedAt *time.Time `json:"lastUsedAt"`
	RevokedAt  *time.Time `json:"revokedAt"`
}

func view(k keyring.Key) keyView {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	return keyView{k.ID, k.Provider, k.Label, k.Hint, k.LastFour, k.CreatedAt, at(k.LastUsedAt), at(k.RevokedAt)}
}

func (a *api) listKeys(c echo.Context, t tenancy.Tenant) error {
	keys, err := a.Keys.List(c.Request().Context(), keyring.Owner{Org: t.Org.ID})
	if err != nil {
		return err
	}
	out := make([]keyView, len(keys))
	for i, k := range keys {
		out[i] = view(k)
	}
	return c.JSON(http.StatusOK, map[string]any{"keys": out})
}

func (a *api) saveKey(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.saveKey"
	raw, err := body(c)
	if err != nil {
		return err
	}
	in, err := texts(raw, "provider", "key", "label")
	if err != nil {
		return err
	}
	if !a.Known.HasProvider(in["provider"]) {
		return fault.Invalidf(op, "/provider", "There is no such provider here.")
	}
	k, err := a.Keys.Save(lasting(c), keyring.Owner{Org: t.Org.ID}, in["provider"], in["label"], keyring.NewSecret(in["key"]))
	if err != nil {
		return err
	}
	if err := a.note(c, t, "key.add", map[string]string{"id": k.ID, "provider": k.Provider, "hint": k.Hint}); err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, view(k))
}

func (a *api) revokeKey(c echo.Context, t tenancy.Tenant) error {
	if err := a.Keys.Revoke(lasting(c), keyring.Owner{Org: t.Org.ID}, c.Param("id")); err != nil {
		return err
	}
	if err := a.note(c, t, "key.revoke", map[string]string{"id": c.Param("id")}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (a *api) audit(c echo.Context, t tenancy.Tenant) error {
	list, next, err := a.Audit.List(c.Request().Context(), t.Org.ID, c.QueryParam("before"), 100)
	if err != nil {
		return err
	}
	if list == nil {
		list = []tenancy.AuditEntry{}
	}
	return c.JSON(http.StatusOK, map[string]any{"entries": list, "next": next})
}

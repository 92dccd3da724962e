package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// BudgetEditor changes budgets and lists what alerts they gave.
type BudgetEditor interface {
	PutBudget(ctx context.Context, org tenancy.OrgID, b billing.Budget, expect int64) (billing.Budget, error)
	DeleteBudget(ctx context.Context, org tenancy.OrgID, id string, expect int64) error
	RaiseBudget(ctx context.Context, org tenancy.OrgID, id string, r billing.Raise, expect int64) (billing.Budget, error)
	Alerts(ctx context.Context, org tenancy.OrgID, limit int) ([]billing.Alert, error)
}

// BudgetReader tells how budgets stand, and is told when they changed.
type BudgetReader interface {
	Chain(ctx context.Context, org tenancy.OrgID, s billing.Spender, all bool) ([]billing.Effective, error)
	Forget(org tenancy.OrgID)
}

// BudgetConfig is what the routes of budgets need.
type BudgetConfig struct {
	Editor BudgetEditor
	Reader BudgetReader
}

// maxRaise is how long a cap may be raised at once.
const maxRaise = 366 * 24 * time.Hour

func (a *api) mountBudgets(org *echo.Group) {
	org.GET("/budgets", a.admins(a.listBudgets))
	org.GET("/budgets/effective", a.admins(a.effectiveBudgets))
	org.PUT("/budgets/:id", a.admins(a.putBudget))
	org.DELETE("/budgets/:id", a.admins(a.deleteBudget))
	org.POST("/budgets/:id/raise", a.admins(a.raiseBudget))
}

type raiseView struct {
	Amount string         `json:"amount"`
	Until  time.Time      `json:"until"`
	Reason string         `json:"reason"`
	By     tenancy.UserID `json:"by"`
	Active bool           `json:"active"`
}

// budgetView is a budget as read. Amounts are decimal strings in its unit.
type budgetView struct {
	ID        string               `json:"id"`
	Scope     billing.Scope        `json:"scope"`
	Unit      billing.Unit         `json:"unit"`
	Cap       string               `json:"cap"`
	Mode      billing.Mode         `json:"mode"`
	Window    billing.Window       `json:"window"`
	TimeZone  string               `json:"timeZone"`
	Alerts    []int                `json:"alerts"`
	Unpriced  billing.UnpricedRule `json:"unpriced"`
	CountBYOK bool                 `json:"countByok"`
	Raise     *raiseView           `json:"raise"`
	Version   int64                `json:"version"`
	By        tenancy.UserID       `json:"by"`
	At        time.Time            `json:"at"`
	State     *budgetState         `json:"state,omitempty"`
}

// budgetState is how a budget stands in its window now.
type budgetState struct {
	EffectiveCap string     `json:"effectiveCap"`
	Spent        string     `json:"spent"`
	Reserved     string     `json:"reserved"`
	Left         string     `json:"left"` // below zero when more was spent than the cap is now
	WindowStart  time.Time  `json:"windowStart"`
	ResetsAt     *time.Time `json:"resetsAt"` // null: never
}

func (a *api) budgetView(b billing.Budget) budgetView {
	v := budgetView{ID: b.ID, Scope: b.Scope, Unit: b.Unit, Cap: b.Unit.Format(b.Cap), Mode: b.Mode, Window: b.Window, TimeZone: b.Zone, Alerts: append([]int{}, b.Alerts...),
		Unpriced: b.Unpriced, CountBYOK: b.CountBYOK, Version: b.Version, By: b.By, At: b.At}
	if b.Raise.Amount > 0 {
		v.Raise = &raiseView{b.Unit.Format(b.Raise.Amount), b.Raise.Until, b.Raise.Reason, b.Raise.By, a.Clock().Before(b.Raise.Until)}
	}
	return v
}

func (a *api) effectiveView(e billing.Effective) budgetView {
	v, u := a.budgetView(e.Budget), e.Budget.Unit
	v.State = &budgetState{EffectiveCap: u.Format(e.State.Cap), Spent: u.Format(e.State.Spent), Reserved: u.Format(e.State.Reserved), Left: u.Format(e.State.Cap - e.State.Spent - e.State.Reserved), WindowStart: e.Span.From}
	if !e.Span.End.IsZero() {
		v.State.ResetsAt = &e.Span.End
	}
	return v
}

// tagged answers a document with a strong ETag of its bytes.
func tagged(c echo.Context, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(raw)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	c.Response().Header().Set("ETag", tag)
	if c.Request().Header.Get("If-None-Match") == tag {
		return c.NoContent(http.StatusNotModified)
	}
	return c.JSONBlob(http.StatusOK, raw)
}

// listBudgets answers every budget with how it stands now, and the newest alerts.
func (a *api) listBudgets(c echo.Context, t tenancy.Tenant) error {
	list, err := a.Budgets.Reader.Chain(c.Request().Context(), t.Org.ID, billing.Spender{}, true)
	if err != nil {
		return err
	}
	alerts, err := a.Budgets.Editor.Alerts(c.Request().Context(), t.Org.ID, 100)
	if err != nil {
		return err
	}
	views := make([]budgetView, len(list))
	for i, e := range list {
		views[i] = a.effectiveView(e)
	}
	type alert struct {
		billing.Alert
		Spent string `json:"spent"`
		Cap   string `json:"cap"`
	}
	fired := make([]alert, len(alerts))
	for i, x := range alerts {
		fired[i] = alert{x, x.Unit.Format(x.Spent), x.Unit.Format(x.Cap)}
	}
	return tagged(c, map[string]any{"org": t.Org.ID, "budgets": views, "alerts": fired})
}

// effectiveBudgets answers which budgets count what somebody does, and which of them binds: the one with the least left of its cap.
func (a *api) effectiveBudgets(c echo.Context, t tenancy.Tenant) error {
	who := billing.Spender{User: tenancy.UserID(c.QueryParam("person")), Project: c.QueryParam("project"), KeyID: c.QueryParam("key"), Token: c.QueryParam("token"), BYOK: c.QueryParam("byok") == "true"}
	list, err := a.Budgets.Reader.Chain(c.Request().Context(), t.Org.ID, who, false)
	if err != nil {
		return err
	}
	views := make([]budgetView, len(list))
	var binding *string
	for i, e := range list {
		views[i] = a.effectiveView(e)
		if binding == nil && e.Budget.Mode != billing.ModeWarn {
			binding = &views[i].ID
		}
	}
	return tagged(c, map[string]any{"org": t.Org.ID, "binding": binding, "chain": views})
}

// budgetInput is a budget as sent.
type budgetInput struct {
	Scope     billing.Scope        `json:"scope"`
	Unit      billing.Unit         `json:"unit"`
	Cap       string               `json:"cap"`
	Mode      billing.Mode         `json:"mode"`
	Window    billing.Window       `json:"window"`
	Alerts    *[]int               `json:"alerts"`
	Unpriced  billing.UnpricedRule `json:"unpriced"`
	CountBYOK *bool                `json:"countByok"`
}

// putBudget makes a budget, or with If-Match replaces the version it names. What is left out has its default: the whole organisation, USD a
// month, refusing, alerts at 50, 80 and 100 percent, people's own keys counted in tokens only.
func (a *api) putBudget(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.putBudget"
	raw, err := body(c)
	if err != nil {
		return err
	}
	var in budgetInput
	if err := decodeObject(op, raw, "", &in, "scope", "unit", "cap", "mode", "window", "alerts", "unpriced", "countByok"); err != nil {
		return err
	}
	expect, err := ifMatch(c)
	if err != nil {
		return err
	}
	b := billing.Budget{ID: c.Param("id"), Scope: in.Scope, Unit: in.Unit, Mode: in.Mode, Window: in.Window, Unpriced: in.Unpriced, Zone: t.Org.TimeZone, Alerts: []int{50, 80, 100}, By: t.User, At: a.Clock()}
	fill(&b.Scope.Kind, billing.ScopeOrg)
	fill(&b.Unit, billing.UnitUSD)
	fill(&b.Mode, billing.ModeRefuse)
	fill(&b.Window.Kind, billing.WindowMonth)
	fill(&b.Unpriced, billing.UnpricedDeny)
	if b.CountBYOK = b.Unit == billing.UnitTokens; in.CountBYOK != nil {
		b.CountBYOK = *in.CountBYOK
	}
	if in.Alerts != nil {
		b.Alerts = *in.Alerts
	}
	if err := b.Validate(); err != nil { // the unit first: the cap is read in it
		return err
	}
	if b.Cap, err = b.Unit.Parse(in.Cap); err != nil {
		return fault.From(err).At("/cap")
	}
	saved, err := a.Budgets.Editor.PutBudget(lasting(c), t.Org.ID, b, max(expect, 0))
	if err != nil {
		return budgetConflict(err, expect)
	}
	a.Budgets.Reader.Forget(t.Org.ID)
	view := a.budgetView(saved)
	if err := a.note(c, t, "budget.put", view); err != nil {
		return err
	}
	setETag(c, saved.Version)
	status := http.StatusOK
	if saved.Version == 1 {
		status = http.StatusCreated
	}
	return c.JSON(status, view)
}

func fill[T ~string](p *T, v T) {
	if *p == "" {
		*p = v
	}
}

// budgetConflict tells who named a version that it is another one now, and who named none that the budget exists.
func budgetConflict(err error, expect int64) error {
	if fault.From(err).Code != "budget_changed" {
		return err
	}
	if expect < 0 {
		return fault.Wrap(fault.Conflict, "admin.putBudget", "budget_exists", "There is a budget of this name. Send If-Match with its version to replace it.", err)
	}
	return fault.Wrap(fault.Conflict, "admin.putBudget", "precondition_failed", fault.From(err).Public, err)
}

func (a *api) deleteBudget(c echo.Context, t tenancy.Tenant) error {
	expect, err := ifMatch(c)
	if err != nil {
		return err
	}
	if err := a.Budgets.Editor.DeleteBudget(lasting(c), t.Org.ID, c.Param("id"), expect); err != nil {
		return budgetConflict(err, expect)
	}
	a.Budgets.Reader.Forget(t.Org.ID)
	if err := a.note(c, t, "budget.delete", map[string]string{"id": c.Param("id")}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// raiseBudget raises a cap until a moment, for a reason; the amount "0" ends a raise.
func (a *api) raiseBudget(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.raiseBudget"
	raw, err := body(c)
	if err != nil {
		return err
	}
	in, err := texts(raw, "amount", "until", "reason")
	if err != nil {
		return err
	}
	expect, err := ifMatch(c)
	if err != nil {
		return err
	}
	chain, err := a.Budgets.Reader.Chain(c.Request().Context(), t.Org.ID, billing.Spender{}, true)
	if err != nil {
		return err
	}
	unit := billing.Unit("")
	for _, e := range chain {
		if e.Budget.ID == c.Param("id") {
			unit = e.Budget.Unit
		}
	}
	if unit == "" {
		return fault.New(fault.NotFound, op, "budget_not_found", "There is no such budget in this organisation.")
	}
	var r billing.Raise
	amount, err := unit.Parse(in["amount"])
	if err != nil {
		return fault.From(err).At("/amount")
	}
	if amount > 0 {
		r = billing.Raise{Amount: amount, Reason: in["reason"], By: t.User}
		zone, err := time.LoadLocation(t.Org.TimeZone)
		if err != nil {
			zone = time.UTC
		}
		if r.Until, err = moment(in["until"], zone); err != nil {
			return err
		}
		if now := a.Clock(); !r.Until.After(now) || r.Until.Sub(now) > maxRaise {
			return fault.New(fault.Unprocessable, op, "raise_invalid", "A cap is raised until a moment to come, within a year.").At("/until")
		}
	}
	saved, err := a.Budgets.Editor.RaiseBudget(lasting(c), t.Org.ID, c.Param("id"), r, expect)
	if err != nil {
		return budgetConflict(err, expect)
	}
	a.Budgets.Reader.Forget(t.Org.ID)
	view := a.budgetView(saved)
	if err := a.note(c, t, "budget.raise", view); err != nil {
		return err
	}
	setETag(c, saved.Version)
	return c.JSON(http.StatusOK, view)
}

// moment reads RFC 3339, or a day of a zone, whose end is meant.
func moment(s string, zone *time.Location) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t.Truncate(time.Millisecond).UTC(), nil
	}
	if t, err := time.ParseInLocation(time.DateOnly, s, zone); err == nil {
		return billing.Window{Kind: billing.WindowDay}.At(t.Add(12*time.Hour), zone).End, nil
	}
	return time.Time{}, fault.Invalidf("admin.moment", "/until", "until must be a day such as 2026-12-04 or a moment such as 2026-12-04T18:00:00Z.")
}

package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/closing"
	"github.com/lossless-group/gateway/billing/reconcile"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// FinanceStore tells who may read billing, and where the prices they see come from.
type FinanceStore interface {
	// Granted reports whether a person may read the billing of a scope.
	Granted(ctx context.Context, user tenancy.UserID, s report.Scope) (bool, error)
}

// OrgFinder finds an organisation that a reader of billing does not belong to.
type OrgFinder interface {
	ByID(ctx context.Context, id tenancy.OrgID) (tenancy.Org, error)
}

// PriceStore puts prices in force.
type PriceStore interface {
	// ImportPrices puts a price file in force, here at once and elsewhere within seconds.
	ImportPrices(ctx context.Context, doc []byte, note, by string) error
	// AddCard does so with what one organisation pays instead.
	AddCard(ctx context.Context, org tenancy.OrgID, c RateCard) error
	// Cards are the rate cards of an organisation, the earliest start first.
	Cards(ctx context.Context, org tenancy.OrgID) ([]RateCard, error)
}

// RateCard is what one organisation pays instead of the list.
type RateCard struct {
	ID         string          `json:"id"`
	From       time.Time       `json:"from"`
	To         time.Time       `json:"to,omitzero"`    // none: it does not end
	Multiplier string          `json:"multiplier"`     // of the list's token prices
	Rows       json.RawMessage `json:"rows,omitempty"` // a price file
}

// ReconcileStore keeps comparisons with providers' reports.
type ReconcileStore interface {
	Reconciliations(ctx context.Context) ([]reconcile.Result, error)
}

// UsageConfig is what the routes of usage and billing need.
type UsageConfig struct {
	Store  report.Store
	Grants FinanceStore
	Orgs   OrgFinder
	Closer *closing.Closer
	Ledger billing.Ledger
	Prices billing.Prices
	Import PriceStore

	Reconciled ReconcileStore
}

// eventsPage is how many events a page lists.
const eventsPage = 200

func (a *api) mountUsage(g, org *echo.Group) {
	org.GET("/usage", a.billers(a.usage))
	org.GET("/usage/events", a.billers(a.usageEvents))
	org.GET("/usage/anomalies", a.billers(a.anomalies))
	org.GET("/usage/closes", a.billers(a.closes))
	b := g.Group("/billing")
	b.GET("/usage", a.finance(false, a.usage))
	b.GET("/usage/events", a.finance(false, a.usageEvents))
	b.GET("/anomalies", a.finance(false, a.anomalies))
	b.GET("/closes", a.finance(false, a.closes))
	b.GET("/unpriced", a.finance(false, a.unpriced))
	b.GET("/verify", a.finance(false, a.verifyLedger))
	b.GET("/reconciliation", a.finance(false, a.reconciliation))
	b.GET("/cards/:org", a.finance(false, a.rateCards))
	b.POST("/cards/:org", a.finance(true, a.addRateCard))
	b.POST("/unpriced/resolve", a.finance(true, a.resolveUnpriced))
	b.POST("/close", a.finance(true, a.closePeriod))
	b.POST("/reprice", a.finance(true, a.reprice))
}

// asked is whose billing a request is about, and who asks.
type asked struct {
	scope report.Scope
	org   tenancy.Org // the one of the scope
	who   tenancy.Tenant
}

func (q asked) zone() *time.Location {
	if z, err := time.LoadLocation(q.org.TimeZone); err == nil && !q.scope.All {
		return z
	}
	return time.UTC
}

// billers lets admins of the path's organisation through, and who may read its billing by a grant.
func (a *api) billers(next func(echo.Context, asked) error) echo.HandlerFunc {
	asAdmin := a.admins(func(c echo.Context, t tenancy.Tenant) error {
		return next(c, asked{report.Scope{Org: t.Org.ID}, t.Org, t})
	})
	return func(c echo.Context) error {
		who, err := a.Principal(c)
		if err != nil {
			return err
		}
		id, err := tenancy.ParseOrgID(c.Param("org"))
		if err != nil || c.Request().Header.Get("X-Act-As-Org") != "" || who.Token != nil {
			return asAdmin(c) // grants are a person's: a token acts in its own organisation, in its role
		}
		ok, err := a.Usage.Grants.Granted(c.Request().Context(), who.User, report.Scope{Org: id})
		if err != nil || !ok {
			if err == nil || fault.Is(err, fault.Unavailable) { // without the grants, roles are what there is
				return asAdmin(c)
			}
			return err
		}
		org, err := a.Usage.Orgs.ByID(c.Request().Context(), id)
		if fault.Is(err, fault.NotFound) {
			return fault.New(fault.NotFound, "admin.billers", "org_unknown", "There is no such organisation here. Use its e-mail domain, such as acme.example.")
		}
		if err != nil {
			return err
		}
		return next(c, asked{report.Scope{Org: id}, org, tenancy.Tenant{Org: org, User: who.User}})
	}
}

// finance lets superusers of an operating organisation through, and to read also who may read every organisation's billing by a grant.
func (a *api) finance(writes bool, next func(echo.Context, asked) error) echo.HandlerFunc {
	const op = "admin.finance"
	return func(c echo.Context) error {
		who, err := a.Principal(c)
		if err != nil {
			return err
		}
		ctx := c.Request().Context()
		for _, m := range who.Memberships {
			if m.Role != tenancy.Superuser {
				continue
			}
			t, err := a.Tenants.Resolve(ctx, who, tenancy.Hint{Org: m.Org.String()})
			if err != nil && !fault.Is(err, fault.Forbidden) {
				return err
			}
			if err == nil && t.Role == tenancy.Superuser && t.Org.Operating {
				return next(c, asked{report.Scope{All: true}, t.Org, t})
			}
		}
		ok := false
		if !writes && who.Token == nil {
			if ok, err = a.Usage.Grants.Granted(ctx, who.User, report.Scope{All: true}); err != nil {
				return err
			}
		}
		if !ok {
			return fault.New(fault.Forbidden, op, "finance_required", "This needs a grant to the billing of every organisation. Ask an operator of the gateway.")
		}
		return next(c, asked{report.Scope{All: true}, tenancy.Org{}, tenancy.Tenant{User: who.User}})
	}
}

// usageNames are the parameters that match events, by what they match.
var usageNames = map[string]report.Dim{
	"model": report.ByModel, "person": report.ByUser, "user": report.ByUser, "project": report.ByProject, "source": report.ByKeySource, "key_source": report.ByKeySource, "provider": report.ByProvider,
	"key": report.ByKey, "token": report.ByToken, "surface": report.BySurface, "capability": report.ByCapability, "status": report.ByStatus,
}

// usageFilter reads from, to, day and what events must match. Days are calendar days of the organisation's zone, to not included; without any, this
// month so far.
func (a *api) usageFilter(c echo.Context, q asked) (f report.Filter, err error) {
	const op = "admin.usage"
	zone := q.zone()
	f.Scope = q.scope
	f.Match = map[report.Dim]string{}
	for name, values := range c.QueryParams() {
		if dim, ok := usageNames[name]; ok {
			if len(values) != 1 {
				return f, fault.Invalidf(op, "/"+name, "%s may be given once.", name)
			}
			f.Match[dim] = values[0]
		}
	}
	if org := c.QueryParam("org"); org != "" && q.scope.All {
		id, err := tenancy.ParseOrgID(org)
		if err != nil {
			return f, fault.From(err).At("/org")
		}
		f.Scope = report.Scope{Org: id}
	}
	now := a.Clock()
	today := billing.DayOf(now, zone)
	month := today - int64(report.Date(today).Day()-1)
	from, to := c.QueryParam("from"), c.QueryParam("to")
	if day := c.QueryParam("day"); day != "" {
		if from != "" || to != "" {
			return f, fault.Invalidf(op, "/day", "Give either day or from and to.")
		}
		t, err := time.Parse(time.DateOnly, day)
		if err != nil {
			return f, fault.Invalidf(op, "/day", "day must be a day such as 2026-11-30.")
		}
		f.Days = report.Days{First: t.Unix() / 86400, Last: t.Unix()/86400 + 1}
		return f, nil
	}
	first, dated1 := dateOr(from, month)
	last, dated2 := dateOr(to, today+1)
	if dated1 && dated2 {
		if f.Days = (report.Days{First: first, Last: last}); !f.Days.Set() {
			return f, fault.Invalidf(op, "/from", "from must lie before to.")
		}
		return f, nil
	}
	if f.From, err = when(c, "from", zone, billing.DayStart(report.Date(month), zone)); err != nil {
		return f, err
	}
	if f.To, err = when(c, "to", zone, now.Add(time.Second)); err != nil {
		return f, err
	}
	if !f.From.Before(f.To) {
		return f, fault.Invalidf(op, "/from", "from must lie before to.")
	}
	return f, nil
}

// dateOr reads a day; an absent one has a default, and anything else is no day.
func dateOr(s string, def int64) (int64, bool) {
	if s == "" {
		return def, true
	}
	t, err := time.Parse(time.DateOnly, s)
	return t.Unix() / 86400, err == nil
}

// usage answers a report: totals, groups, series, previous period, forecast, movers, savings and what has no price, all of one snapshot.
func (a *api) usage(c echo.Context, q asked) error {
	f, err := a.usageFilter(c, q)
	if err != nil {
		return err
	}
	question := report.Question{Filter: f, Zone: q.zone(), Series: report.Dim(c.QueryParam("series")), Now: a.Clock(), Prices: a.Usage.Prices}
	by := c.QueryParam("by")
	if by == "" {
		by = c.QueryParam("groupBy")
	}
	for _, d := range strings.FieldsFunc(by, func(r rune) bool { return r == ',' }) {
		question.By = append(question.By, report.Dim(d))
	}
	if l := c.QueryParam("limit"); l != "" {
		if question.Limit, err = strconv.Atoi(l); err != nil || question.Limit < 1 || question.Limit > 1000 {
			return fault.Invalidf("admin.usage", "/limit", "limit must be a number from 1 to 1000.")
		}
	}
	answer, err := report.Ask(c.Request().Context(), a.Usage.Store, question)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, struct {
		Org *tenancy.OrgID `json:"org"` // null: every organisation
		report.Answer
	}{orgOf(f.Scope), answer})
}

func orgOf(s report.Scope) *tenancy.OrgID {
	if s.All {
		return nil
	}
	return &s.Org
}

// usageEvents lists the events behind a figure, newest first, with the figure.
func (a *api) usageEvents(c echo.Context, q asked) error {
	f, err := a.usageFilter(c, q)
	if err != nil {
		return err
	}
	var out struct {
		report.Totals
		Events []billing.Event `json:"events"`
		Next   string          `json:"next"`
	}
	ctx := c.Request().Context()
	err = a.Usage.Store.Snapshot(ctx, func(r report.Reader) error {
		answer, err := report.AskIn(ctx, r, report.Question{Filter: f, Zone: q.zone(), Now: a.Clock()})
		if err != nil {
			return err
		}
		out.Totals = answer.Totals
		out.Events, out.Next, err = r.Page(ctx, f, c.QueryParam("cursor"), eventsPage)
		return err
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

// anomalies answers what stands out of the last day.
func (a *api) anomalies(c echo.Context, q asked) error {
	list, err := report.Anomalies(c.Request().Context(), a.Usage.Store, q.scope, q.zone(), a.Clock())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"anomalies": list})
}

func (a *api) closes(c echo.Context, q asked) error {
	var list []report.Close
	err := a.Usage.Store.Snapshot(c.Request().Context(), func(r report.Reader) (err error) {
		list, err = r.Closes(c.Request().Context(), q.scope)
		return err
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"closes": list})
}

// unpriced answers the queue of models whose calls have no price, of the last 13 months.
func (a *api) unpriced(c echo.Context, q asked) error {
	today := billing.DayOf(a.Clock(), time.UTC)
	answer, err := report.Ask(c.Request().Context(), a.Usage.Store, report.Question{Filter: report.Filter{Scope: q.scope, Days: report.Days{First: today - 395, Last: today + 2}}, Now: a.Clock()})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"models": answer.Unpriced})
}

func (a *api) verifyLedger(c echo.Context, _ asked) error {
	found, err := a.Usage.Closer.Verify(c.Request().Context(), a.Clock().AddDate(0, 0, -35))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, found)
}

// resolveUnpriced gives a model a price, in a price file of its own revision, and corrects what it was used for.
func (a *api) resolveUnpriced(c echo.Context, q asked) error {
	const op = "admin.resolveUnpriced"
	raw, err := body(c)
	if err != nil {
		return err
	}
	var in struct {
		Provider string       `json:"provider"`
		Model    string       `json:"model"`
		Like     billing.Like `json:"like"`
	}
	if err := decodeObject(op, raw, "", &in, "provider", "model", "like"); err != nil {
		return err
	}
	now := a.Clock()
	doc, err := a.Usage.Prices.List().WithModel(in.Provider, in.Model, in.Like, now.UTC().Format("2006-01-02.150405.000"))
	if err != nil {
		return err
	}
	if err := a.Usage.Import.ImportPrices(lasting(c), doc, "price of "+in.Provider+"/"+in.Model, string(q.who.User)); err != nil {
		return err
	}
	changed, err := a.Usage.Closer.Reprice(lasting(c), a.Usage.Ledger, closing.Correction{Prices: a.Usage.Prices, Filter: report.Filter{
		Scope: report.Scope{All: true}, From: time.Unix(0, 0), To: now.Add(time.Hour), Match: map[report.Dim]string{report.ByProvider: in.Provider, report.ByModel: in.Model}}})
	if err != nil {
		return err
	}
	if err := a.note(c, q.who, "billing.resolve", in); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"revision": a.Usage.Prices.List().Revision(), "corrected": changed})
}

// closePeriod closes a month of one organisation.
func (a *api) closePeriod(c echo.Context, q asked) error {
	raw, err := body(c)
	if err != nil {
		return err
	}
	in, err := texts(raw, "org", "period")
	if err != nil {
		return err
	}
	org, err := tenancy.ParseOrgID(in["org"])
	if err != nil {
		return fault.From(err).At("/org")
	}
	closed, err := a.Usage.Closer.Close(lasting(c), org, in["period"], string(q.who.User))
	if err != nil {
		return err
	}
	if err := a.note(c, q.who, "billing.close", closed); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, closed)
}

// reprice corrects what was recorded between two days to the prices in force; without "apply": true it only tells what that would change.
func (a *api) reprice(c echo.Context, q asked) error {
	const op = "admin.reprice"
	raw, err := body(c)
	if err != nil {
		return err
	}
	var in struct {
		Org   string `json:"org"`
		From  string `json:"from"`
		To    string `json:"to"`
		Model string `json:"model"`
		Apply bool   `json:"apply"`
	}
	if err := decodeObject(op, raw, "", &in, "org", "from", "to", "model", "apply"); err != nil {
		return err
	}
	f := report.Filter{Scope: q.scope}
	if in.Org != "" {
		id, err := tenancy.ParseOrgID(in.Org)
		if err != nil {
			return fault.From(err).At("/org")
		}
		f.Scope = report.Scope{Org: id}
	}
	first, ok1 := dateOr(in.From, 0)
	last, ok2 := dateOr(in.To, billing.DayOf(a.Clock(), time.UTC)+2)
	if f.Days = (report.Days{First: first, Last: last}); !ok1 || !ok2 || !f.Days.Set() {
		return fault.Invalidf(op, "/from", "from and to must be days such as 2026-11-01, from before to.")
	}
	if in.Model != "" {
		f.Match = map[report.Dim]string{report.ByModel: in.Model}
	}
	list, err := a.Usage.Closer.Reprice(lasting(c), a.Usage.Ledger, closing.Correction{Filter: f, Prices: a.Usage.Prices, DryRun: !in.Apply})
	if err != nil {
		return err
	}
	if in.Apply {
		if err := a.note(c, q.who, "billing.reprice", json.RawMessage(raw)); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"revision": a.Usage.Prices.List().Revision(), "applied": in.Apply, "organisations": list})
}

// reconciliation answers the newest comparison with each provider's own reports.
func (a *api) reconciliation(c echo.Context, _ asked) error {
	list, err := a.Usage.Reconciled.Reconciliations(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"reconciliations": list})
}

func (a *api) rateCards(c echo.Context, _ asked) error {
	org, err := tenancy.ParseOrgID(c.Param("org"))
	if err != nil {
		return fault.From(err).At("/org")
	}
	list, err := a.Usage.Import.Cards(c.Request().Context(), org)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"cards": append([]RateCard{}, list...)})
}

// addRateCard records what an organisation pays from a moment on. What was recorded before keeps its price; reprice corrects it.
func (a *api) addRateCard(c echo.Context, q asked) error {
	const op = "admin.addRateCard"
	org, err := tenancy.ParseOrgID(c.Param("org"))
	if err != nil {
		return fault.From(err).At("/org")
	}
	raw, err := body(c)
	if err != nil {
		return err
	}
	var card RateCard
	if err := decodeObject(op, raw, "", &card, "id", "from", "to", "multiplier", "rows"); err != nil {
		return err
	}
	if err := a.Usage.Import.AddCard(lasting(c), org, card); err != nil {
		return err
	}
	if err := a.note(c, q.who, "billing.card", map[string]any{"org": org, "id": card.ID, "multiplier": card.Multiplier}); err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, card)
}

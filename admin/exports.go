package admin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/billing/closing"
	"github.com/lossless-group/gateway/billing/export"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/billing/statement"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// ExportConfig is what the routes of exports and statements need besides UsageConfig.
type ExportConfig struct {
	// Issuer is who invoices organisations: the operator's name.
	Issuer func(ctx context.Context) (string, error)
}

const (
	// exportsAtOnce is how many exports one process writes at a time: each holds a connection to the database for as long as its reader takes.
	exportsAtOnce = 2
	// exportFor is how long one may take, exportPause how long its reader may take nothing.
	exportFor   = 15 * time.Minute
	exportPause = 30 * time.Second
	exportRetry = 5 * time.Second
)

func (a *api) mountExports(g, org *echo.Group) {
	slots := make(chan struct{}, exportsAtOnce)
	write := func(c echo.Context, q asked) error { return a.export(c, q, slots) }
	org.GET("/usage/export", a.billers(write))
	org.GET("/statements", a.billers(a.statements))
	org.GET("/statements/:file", a.billers(a.statement))
	b := g.Group("/billing")
	b.GET("/usage/export", a.finance(false, write))
	b.GET("/statements", a.finance(false, a.statements))
	b.GET("/statements/:org/:file", a.finance(false, a.statement))
}

// ExportRequest reads the parameters of an export that are not of a report: format, focus and by. format may be focus, for CSV in the
// newest version.
func ExportRequest(format, focus, by string) export.Request {
	q := export.Request{Format: export.Format(format), FOCUS: export.Version(focus)}
	switch {
	case format == "focus" && focus == "":
		q.Format, q.FOCUS = export.CSV, export.FOCUS13
	case format == "focus", format == "":
		q.Format = export.CSV
	}
	for _, d := range strings.FieldsFunc(by, func(r rune) bool { return r == ',' }) {
		q.By = append(q.By, report.Dim(d))
	}
	return q
}

// accounts names organisations for a file.
func (a *api) accounts() func(ctx context.Context, org tenancy.OrgID) (export.Account, error) {
	return func(ctx context.Context, id tenancy.OrgID) (export.Account, error) {
		org, err := a.Usage.Orgs.ByID(ctx, id)
		if fault.Is(err, fault.NotFound) { // the ledger outlives organisations
			return export.Account{Name: id.String(), Zone: time.UTC}, nil
		}
		if err != nil {
			return export.Account{}, err
		}
		return export.Account{Name: org.Name, Zone: asked{org: org}.zone()}, nil
	}
}

func (a *api) issuer(ctx context.Context) (string, error) {
	if a.Exports.Issuer == nil {
		return "gateway", nil
	}
	return a.Exports.Issuer(ctx)
}

// export writes what a report of the same parameters is made of. X-Rows and X-Sum come first, as the page has them; what was written stands in
// the trailers, and an answer that does not come to the same is cut off, so that nobody takes it for whole.
func (a *api) export(c echo.Context, q asked, slots chan struct{}) error {
	const op = "admin.export"
	f, err := a.usageFilter(c, q)
	if err != nil {
		return err
	}
	by := c.QueryParam("by")
	if by == "" {
		by = c.QueryParam("groupBy")
	}
	req := ExportRequest(c.QueryParam("format"), c.QueryParam("focus"), by)
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return &fault.Error{Op: op, Kind: fault.RateLimited, Code: "export_busy", Public: "Other exports are being written. Try again in a few seconds.", RetryAfter: exportRetry}
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), exportFor)
	defer cancel()
	req.Filter, req.Zone, req.Prices, req.Account = f, q.zone(), a.Usage.Prices, a.accounts()
	if req.Issuer, err = a.issuer(ctx); err != nil {
		return err
	}
	res := c.Response()
	err = a.Usage.Store.Snapshot(ctx, func(r report.Reader) error {
		x, err := export.Plan(ctx, r, req)
		if err != nil {
			return err
		}
		h := res.Header()
		h.Set("Content-Type", req.Format.ContentType())
		h.Set("Content-Disposition", `attachment; filename="`+exportName(f, req)+`"`)
		h.Set("Cache-Control", "private, no-store")
		if x.Rows >= 0 {
			h.Set("X-Rows", strconv.FormatInt(x.Rows, 10))
		}
		h.Set("X-Sum", x.Totals.Org.Cost.USD())
		h.Set("X-Sum-Billed", x.Totals.Org.Billed.USD())
		h.Set("X-Sum-Byok", x.Totals.BYOK.Cost.USD())
		h.Set("Trailer", "X-Rows-Written, X-Sum-Written, X-Sha256")
		w := &patient{w: res, rc: http.NewResponseController(res.Writer), clock: a.Clock}
		done, err := x.Write(ctx, w)
		if err != nil {
			if !w.begun { // an error can still be told as one
				for _, name := range []string{"Content-Disposition", "X-Rows", "X-Sum", "X-Sum-Billed", "X-Sum-Byok", "Trailer"} {
					h.Del(name)
				}
			}
			return err
		}
		if !w.begun {
			res.WriteHeader(http.StatusOK)
		}
		h.Set("X-Rows-Written", strconv.FormatInt(done.Rows, 10))
		h.Set("X-Sum-Written", done.Totals.Org.Cost.USD())
		h.Set("X-Sha256", done.SHA256)
		return nil
	})
	if err != nil && res.Committed {
		panic(http.ErrAbortHandler) // half a file must not look like a whole one
	}
	return err
}

// exportName is a name for the file.
func exportName(f report.Filter, req export.Request) string {
	who, when := "all", f.From.UTC().Format(time.DateOnly)+"_"+f.To.UTC().Format(time.DateOnly)
	if !f.Scope.All {
		who = f.Scope.Org.String()
	}
	if f.Days.Set() {
		when = report.Date(f.Days.First).Format(time.DateOnly) + "_" + report.Date(f.Days.Last-1).Format(time.DateOnly)
	}
	what := "usage"
	if req.FOCUS != "" {
		what = "focus-" + string(req.FOCUS)
	}
	return fmt.Sprintf("%s_%s_%s.%s", what, who, when, req.Format)
}

// patient is a stream whose reader may be slow, but not stand still.
type patient struct {
	w     io.Writer
	rc    *http.ResponseController
	clock func() time.Time
	begun bool
}

// Write implements io.Writer.
func (p *patient) Write(b []byte) (int, error) {
	p.begun = true
	_ = p.rc.SetWriteDeadline(p.clock().Add(exportPause)) // a writer without deadlines is a test's
	return p.w.Write(b)
}

// statements lists the months in which anything was used, the newest first.
func (a *api) statements(c echo.Context, q asked) error {
	scope, days := q.scope, report.Days{}
	if org := c.QueryParam("org"); org != "" && q.scope.All {
		id, err := tenancy.ParseOrgID(org)
		if err != nil {
			return fault.From(err).At("/org")
		}
		scope = report.Scope{Org: id}
	}
	if period := c.QueryParam("period"); period != "" {
		var err error
		if days, err = closing.Month(period); err != nil {
			return err
		}
	}
	ctx := c.Request().Context()
	var list []statement.Summary
	err := a.Usage.Store.Snapshot(ctx, func(r report.Reader) (err error) {
		list, err = statement.List(ctx, r, scope, days)
		return err
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"statements": list})
}

// statement answers one month, as JSON, a page or a PDF by the ending of its name.
func (a *api) statement(c echo.Context, q asked) error {
	const op = "admin.statement"
	period, ending, _ := strings.Cut(c.Param("file"), ".")
	month, err := closing.Month(period)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	org := q.org
	if q.scope.All {
		id, err := tenancy.ParseOrgID(c.Param("org"))
		if err != nil {
			return fault.From(err).At("/org")
		}
		if org, err = a.Usage.Orgs.ByID(ctx, id); err != nil {
			return err
		}
	}
	issuer, err := a.issuer(ctx)
	if err != nil {
		return err
	}
	var s statement.Statement
	err = a.Usage.Store.Snapshot(ctx, func(r report.Reader) (err error) {
		s, err = statement.Make(ctx, r, statement.Input{Account: statement.Account{Org: org.ID, Name: org.Name, Zone: asked{org: org}.zone()}, Issuer: issuer, Month: month, Prices: a.Usage.Prices, Now: a.Clock()})
		return err
	})
	if err != nil {
		return err
	}
	h := c.Response().Header()
	h.Set("Cache-Control", "private, no-store")
	name := fmt.Sprintf(`filename="statement_%s_%s.%s"`, org.ID, s.Period, ending)
	switch ending {
	case "json", "":
		return c.JSON(http.StatusOK, s)
	case "html":
		page, err := s.HTML()
		if err != nil {
			return err
		}
		h.Set("Content-Security-Policy", statement.CSP())
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Content-Disposition", "inline; "+name)
		return c.Blob(http.StatusOK, "text/html; charset=utf-8", page)
	case "pdf":
		file, err := s.PDF()
		if err != nil {
			return fault.Wrap(fault.Internal, op, "statement_unprintable", "The statement could not be printed. Take the page instead, and tell us the month.", err)
		}
		h.Set("Content-Disposition", "attachment; "+name)
		return c.Blob(http.StatusOK, "application/pdf", file)
	}
	return fault.New(fault.NotFound, op, "statement_form", "Statements end in .json, .html or .pdf.")
}

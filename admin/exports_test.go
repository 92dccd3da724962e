package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// faltering is a ledger of n events whose reading fails after some, or that has one less than its sums say.
type faltering struct {
	report.Reader
	n, fails, less int
	began          chan struct{} // closed when reading begins; nil: nobody waits
	proceed        chan struct{} // reading waits for it
}

func (f faltering) Snapshot(_ context.Context, read func(report.Reader) error) error { return read(f) }

func (f faltering) Cells(_ context.Context, _ report.Cells, yield func(report.Cell) error) error {
	return yield(report.Cell{By: []string{"org"}, Sum: report.Sum{Attempts: int64(f.n), Cost: billing.Pico(f.n), Billed: billing.Pico(f.n)}})
}

func (f faltering) Events(_ context.Context, _ report.Filter, yield func(billing.Event) error) error {
	if f.began != nil {
		close(f.began)
		<-f.proceed
	}
	for i := range f.n - f.less {
		if f.fails > 0 && i == f.fails {
			return errors.New("the database went away")
		}
		one := billing.Pico(1)
		if err := yield(billing.Event{Attempt: billing.Attempt{ID: fmt.Sprintf("run-%06d.1", i), Org: tenancy.MustOrgID("acme.example"), KeySource: "org"}, Cost: &one, Billed: 1, Basis: billing.Computed}); err != nil {
			return err
		}
	}
	return nil
}

func exporting(t *testing.T, store report.Store, slots chan struct{}) *httptest.Server {
	t.Helper()
	a := &api{Config{Clock: time.Now, Usage: UsageConfig{Store: store, Prices: billing.Embedded()}}}
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if !c.Response().Committed {
			_ = c.String(http.StatusTeapot, fault.From(err).Code) // any status but 200
		}
	}
	e.GET("/export", func(c echo.Context) error {
		return a.export(c, asked{scope: report.Scope{Org: tenancy.MustOrgID("acme.example")}}, slots)
	})
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	return s
}

// Half a file never looks like a whole one: it ends in an error, or is an error from the start.
func TestExportsThatFail(t *testing.T) {
	for _, c := range []struct {
		name  string
		store faltering
		whole bool
		code  string
	}{
		{"whole", faltering{n: 5000}, true, ""},
		{"breaks off late", faltering{n: 5000, fails: 4000}, false, ""},
		{"breaks off before anything was sent", faltering{n: 5000, fails: 3}, false, "internal"},
		{"one event too few", faltering{n: 5000, less: 1}, false, ""},
		{"one event too few, of few", faltering{n: 5, less: 1}, false, "export_differs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			slots := make(chan struct{}, 1)
			s := exporting(t, c.store, slots)
			res, err := http.Get(s.URL + "/export?format=csv")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if whole := err == nil && res.StatusCode == 200; whole != c.whole {
				t.Errorf("%d %v after %d bytes, X-Rows-Written %q", res.StatusCode, err, len(b), res.Trailer.Get("X-Rows-Written"))
			}
			if c.code != "" && (!strings.Contains(string(b), c.code) || res.Header.Get("Content-Disposition") != "" || res.Header.Get("X-Sum") != "") {
				t.Errorf("%d %q %v", res.StatusCode, b, res.Header)
			}
			if c.whole && res.Trailer.Get("X-Rows-Written") != "5000" {
				t.Errorf("trailers %v", res.Trailer)
			}
			select {
			case slots <- struct{}{}:
			case <-time.After(5 * time.Second):
				t.Error("its slot is not free again")
			}
		})
	}
}

// More exports than there are slots are told to come again.
func TestExportsAtOnce(t *testing.T) {
	slow := faltering{n: 1, began: make(chan struct{}), proceed: make(chan struct{})}
	s := exporting(t, slow, make(chan struct{}, 1))
	first := make(chan int, 1)
	go func() {
		res, err := http.Get(s.URL + "/export")
		if err != nil {
			first <- 0
			return
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		first <- res.StatusCode
	}()
	<-slow.began
	res, err := http.Get(s.URL + "/export")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); string(b) != "export_busy" {
		t.Errorf("%d %s", res.StatusCode, b)
	}
	close(slow.proceed)
	if status := <-first; status != 200 {
		t.Errorf("the first: %d", status)
	}
}

func TestExportName(t *testing.T) {
	req := ExportRequest("focus", "", "")
	f := report.Filter{Scope: report.Scope{Org: tenancy.MustOrgID("acme.example")}, Days: report.Days{First: 20_727, Last: 20_758}}
	if got := exportName(f, req); got != "focus-1.3_acme.example_2026-10-01_2026-10-31.csv" {
		t.Error(got)
	}
	f = report.Filter{Scope: report.Scope{All: true}, From: time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC), To: time.Date(2026, 10, 2, 0, 0, 0, 0, time.UTC)}
	if got := exportName(f, ExportRequest("", "", "model,day")); got != "usage_all_2026-10-01_2026-10-02.csv" {
		t.Error(got)
	}
}

package admin

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/billing/export"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// AuditForm writes rows of the audit.
type AuditForm struct {
	Type  string // content type
	Head  string // first line, with its end; may be empty
	Write func(w io.Writer, r tenancy.AuditRow) error
}

// AuditFormOf returns the form of a name: jsonl, which holds all that a hash is over, or csv, which no spreadsheet takes for formulas. The
// error is a fault.Invalid.
func AuditFormOf(name string) (AuditForm, error) {
	switch name {
	case "", "jsonl":
		return AuditForm{Type: "application/x-ndjson", Write: writeAuditJSON}, nil
	case "csv":
		return AuditForm{Type: "text/csv; charset=utf-8", Head: "seq,at,id,org,actor,homeOrg,token,action,detail,before,after,address,agent,requestId,prev,hash\r\n", Write: writeAuditCSV}, nil
	}
	return AuditForm{}, fault.Invalidf("admin.AuditFormOf", "/format", "There is no such format; use jsonl or csv.")
}

func writeAuditJSON(w io.Writer, r tenancy.AuditRow) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

func writeAuditCSV(w io.Writer, r tenancy.AuditRow) error {
	b := strconv.AppendInt(nil, r.Seq, 10)
	for _, cell := range []string{r.At.UTC().Format(time.RFC3339Nano), r.ID, r.Org.String(), string(r.Actor), r.HomeOrg.String(), r.Token, r.Action, string(r.Detail), string(r.Before), string(r.After),
		r.Address, r.Agent, r.RequestID, hex.EncodeToString(r.Prev[:]), hex.EncodeToString(r.Hash[:])} {
		b = export.AppendCell(append(b, ','), cell)
	}
	_, err := w.Write(append(b, '\r', '\n'))
	return err
}

// exportAudit streams the whole chain. What fails on the way cuts the connection, so that a part is never taken for the whole.
func (a *api) exportAudit(c echo.Context, t tenancy.Tenant) error {
	form, err := AuditFormOf(c.QueryParam("format"))
	if err != nil {
		return err
	}
	ext := "jsonl"
	if form.Head != "" {
		ext = "csv"
	}
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, form.Type)
	h.Set(echo.HeaderContentDisposition, fmt.Sprintf("attachment; filename=%q", "audit-"+t.Org.ID.String()+"."+ext))
	h.Set("Cache-Control", "no-store")
	w := bufio.NewWriterSize(c.Response(), 32<<10)
	if _, err := w.WriteString(form.Head); err != nil {
		return err
	}
	if err := a.Audit.Rows(c.Request().Context(), t.Org.ID, func(r tenancy.AuditRow) error { return form.Write(w, r) }); err != nil {
		if c.Response().Committed {
			panic(http.ErrAbortHandler)
		}
		return err
	}
	return w.Flush()
}

// verifyAudit follows the chain and says what is wrong with it, and where it ends.
func (a *api) verifyAudit(c echo.Context, t tenancy.Tenant) error {
	check, end, hash, err := a.Audit.Verify(c.Request().Context(), t.Org.ID)
	if err != nil {
		return err
	}
	if check.Faults == nil {
		check.Faults = []tenancy.AuditFault{}
	}
	return c.JSON(http.StatusOK, map[string]any{"whole": len(check.Faults) == 0, "rows": check.Rows, "faults": check.Faults, "end": map[string]any{"seq": end, "hash": hash}})
}

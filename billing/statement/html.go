package statement

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"html/template"
	"strconv"
	"strings"
	"time"
)

// style is everything that a statement looks like, on paper too.
const style = `:root{color-scheme:light;font:14px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif;color:#1b2420}
body{margin:2.5rem auto;padding:0 1.5rem;max-width:62rem;background:#fff}
header{display:flex;justify-content:space-between;gap:2rem;border-bottom:2px solid #1b2420;padding-bottom:1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
dl{display:grid;grid-template-columns:max-content auto;gap:.1rem .9rem;margin:0}dt{color:#55635c}dd{margin:0}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}
caption{text-align:left;color:#55635c;padding-bottom:.4rem}
th,td{text-align:left;padding:.32rem .5rem;border-bottom:1px solid #d9e0dc;vertical-align:top}
thead th{border-bottom:1px solid #1b2420}
.n{text-align:right;white-space:nowrap}
tfoot th,tfoot td{border-top:2px solid #1b2420;border-bottom:0;font-weight:600}
.state{border:1px solid #1b2420;padding:.6rem .8rem;margin:1.4rem 0}
.open{border-style:dashed}
code{font:12px/1.4 ui-monospace,"SFMono-Regular",Menlo,monospace;overflow-wrap:anywhere}
footer{margin-top:2.4rem;color:#55635c;font-size:.86rem}
@page{size:A4;margin:16mm 14mm}
@media print{body{margin:0;padding:0;max-width:none}thead{display:table-header-group}tr,.state{break-inside:avoid}h2{break-after:avoid}}`

// CSP is the Content-Security-Policy that a statement in HTML needs and no other: its own style, nothing from elsewhere, no script.
func CSP() string {
	h := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(h[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

var page = template.Must(template.New("statement").Funcs(template.FuncMap{"count": Count, "price": unitPrice, "style": func() template.CSS { return template.CSS(style) }}).Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>Statement {{.Period}}, {{.Account.Name}}</title>
<style>{{style}}</style>
</head>
<body>
<header>
<div><h1>Statement</h1><p>{{.Month}}</p></div>
<dl><dt>For</dt><dd>{{.Account.Name}}<br>{{.Account.Org}}</dd><dt>From</dt><dd>{{.Issuer}}</dd><dt>Number</dt><dd>{{.Account.Org}}/{{.Period}}</dd><dt>Period</dt><dd>{{.Range}}</dd></dl>
</header>
<p class="state{{if not .Closed}} open{{end}}">{{.State}}{{if .Closed}}<br><code>SHA-256 {{.SHA256}}</code>{{end}}</p>
<h2>Owed</h2>
{{template "part" .Owed}}
<h2>Paid by people with their own keys</h2>
{{if .BYOK.Lines}}<p>Not a part of what is owed: their providers charge them. Amounts are estimates by the price list.</p>
{{template "part" .BYOK}}{{else}}<p>Nobody used a key of their own.</p>{{end}}
<footer><p>Amounts are US dollars without taxes. Each line is exact to 10<sup>−12</sup> dollars in the ledger and shown to the cent, so that the lines add up to the total. Made {{.Made}}.</p></footer>
</body>
</html>
{{define "part"}}<table>
<caption>{{count .Attempts}} calls{{if .Estimate}}, {{count .Estimate}} of them estimated{{end}}{{if .Unpriced}}, {{count .Unpriced}} without a known price and in no amount{{end}}</caption>
<thead><tr><th scope="col">Model</th><th scope="col">Meter</th><th scope="col" class="n">Quantity</th><th scope="col" class="n">Unit price, USD</th><th scope="col" class="n">Amount, USD</th></tr></thead>
<tbody>
{{range .Lines}}<tr><td>{{.Provider}}/{{.Model}}</td><td>{{.Meter}}</td><td class="n">{{if .Unit}}{{count .Quantity}} {{.Unit}}{{end}}</td><td class="n">{{price .}}</td><td class="n">{{.Shown}}</td></tr>
{{end}}</tbody>
<tfoot><tr><th scope="row" colspan="4">Total</th><td class="n">{{.Shown}}</td></tr></tfoot>
</table>{{end}}`))

// Count writes a count with thousands apart.
func Count(n int64) string {
	if n < 0 {
		return "−" + grouped(strings.TrimPrefix(strconv.FormatInt(n, 10), "-"))
	}
	return grouped(strconv.FormatInt(n, 10))
}

// unitPrice writes what a line costs: tokens by the million, as price lists do.
func unitPrice(l Line) string {
	if l.Price == nil {
		return ""
	}
	if l.Unit != "tokens" {
		return l.Price.USD() + " each"
	}
	if whole := *l.Price * 1_000_000; whole/1_000_000 == *l.Price {
		return whole.USD() + " per million"
	}
	return l.Price.USD() + " per token"
}

// Month is the period in words: October 2026.
func (s Statement) Month() string {
	t, err := time.Parse("2006-01", s.Period)
	if err != nil {
		return s.Period
	}
	return t.Format("January 2006")
}

func (s Statement) zone() *time.Location {
	if z, err := time.LoadLocation(s.TimeZone); err == nil {
		return z
	}
	return time.UTC
}

// Range is the first and the last day of the period.
func (s Statement) Range() string {
	z := s.zone()
	return s.From.In(z).Format("2 January 2006") + " to " + s.To.Add(-time.Second).In(z).Format("2 January 2006") + ", " + s.TimeZone
}

// State says whether the period is final.
func (s Statement) State() string {
	if s.Closed {
		return "Closed on " + s.ClosedAt.In(s.zone()).Format("2 January 2006, 15:04") + ". These are the sums the month was closed with, and they do not change any more."
	}
	return "Not closed yet. Amounts may still change."
}

// Made is when the statement was made.
func (s Statement) Made() string { return s.MadeAt.In(s.zone()).Format("2 January 2006, 15:04 MST") }

// HTML is the statement as a page that needs nothing from elsewhere, and prints.
func (s Statement) HTML() ([]byte, error) {
	var b bytes.Buffer
	if err := page.Execute(&b, s); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

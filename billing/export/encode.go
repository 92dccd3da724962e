package export

import (
	"io"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// encoder writes rows.
type encoder interface {
	row(v []value) error
	close() error // writes what is left; the stream stays open
}

func newEncoder(f Format, cols []column, w io.Writer) (encoder, error) {
	switch f {
	case Parquet:
		return newParquet(cols, w)
	case JSONL:
		return newJSONL(cols, w), nil
	}
	e := newCSV(cols, w)
	return e, e.header()
}

// chunk is how much an encoder of text keeps before it writes.
const chunk = 64 << 10

// page is text that is written in chunks.
type page struct {
	w    io.Writer
	buf  []byte
	day  int64 // whose text date has, where it has any
	date []byte
}

func newPage(w io.Writer) page { return page{w: w, buf: make([]byte, 0, chunk+16<<10)} }

func (p *page) flush(atLeast int) error {
	if len(p.buf) < atLeast || len(p.buf) == 0 {
		return nil
	}
	_, err := p.w.Write(p.buf)
	p.buf = p.buf[:0]
	return err
}

// moment appends a time as RFC 3339 in UTC, with milliseconds where there are any. Rows of one day follow each other, so the date is kept.
func (p *page) moment(ms int64) {
	const day = 86_400_000
	at := ms % day
	if at < 0 {
		at += day
	}
	if d := (ms - at) / day; d != p.day || len(p.date) == 0 {
		p.day, p.date = d, time.UnixMilli(ms).UTC().AppendFormat(p.date[:0], "2006-01-02T")
	}
	two := func(n int64) { p.buf = append(p.buf, byte('0'+n/10), byte('0'+n%10)) }
	p.buf = append(p.buf, p.date...)
	two(at / 3_600_000)
	p.buf = append(p.buf, ':')
	two(at / 60_000 % 60)
	p.buf = append(p.buf, ':')
	two(at / 1000 % 60)
	if rest := at % 1000; rest != 0 {
		p.buf = append(p.buf, '.', byte('0'+rest/100))
		two(rest % 100)
	}
	p.buf = append(p.buf, 'Z')
}

// appendFixed appends n * 10^-scale as the shortest plain decimal.
func appendFixed(b []byte, n int64, scale uint8) []byte {
	u := uint64(n)
	if n < 0 {
		b, u = append(b, '-'), -u
	}
	var d [40]byte
	i := len(d)
	dot := len(d) - int(scale)
	for u > 0 || i > dot-1 {
		i--
		d[i] = byte('0' + u%10)
		u /= 10
	}
	end := len(d)
	for end > dot && d[end-1] == '0' {
		end--
	}
	b = append(b, d[i:dot]...)
	if end == dot {
		return b
	}
	return append(append(b, '.'), d[dot:end]...)
}

// csvEncoder writes RFC 4180: a header, CRLF after each row, quotes where they are needed.
type csvEncoder struct {
	page
	cols []column
}

func newCSV(cols []column, w io.Writer) *csvEncoder { return &csvEncoder{newPage(w), cols} }

func (c *csvEncoder) header() error {
	for i, col := range c.cols {
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		c.buf = append(c.buf, col.name...)
	}
	c.buf = append(c.buf, "\r\n"...)
	return nil
}

func (c *csvEncoder) row(v []value) error {
	for i := range c.cols {
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		col := &c.cols[i]
		x := &v[col.at]
		if !x.ok {
			continue
		}
		switch col.kind {
		case text:
			c.buf = appendCell(c.buf, x.s)
		case object:
			c.buf = appendQuoted(c.buf, x.s)
		case integer:
			c.buf = strconv.AppendInt(c.buf, x.n, 10)
		case money:
			c.buf = appendFixed(c.buf, x.n, 12)
		case price:
			c.buf = appendFixed(c.buf, x.n, x.scale)
		case moment:
			c.moment(x.n)
		}
	}
	c.buf = append(c.buf, "\r\n"...)
	return c.flush(chunk)
}

func (c *csvEncoder) close() error { return c.flush(0) }

// harmless reports text that needs neither quotes nor a mark, as nearly all does.
func harmless(s string) bool {
	for i := range len(s) {
		switch b := s[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '/':
		case i > 0 && (b == '-' || b == '.' || b == '_' || b == '@' || b == ':' || b == '~' || b == '>'):
		default:
			return false
		}
	}
	return true
}

// AppendCell appends text as a CSV cell that no spreadsheet takes for a formula, for tables of other packages.
func AppendCell(b []byte, s string) []byte { return appendCell(b, s) }

// appendCell appends text so that no spreadsheet takes it for a formula: where it would, or where it begins with an apostrophe already, an
// apostrophe goes before it. Plain takes it off again.
func appendCell(b []byte, s string) []byte {
	if harmless(s) {
		return append(b, s...)
	}
	if formula(s) || s[0] == '\'' {
		s = "'" + s
	}
	return appendQuoted(b, s)
}

// Plain is the text of a CSV cell without the apostrophe that keeps it from being a formula.
func Plain(cell string) string {
	if len(cell) > 1 && cell[0] == '\'' && (cell[1] == '\'' || formula(cell[1:])) {
		return cell[1:]
	}
	return cell
}

// formula reports text that a spreadsheet may evaluate: its first character, not counting space and what cannot be seen, begins a formula in
// some program, be it the wide form.
func formula(s string) bool {
	for i, r := range s {
		switch r {
		case '=', '+', '-', '@', '|', '%', '＝', '＋', '－', '＠', '−':
			return true
		case '\t', '\r', '\n':
			if i == 0 {
				return true
			}
		}
		if !unicode.IsSpace(r) && !unicode.IsControl(r) && !unicode.Is(unicode.Cf, r) && r != utf8.RuneError {
			return false
		}
	}
	return false
}

// appendQuoted appends text in quotes. What is no UTF-8 is replaced, and NUL left out, which some readers end at.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch r {
		case 0:
		case '"':
			b = append(b, `""`...)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// jsonlEncoder writes an object a line. Amounts are strings, counts are numbers.
type jsonlEncoder struct {
	page
	cols []column
	keys [][]byte // with the comma before and the colon after
}

func newJSONL(cols []column, w io.Writer) *jsonlEncoder {
	e := &jsonlEncoder{page: newPage(w), cols: cols}
	for i, c := range cols {
		key := []byte{','}
		if i == 0 {
			key[0] = '{'
		}
		e.keys = append(e.keys, append(appendJSONText(key, c.name), ':'))
	}
	return e
}

func (j *jsonlEncoder) row(v []value) error {
	for i := range j.cols {
		col := &j.cols[i]
		x := &v[col.at]
		j.buf = append(j.buf, j.keys[i]...)
		switch {
		case !x.ok:
			j.buf = append(j.buf, "null"...)
		case col.kind == text:
			j.buf = appendJSONText(j.buf, x.s)
		case col.kind == object:
			j.buf = append(j.buf, x.s...)
		case col.kind == integer:
			j.buf = strconv.AppendInt(j.buf, x.n, 10)
		case col.kind == moment:
			j.buf = append(j.buf, '"')
			j.moment(x.n)
			j.buf = append(j.buf, '"')
		default:
			j.buf = append(appendFixed(append(j.buf, '"'), x.n, x.scale), '"')
		}
	}
	j.buf = append(j.buf, "}\n"...)
	return j.flush(chunk)
}

func (j *jsonlEncoder) close() error { return j.flush(0) }

// appendJSONText appends a JSON string, with what is no UTF-8 replaced.
func appendJSONText(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		case r == '\u2028' || r == '\u2029': // some readers of lines end one there
			b = append(b, '\\', 'u', '2', '0', '2', hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

package statement

import (
	"bytes"
	"strings"

	"codeberg.org/go-pdf/fpdf"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
)

// columns are the widths of a table in millimetres, of the 182 that A4 has between its margins.
var columns = [...]struct {
	width float64
	title string
	align string
}{{66, "Model", "L"}, {42, "Meter", "L"}, {28, "Quantity", "R"}, {24, "Unit price, USD", "R"}, {22, "Amount, USD", "R"}}

const (
	fontName  = "go"
	rowHeight = 5.2
)

// PDF is the statement on A4 pages. The same statement gives the same bytes.
func (s Statement) PDF() ([]byte, error) {
	f := fpdf.New("P", "mm", "A4", "")
	f.SetCatalogSort(true)
	f.SetCreationDate(s.MadeAt)
	f.SetModificationDate(s.MadeAt)
	f.SetProducer("gateway", true)
	f.SetTitle("Statement "+s.Period+", "+s.Account.Name, true)
	f.SetLang("en")
	f.SetMargins(14, 16, 14)
	f.SetAutoPageBreak(true, 18)
	f.AddUTF8FontFromBytes(fontName, "", goregular.TTF)
	f.AddUTF8FontFromBytes(fontName, "B", gobold.TTF)
	f.AliasNbPages("{pages}")
	f.SetFooterFunc(func() {
		f.SetY(-12)
		f.SetFont(fontName, "", 7.5)
		f.SetTextColor(0x55, 0x63, 0x5c)
		f.CellFormat(120, 5, s.Account.Org.String()+"/"+s.Period, "", 0, "L", false, 0, "")
		f.CellFormat(0, 5, "Page "+Count(int64(f.PageNo()))+" of {pages}", "", 0, "R", false, 0, "")
		f.SetTextColor(0, 0, 0)
	})
	p := printer{f}
	f.AddPage()
	f.SetFont(fontName, "B", 18)
	f.CellFormat(0, 9, "Statement", "", 1, "L", false, 0, "")
	f.SetFont(fontName, "", 11)
	f.CellFormat(0, 6, s.Month(), "", 1, "L", false, 0, "")
	f.Ln(2)
	for _, l := range [][2]string{{"For", s.Account.Name + ", " + s.Account.Org.String()}, {"From", s.Issuer}, {"Number", s.Account.Org.String() + "/" + s.Period}, {"Period", s.Range()}} {
		f.SetFont(fontName, "B", 9)
		f.CellFormat(20, rowHeight, l[0], "", 0, "L", false, 0, "")
		f.SetFont(fontName, "", 9)
		f.CellFormat(0, rowHeight, p.fit(l[1], 160), "", 1, "L", false, 0, "")
	}
	f.Ln(2)
	f.SetFont(fontName, "", 9)
	state := s.State()
	if s.Closed {
		state += "\nSHA-256 " + s.SHA256
	}
	f.MultiCell(0, rowHeight, state, "1", "L", false)
	p.heading("Owed")
	p.part(s.Owed)
	p.heading("Paid by people with their own keys")
	f.SetFont(fontName, "", 9)
	if len(s.BYOK.Lines) == 0 {
		f.MultiCell(0, rowHeight, "Nobody used a key of their own.", "", "L", false)
	} else {
		f.MultiCell(0, rowHeight, "Not a part of what is owed: their providers charge them. Amounts are estimates by the price list.", "", "L", false)
		p.part(s.BYOK)
	}
	f.Ln(4)
	f.SetFont(fontName, "", 8)
	f.MultiCell(0, 4.2, "Amounts are US dollars without taxes. Each line is exact to a millionth of a millionth of a dollar in the ledger and shown to the cent, so that the lines add up to the total. Made "+s.Made()+".", "", "L", false)
	var b bytes.Buffer
	if err := f.Output(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// printer writes tables.
type printer struct{ *fpdf.Fpdf }

func (p printer) heading(s string) {
	p.Ln(5)
	if _, height := p.GetPageSize(); p.GetY() > height-50 { // not alone at the foot of a page
		p.AddPage()
	}
	p.SetFont(fontName, "B", 11.5)
	p.CellFormat(0, 7, s, "", 1, "L", false, 0, "")
}

// fit cuts text to a width.
func (p printer) fit(s string, width float64) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > 0xffff { // the writer knows the basic plane alone
			return '\ufffd'
		}
		return r
	}, s)
	if p.GetStringWidth(s) <= width {
		return s
	}
	r := []rune(s)
	for len(r) > 0 && p.GetStringWidth(string(r)+"…") > width {
		r = r[:len(r)-1]
	}
	return string(r) + "…"
}

func (p printer) head() {
	p.SetFont(fontName, "B", 7.5)
	for _, c := range columns {
		p.CellFormat(c.width, rowHeight+1, c.title, "B", 0, c.align, false, 0, "")
	}
	p.Ln(-1)
	p.SetFont(fontName, "", 7.5)
}

func (p printer) part(t Part) {
	p.SetFont(fontName, "", 8)
	note := Count(t.Attempts) + " calls"
	if t.Estimate != 0 {
		note += ", " + Count(t.Estimate) + " of them estimated"
	}
	if t.Unpriced != 0 {
		note += ", " + Count(t.Unpriced) + " without a known price and in no amount"
	}
	p.CellFormat(0, rowHeight, note, "", 1, "L", false, 0, "")
	p.head()
	_, height := p.GetPageSize()
	for _, l := range t.Lines {
		if p.GetY() > height-18-rowHeight {
			p.AddPage()
			p.head()
		}
		quantity := ""
		if l.Unit != "" {
			quantity = Count(l.Quantity) + " " + l.Unit
		}
		for i, s := range [...]string{l.Provider + "/" + l.Model, l.Meter, quantity, strings.Replace(unitPrice(l), "per million", "/ M", 1), l.Shown} {
			p.CellFormat(columns[i].width, rowHeight, p.fit(s, columns[i].width-2), "", 0, columns[i].align, false, 0, "")
		}
		p.Ln(-1)
	}
	p.SetFont(fontName, "B", 8.5)
	p.CellFormat(160, rowHeight+1, "Total", "T", 0, "L", false, 0, "")
	p.CellFormat(22, rowHeight+1, t.Shown, "T", 1, "R", false, 0, "")
}

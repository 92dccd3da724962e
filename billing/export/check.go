package export

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
)

// Finding is a place where a file breaks a rule of the specification.
type Finding struct {
	Row    int64  `json:"row"` // from 1; 0: the file as a whole
	Column string `json:"column,omitempty"`
	Rule   string `json:"rule"`
	What   string `json:"what"`
}

// Checked is what a check found.
type Checked struct {
	Version  Version   `json:"version"`
	Rows     int64     `json:"rows"`
	Broken   int64     `json:"broken"`   // findings in all
	Findings []Finding `json:"findings"` // the first of them
	Billed   string    `json:"billedCost"`
	List     string    `json:"listCost"`
}

const maxFindings = 100

// rule is what the specification says of one column.
type rule struct {
	kind    kind
	level   level
	null    bool // may be null
	allowed []string
	since   Version
}

type level uint8

const (
	mandatory level = iota
	conditional
	recommended
)

var (
	serviceCategories = []string{"AI and Machine Learning", "Analytics", "Business Applications", "Compute", "Databases", "Developer Tools", "Multicloud", "Identity", "Integration", "Internet of Things", "Management and Governance",
		"Media", "Migration", "Mobile", "Networking", "Security", "Storage", "Web", "Other"}
	aiSubcategories = []string{"AI Platforms", "Bots", "Generative AI", "Machine Learning", "Natural Language Processing", "Other (AI and Machine Learning)"}
)

// columnRules are the columns of a Cost and Usage dataset that this gateway can speak of: presence, nulls, data type and allowed values.
var columnRules = map[string]rule{
	"BilledCost":          {kind: money},
	"BillingAccountId":    {},
	"BillingAccountName":  {null: true},
	"BillingAccountType":  {level: conditional, null: true},
	"BillingCurrency":     {},
	"BillingPeriodEnd":    {kind: moment},
	"BillingPeriodStart":  {kind: moment},
	"ChargeCategory":      {allowed: []string{"Usage", "Purchase", "Tax", "Credit", "Adjustment"}},
	"ChargeClass":         {null: true, allowed: []string{"Correction"}},
	"ChargeDescription":   {null: true},
	"ChargeFrequency":     {level: recommended, allowed: []string{"One-Time", "Recurring", "Usage-Based"}},
	"ChargePeriodEnd":     {kind: moment},
	"ChargePeriodStart":   {kind: moment},
	"ConsumedQuantity":    {kind: money, level: conditional, null: true},
	"ConsumedUnit":        {level: conditional, null: true},
	"ContractedCost":      {kind: money},
	"ContractedUnitPrice": {kind: money, level: conditional, null: true},
	"EffectiveCost":       {kind: money},
	"HostProviderName":    {since: FOCUS13},
	"InvoiceId":           {level: recommended, null: true},
	"InvoiceIssuerName":   {},
	"ListCost":            {kind: money},
	"ListUnitPrice":       {kind: money, level: conditional, null: true},
	"PricingCategory":     {level: conditional, null: true, allowed: []string{"Standard", "Dynamic", "Committed", "Other"}},
	"PricingQuantity":     {kind: money, null: true},
	"PricingUnit":         {null: true},
	"ProviderName":        {},
	"PublisherName":       {},
	"RegionId":            {level: conditional, null: true},
	"RegionName":          {level: conditional, null: true},
	"ResourceId":          {level: conditional, null: true},
	"ResourceName":        {level: conditional, null: true},
	"ResourceType":        {level: conditional, null: true},
	"ServiceCategory":     {allowed: serviceCategories},
	"ServiceName":         {},
	"ServiceProviderName": {since: FOCUS13},
	"ServiceSubcategory":  {level: recommended},
	"SkuId":               {level: conditional, null: true},
	"SkuMeter":            {level: conditional, null: true},
	"SkuPriceDetails":     {kind: object, level: conditional, null: true},
	"SkuPriceId":          {level: conditional, null: true},
	"SubAccountId":        {level: conditional, null: true},
	"SubAccountName":      {level: conditional, null: true},
	"SubAccountType":      {level: conditional, null: true},
	"Tags":                {kind: object, level: conditional, null: true},
}

// record is one row of a file that is checked.
type record struct {
	at    map[string]int
	cells []string
	null  []bool
}

// has returns a value; ok is false for null and for a column that is not there.
func (r *record) has(name string) (string, bool) {
	i, ok := r.at[name]
	if !ok || r.null[i] {
		return "", false
	}
	return r.cells[i], true
}

func (r *record) is(name, want string) bool { v, ok := r.has(name); return ok && v == want }

// CheckCSV holds a FOCUS file in CSV against the rules of a version. The error is of reading; what is wrong with the file is in Checked.
func CheckCSV(r io.Reader, v Version) (Checked, error) {
	in := csv.NewReader(r)
	in.ReuseRecord = true
	head, err := in.Read()
	if err != nil {
		return Checked{}, unreadable(err)
	}
	c, err := newChecker(v, slices.Clone(head))
	if err != nil {
		return Checked{}, err
	}
	for {
		cells, err := in.Read()
		if errors.Is(err, io.EOF) {
			return c.done(), nil
		}
		if err != nil {
			return Checked{}, unreadable(err)
		}
		for i, s := range cells {
			c.rec.cells[i], c.rec.null[i] = Plain(s), s == ""
		}
		c.row()
	}
}

func unreadable(err error) error {
	return fault.Wrap(fault.Invalid, "export.Check", "file_unreadable", "The file cannot be read in this format. Check that it is whole, and its format.", err)
}

// CheckParquet does so for a file in Parquet.
func CheckParquet(r io.ReaderAt, size int64, v Version) (Checked, error) {
	f, err := parquet.OpenFile(r, size)
	if err != nil {
		return Checked{}, unreadable(err)
	}
	rows := parquet.NewReader(f)
	defer rows.Close()
	var head []string
	var kinds []parquetKind
	for _, path := range f.Schema().Columns() {
		leaf, _ := f.Schema().Lookup(path...)
		head = append(head, strings.Join(path, "."))
		kinds = append(kinds, kindOf(leaf.Node))
	}
	c, err := newChecker(v, head)
	if err != nil {
		return Checked{}, err
	}
	c.native(kinds)
	batch := make([]parquet.Row, parquetBatch)
	for {
		n, err := rows.ReadRows(batch)
		for _, row := range batch[:n] {
			for _, pv := range row {
				i := pv.Column()
				c.rec.null[i] = pv.IsNull()
				if !pv.IsNull() {
					c.rec.cells[i] = kinds[i].text(pv)
				}
			}
			c.row()
		}
		if errors.Is(err, io.EOF) {
			return c.done(), nil
		}
		if err != nil {
			return Checked{}, unreadable(err)
		}
	}
}

// parquetKind is how values of a Parquet column are read.
type parquetKind struct {
	kind  kind
	scale int
}

func kindOf(n parquet.Node) parquetKind {
	if l := n.Type().LogicalType(); l != nil {
		switch l := l.Value.(type) {
		case *format.DecimalType:
			return parquetKind{money, int(l.Scale)}
		case *format.TimestampType:
			return parquetKind{moment, 0}
		}
	}
	switch n.Type().Kind() {
	case parquet.Int64, parquet.Int32:
		return parquetKind{integer, 0}
	}
	return parquetKind{text, 0}
}

func (k parquetKind) text(v parquet.Value) string {
	switch k.kind {
	case money:
		b := v.ByteArray()
		n := new(big.Int).SetBytes(b)
		if len(b) > 0 && b[0]&0x80 != 0 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		return decimalText(n, k.scale)
	case moment:
		var p page
		p.moment(v.Int64())
		return string(p.buf)
	case integer:
		return fmt.Sprint(v.Int64())
	}
	return string(v.ByteArray())
}

// decimalText is n * 10^-scale as a plain decimal.
func decimalText(n *big.Int, scale int) string {
	s := new(big.Int).Abs(n).String()
	if len(s) <= scale {
		s = strings.Repeat("0", scale-len(s)+1) + s
	}
	whole, frac := s[:len(s)-scale], strings.TrimRight(s[len(s)-scale:], "0")
	if frac != "" {
		whole += "." + frac
	}
	if n.Sign() < 0 {
		return "-" + whole
	}
	return whole
}

type checker struct {
	out    Checked
	rec    record
	seed   maphash.Seed
	ids    map[uint64]struct{}  // of charges
	facts  map[[2]string]string // what must be the same wherever it is told
	period map[[2]string]string // end of a billing period, by account and start
	billed *big.Int
	list   *big.Int
}

func newChecker(v Version, head []string) (*checker, error) {
	if v != FOCUS12 && v != FOCUS13 {
		return nil, fault.Invalidf("export.Check", "/focus", "focus must be 1.2 or 1.3.")
	}
	c := &checker{out: Checked{Version: v, Findings: []Finding{}}, seed: maphash.MakeSeed(), ids: map[uint64]struct{}{}, facts: map[[2]string]string{}, period: map[[2]string]string{}, billed: new(big.Int), list: new(big.Int)}
	c.rec = record{at: map[string]int{}, cells: make([]string, len(head)), null: make([]bool, len(head))}
	for i, name := range head {
		if _, twice := c.rec.at[name]; twice {
			c.find(name, "columns have a name of their own", "it is there twice")
		}
		c.rec.at[name] = i
		if r, ok := columnRules[name]; (!ok || r.since > v) && !strings.HasPrefix(name, "x_") {
			c.find(name, "custom columns begin with x_", "it is no column of this version")
		}
	}
	for name, r := range columnRules {
		if _, ok := c.rec.at[name]; !ok && r.level == mandatory && r.since <= v {
			c.find(name, "mandatory columns are present", "it is missing")
		}
	}
	return c, nil
}

// native notes columns of a Parquet file whose type is not the specification's.
func (c *checker) native(kinds []parquetKind) {
	for name, i := range c.rec.at {
		r, ok := columnRules[name]
		if ok && r.kind != kinds[i].kind && !(r.kind == object && kinds[i].kind == text) {
			c.find(name, "columns have the data type of the specification", "the file has another type")
		}
	}
}

func (c *checker) find(column, rule, what string) {
	c.out.Broken++
	if len(c.out.Findings) < maxFindings {
		c.out.Findings = append(c.out.Findings, Finding{c.out.Rows, column, rule, what})
	}
}

func (c *checker) done() Checked {
	c.out.Billed, c.out.List = decimalText(c.billed, priceScale), decimalText(c.list, priceScale)
	slices.SortStableFunc(c.out.Findings, func(a, b Finding) int {
		if a.Row == 0 && b.Row == 0 {
			return strings.Compare(a.Column+a.Rule, b.Column+b.Rule)
		}
		return 0
	})
	return c.out
}

var (
	decimalForm  = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?$`)
	currencyForm = regexp.MustCompile(`^[A-Z]{3}$`)
)

const dateTimeForm = "2006-01-02T15:04:05Z"

// decimal reads a decimal with up to 18 digits after the point, as a number of 10^-18.
func decimal(s string) (*big.Int, bool) {
	whole, frac, _ := strings.Cut(s, ".")
	if !decimalForm.MatchString(s) || len(frac) > priceScale || len(whole) > 40 {
		return nil, false
	}
	return new(big.Int).SetString(whole+frac+strings.Repeat("0", priceScale-len(frac)), 10)
}

func (c *checker) row() {
	c.out.Rows++
	r := &c.rec
	for name, i := range r.at {
		c.cell(name, i)
	}
	for _, rule := range rowRules {
		if column, what := rule.broken(r); what != "" {
			c.find(column, rule.says, what)
		}
	}
	c.products()
	c.acrossRows()
}

// cell checks one value by itself.
func (c *checker) cell(name string, i int) {
	rule, ok := columnRules[name]
	if !ok {
		return
	}
	s := c.rec.cells[i]
	if c.rec.null[i] {
		if !rule.null {
			c.find(name, "the column is not null", "it is null")
		}
		return
	}
	if rule.allowed != nil && !slices.Contains(rule.allowed, s) {
		c.find(name, "the value is one of the allowed values", fmt.Sprintf("it is %q", short(s)))
	}
	switch rule.kind {
	case money:
		n, ok := decimal(s)
		if !ok {
			c.find(name, "numbers are plain decimals", fmt.Sprintf("it is %q", short(s)))
		} else if name == "BilledCost" {
			c.billed.Add(c.billed, n)
		} else if name == "ListCost" {
			c.list.Add(c.list, n)
		}
	case moment:
		if _, err := time.Parse(dateTimeForm, s); err != nil || len(s) != len(dateTimeForm) {
			c.find(name, "times are UTC, such as 2026-11-30T12:00:00Z", fmt.Sprintf("it is %q", short(s)))
		}
	case object:
		c.keyValues(name, s)
	}
	if name == "BillingCurrency" && !currencyForm.MatchString(s) {
		c.find(name, "currencies are of ISO 4217", fmt.Sprintf("it is %q", short(s)))
	}
}

func short(s string) string { return s[:min(len(s), 60)] }

// keyValues checks a JSON object: keys once each, values that are no objects; what is not the specification's begins with x_ in price details.
func (c *checker) keyValues(name, s string) {
	const says = "key-value columns are JSON objects of plain values"
	d := json.NewDecoder(strings.NewReader(s))
	if t, err := d.Token(); err != nil || t != json.Delim('{') || !json.Valid([]byte(s)) {
		c.find(name, says, "it is no JSON object")
		return
	}
	seen := map[string]bool{}
	for d.More() {
		k, _ := d.Token()
		key, _ := k.(string)
		v, _ := d.Token()
		if _, nested := v.(json.Delim); nested {
			c.find(name, says, fmt.Sprintf("%q is no plain value", short(key)))
			return
		}
		if seen[key] {
			c.find(name, says, fmt.Sprintf("%q is there twice", short(key)))
		}
		seen[key] = true
		if name == "SkuPriceDetails" && !strings.HasPrefix(key, "x_") && !slices.Contains(priceProperties, key) {
			c.find(name, "keys of price details are the specification's or begin with x_", fmt.Sprintf("%q", short(key)))
		}
	}
}

var priceProperties = []string{"CoreCount", "DiskMaxIops", "DiskSpace", "DiskType", "GpuCount", "InstanceType", "InstanceSeries", "MemorySize", "NetworkMaxIops", "NetworkMaxThroughput", "OperatingSystem", "Redundancy", "StorageClass"}

// rowRule is a rule about several columns of one row; broken returns "" where it is kept.
type rowRule struct {
	says   string
	broken func(r *record) (column, what string)
}

// charged reports a row that has a quantity and a price: usage or a purchase that corrects nothing.
func charged(r *record) bool {
	return (r.is("ChargeCategory", "Usage") || r.is("ChargeCategory", "Purchase")) && !r.is("ChargeClass", "Correction")
}

func together(a, b string) func(r *record) (string, string) {
	return func(r *record) (string, string) {
		_, one := r.has(a)
		_, other := r.has(b)
		if one != other {
			return b, "one of the two is null"
		}
		return "", ""
	}
}

func onlyWith(column, needs string) func(r *record) (string, string) {
	return func(r *record) (string, string) {
		_, one := r.has(column)
		if _, other := r.has(needs); one && !other {
			return column, needs + " is null"
		}
		return "", ""
	}
}

func whenCharged(column string) func(r *record) (string, string) {
	return func(r *record) (string, string) {
		_, present := r.at[column]
		if _, ok := r.has(column); present && !ok && charged(r) {
			return column, "it is null"
		}
		return "", ""
	}
}

func notNegative(column string) func(r *record) (string, string) {
	return func(r *record) (string, string) {
		if s, ok := r.has(column); ok && strings.HasPrefix(s, "-") && (column != "ConsumedQuantity" && column != "PricingQuantity" || !r.is("ChargeClass", "Correction")) {
			return column, "it is negative"
		}
		return "", ""
	}
}

func ordered(from, to string) func(r *record) (string, string) {
	return func(r *record) (string, string) {
		a, ok1 := r.has(from)
		b, ok2 := r.has(to)
		if ok1 && ok2 && a >= b { // the one form of times sorts as text
			return to, "the period ends before it begins"
		}
		return "", ""
	}
}

const byokIs = "user-byok"

// rowRules are the specification's rules about several columns, and what holds for this gateway besides: BYOK is nobody's bill here.
var rowRules = []rowRule{
	{"BillingPeriodStart lies before BillingPeriodEnd", ordered("BillingPeriodStart", "BillingPeriodEnd")},
	{"ChargePeriodStart lies before ChargePeriodEnd", ordered("ChargePeriodStart", "ChargePeriodEnd")},
	{"a charge lies in its billing period unless it corrects an earlier one", func(r *record) (string, string) {
		cs, _ := r.has("ChargePeriodStart")
		ce, _ := r.has("ChargePeriodEnd")
		bs, _ := r.has("BillingPeriodStart")
		be, _ := r.has("BillingPeriodEnd")
		switch correction := r.is("ChargeClass", "Correction"); {
		case !correction && (cs < bs || ce > be):
			return "ChargePeriodStart", "it lies outside"
		case correction && cs >= bs:
			return "ChargeClass", "a correction within the current billing period has no class"
		}
		return "", ""
	}},
	{"ConsumedQuantity is of usage only", func(r *record) (string, string) {
		if _, ok := r.has("ConsumedQuantity"); ok && !r.is("ChargeCategory", "Usage") {
			return "ConsumedQuantity", "it is not null"
		}
		return "", ""
	}},
	{"usage has a ConsumedQuantity", func(r *record) (string, string) {
		_, present := r.at["ConsumedQuantity"]
		if _, ok := r.has("ConsumedQuantity"); present && !ok && r.is("ChargeCategory", "Usage") && !r.is("ChargeClass", "Correction") {
			return "ConsumedQuantity", "it is null"
		}
		return "", ""
	}},
	{"ConsumedUnit comes with ConsumedQuantity", together("ConsumedQuantity", "ConsumedUnit")},
	{"PricingUnit comes with PricingQuantity", together("PricingQuantity", "PricingUnit")},
	{"usage and purchases have a PricingQuantity", whenCharged("PricingQuantity")},
	{"usage and purchases have a PricingCategory", whenCharged("PricingCategory")},
	{"usage and purchases have a ListUnitPrice", whenCharged("ListUnitPrice")},
	{"usage and purchases have a ContractedUnitPrice", whenCharged("ContractedUnitPrice")},
	{"usage and purchases have a SkuId", whenCharged("SkuId")},
	{"usage and purchases have a SkuPriceId", whenCharged("SkuPriceId")},
	{"quantities are not negative", notNegative("ConsumedQuantity")},
	{"quantities are not negative", notNegative("PricingQuantity")},
	{"unit prices are not negative", notNegative("ListUnitPrice")},
	{"unit prices are not negative", notNegative("ContractedUnitPrice")},
	{"unit prices need a SkuPriceId", onlyWith("ListUnitPrice", "SkuPriceId")},
	{"unit prices need a SkuPriceId", onlyWith("ContractedUnitPrice", "SkuPriceId")},
	{"quantities need a SkuPriceId", onlyWith("ConsumedQuantity", "SkuPriceId")},
	{"quantities need a SkuPriceId", onlyWith("PricingQuantity", "SkuPriceId")},
	{"SkuPriceId needs a SkuId", onlyWith("SkuPriceId", "SkuId")},
	{"SkuMeter needs a SkuId", onlyWith("SkuMeter", "SkuId")},
	{"SkuPriceDetails need a SkuPriceId", onlyWith("SkuPriceDetails", "SkuPriceId")},
	{"RegionName comes with RegionId", together("RegionId", "RegionName")},
	{"ResourceType comes with ResourceId", together("ResourceId", "ResourceType")},
	{"ResourceName needs a ResourceId", onlyWith("ResourceName", "ResourceId")},
	{"SubAccountName comes with SubAccountId", together("SubAccountId", "SubAccountName")},
	{"SubAccountType comes with SubAccountId", together("SubAccountId", "SubAccountType")},
	{"BillingAccountType comes with BillingAccountId", func(r *record) (string, string) {
		if _, present := r.at["BillingAccountType"]; !present {
			return "", ""
		}
		return together("BillingAccountId", "BillingAccountType")(r)
	}},
	{"purchases are not Usage-Based", func(r *record) (string, string) {
		if r.is("ChargeCategory", "Purchase") && r.is("ChargeFrequency", "Usage-Based") {
			return "ChargeFrequency", "it is Usage-Based"
		}
		return "", ""
	}},
	{"a subcategory is one of its category", func(r *record) (string, string) {
		if s, ok := r.has("ServiceSubcategory"); ok && r.is("ServiceCategory", "AI and Machine Learning") && !slices.Contains(aiSubcategories, s) {
			return "ServiceSubcategory", fmt.Sprintf("it is %q", short(s))
		}
		return "", ""
	}},
	{"a credit costs by contract what is billed", func(r *record) (string, string) {
		a, _ := r.has("ContractedCost")
		if b, _ := r.has("BilledCost"); r.is("ChargeCategory", "Credit") && a != b {
			return "ContractedCost", "it is not BilledCost"
		}
		return "", ""
	}},
	{"what a third party is paid for is billed 0", func(r *record) (string, string) {
		if !r.is("x_KeySource", byokIs) {
			return "", ""
		}
		for _, c := range []string{"BilledCost", "EffectiveCost"} {
			if s, _ := r.has(c); s != "0" {
				return c, "it is not 0 on a person's own key"
			}
		}
		provider, ok := r.has("ServiceProviderName")
		if !ok {
			provider, _ = r.has("ProviderName")
		}
		if !r.is("InvoiceIssuerName", provider) {
			return "InvoiceIssuerName", "it is not the provider on a person's own key"
		}
		if _, ok := r.has("InvoiceId"); ok {
			return "InvoiceId", "the gateway does not invoice what a person paid"
		}
		return "", ""
	}},
}

// tolerance is one pico-USD: where a unit price has more digits than that, what a charge costs is rounded to it.
var tolerance = big.NewInt(1_000_000)

// products holds costs against unit price times quantity.
func (c *checker) products() {
	for _, p := range [][2]string{{"ListCost", "ListUnitPrice"}, {"ContractedCost", "ContractedUnitPrice"}} {
		cost, ok1 := c.number(p[0])
		unit, ok2 := c.number(p[1])
		n, ok3 := c.number("PricingQuantity")
		if !ok1 || !ok2 || !ok3 || c.rec.is("ChargeClass", "Correction") {
			continue
		}
		scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(priceScale), nil)
		want := new(big.Int).Mul(unit, n)
		diff := want.Sub(want, cost.Mul(cost, scale))
		if diff.CmpAbs(new(big.Int).Mul(tolerance, scale)) > 0 {
			c.find(p[0], p[0]+" is "+p[1]+" times PricingQuantity", "it differs")
		}
	}
}

func (c *checker) number(name string) (*big.Int, bool) {
	s, ok := c.rec.has(name)
	if !ok {
		return nil, false
	}
	return decimal(s)
}

// maxFacts bounds what is remembered of other rows.
const maxFacts = 200_000

// acrossRows checks what must be the same, or never the same, in all rows.
func (c *checker) acrossRows() {
	if id, ok := c.rec.has("x_ChargeId"); ok {
		h := maphash.String(c.seed, id)
		if _, twice := c.ids[h]; twice {
			c.find("x_ChargeId", "each charge is there once", fmt.Sprintf("%q is there again", short(id)))
		}
		c.ids[h] = struct{}{}
	}
	for _, p := range [][2]string{{"SkuId", "SkuMeter"}, {"SkuPriceId", "SkuId"}, {"SkuPriceId", "SkuPriceDetails"}, {"InvoiceId", "InvoiceIssuerName"}, {"InvoiceId", "BillingPeriodStart"}, {"BillingAccountId", "BillingAccountName"}, {"BillingAccountId", "BillingCurrency"}} {
		key, ok1 := c.rec.has(p[0])
		v, ok2 := c.rec.has(p[1])
		if !ok1 || !ok2 {
			continue
		}
		at := [2]string{p[0] + " " + p[1], key}
		if have, ok := c.facts[at]; ok && have != v {
			c.find(p[1], p[1]+" is the same for each "+p[0], fmt.Sprintf("it is %q and %q", short(have), short(v)))
		} else if !ok && len(c.facts) < maxFacts {
			c.facts[[2]string{at[0], strings.Clone(key)}] = strings.Clone(v)
		}
	}
	account, _ := c.rec.has("BillingAccountId")
	start, _ := c.rec.has("BillingPeriodStart")
	end, _ := c.rec.has("BillingPeriodEnd")
	at := [2]string{account, start}
	if have, ok := c.period[at]; ok {
		if have != end {
			c.find("BillingPeriodEnd", "billing periods of an account do not overlap", "the period ended otherwise in another row")
		}
		return
	}
	for other, otherEnd := range c.period {
		if other[0] == account && start < otherEnd && other[1] < end {
			c.find("BillingPeriodStart", "billing periods of an account do not overlap", "it lies in another period")
			break
		}
	}
	if len(c.period) < maxFacts {
		c.period[[2]string{strings.Clone(account), strings.Clone(start)}] = strings.Clone(end)
	}
}

// Sum reads an amount of Checked.
func (c Checked) Sum() (billed, list billing.Pico, err error) {
	if billed, err = billing.ParseUSD(c.Billed); err != nil {
		return 0, 0, err
	}
	list, err = billing.ParseUSD(c.List)
	return billed, list, err
}

package export

import (
	"context"
	"io"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// The values of a FOCUS row, in the order of the file: FOCUS columns by name, then the gateway's own.
const (
	fBilledCost = iota
	fBillingAccountID
	fBillingAccountName
	fBillingAccountType
	fBillingCurrency
	fBillingPeriodEnd
	fBillingPeriodStart
	fChargeCategory
	fChargeClass
	fChargeDescription
	fChargeFrequency
	fChargePeriodEnd
	fChargePeriodStart
	fConsumedQuantity
	fConsumedUnit
	fContractedCost
	fContractedUnitPrice
	fEffectiveCost
	fHostProviderName
	fInvoiceID
	fInvoiceIssuerName
	fListCost
	fListUnitPrice
	fPricingCategory
	fPricingQuantity
	fPricingUnit
	fProviderName
	fPublisherName
	fRegionID
	fRegionName
	fResourceID
	fResourceName
	fResourceType
	fServiceCategory
	fServiceName
	fServiceProviderName
	fServiceSubcategory
	fSkuID
	fSkuMeter
	fSkuPriceDetails
	fSkuPriceID
	fSubAccountID
	fSubAccountName
	fSubAccountType
	fTags
	fxBasis
	fxChargeID
	fxKeySource
	fxListCost
	fxModel
	fxProviderCost
	fxReasoningTokens
	fxRunID
	fxStatus
	fxUser
	focusWidth
)

// focusFields are names and kinds of the values of a FOCUS row. since is the first version that has a column; empty: all.
var focusFields = [focusWidth]struct {
	name  string
	kind  kind
	many  bool
	since Version
}{
	fBilledCost:          {name: "BilledCost", kind: money},
	fBillingAccountID:    {name: "BillingAccountId"},
	fBillingAccountName:  {name: "BillingAccountName"},
	fBillingAccountType:  {name: "BillingAccountType"},
	fBillingCurrency:     {name: "BillingCurrency"},
	fBillingPeriodEnd:    {name: "BillingPeriodEnd", kind: moment},
	fBillingPeriodStart:  {name: "BillingPeriodStart", kind: moment},
	fChargeCategory:      {name: "ChargeCategory"},
	fChargeClass:         {name: "ChargeClass"},
	fChargeDescription:   {name: "ChargeDescription"},
	fChargeFrequency:     {name: "ChargeFrequency"},
	fChargePeriodEnd:     {name: "ChargePeriodEnd", kind: moment},
	fChargePeriodStart:   {name: "ChargePeriodStart", kind: moment},
	fConsumedQuantity:    {name: "ConsumedQuantity", kind: price},
	fConsumedUnit:        {name: "ConsumedUnit"},
	fContractedCost:      {name: "ContractedCost", kind: money},
	fContractedUnitPrice: {name: "ContractedUnitPrice", kind: price},
	fEffectiveCost:       {name: "EffectiveCost", kind: money},
	fHostProviderName:    {name: "HostProviderName", since: FOCUS13},
	fInvoiceID:           {name: "InvoiceId"},
	fInvoiceIssuerName:   {name: "InvoiceIssuerName"},
	fListCost:            {name: "ListCost", kind: money},
	fListUnitPrice:       {name: "ListUnitPrice", kind: price},
	fPricingCategory:     {name: "PricingCategory"},
	fPricingQuantity:     {name: "PricingQuantity", kind: price},
	fPricingUnit:         {name: "PricingUnit"},
	fProviderName:        {name: "ProviderName"},
	fPublisherName:       {name: "PublisherName"},
	fRegionID:            {name: "RegionId"},
	fRegionName:          {name: "RegionName"},
	fResourceID:          {name: "ResourceId"},
	fResourceName:        {name: "ResourceName"},
	fResourceType:        {name: "ResourceType"},
	fServiceCategory:     {name: "ServiceCategory"},
	fServiceName:         {name: "ServiceName"},
	fServiceProviderName: {name: "ServiceProviderName", since: FOCUS13},
	fServiceSubcategory:  {name: "ServiceSubcategory"},
	fSkuID:               {name: "SkuId"},
	fSkuMeter:            {name: "SkuMeter"},
	fSkuPriceDetails:     {name: "SkuPriceDetails", kind: object},
	fSkuPriceID:          {name: "SkuPriceId"},
	fSubAccountID:        {name: "SubAccountId"},
	fSubAccountName:      {name: "SubAccountName"},
	fSubAccountType:      {name: "SubAccountType"},
	fTags:                {name: "Tags", kind: object},
	fxBasis:              {name: "x_Basis"},
	fxChargeID:           {name: "x_ChargeId", many: true},
	fxKeySource:          {name: "x_KeySource"},
	fxListCost:           {name: "x_ListCost", kind: money},
	fxModel:              {name: "x_Model"},
	fxProviderCost:       {name: "x_ProviderCost", kind: money},
	fxReasoningTokens:    {name: "x_ReasoningTokens", kind: integer},
	fxRunID:              {name: "x_RunId", many: true},
	fxStatus:             {name: "x_Status"},
	fxUser:               {name: "x_User"},
}

func focusColumns(v Version) []column {
	var out []column
	for i, f := range focusFields {
		if f.since <= v {
			out = append(out, column{name: f.name, kind: f.kind, at: i, many: f.many})
		}
	}
	return out
}

// The words of FOCUS rows.
const (
	categoryUsage      = "Usage"
	categoryAdjustment = "Adjustment"
	classCorrection    = "Correction"
	unitTokens         = "Tokens"
	unitRequests       = "Requests"
)

// meters are what buckets are called, and what they are counted in.
var meters = map[billing.Bucket][2]string{
	billing.BucketInput: {"Input", unitTokens}, billing.BucketCacheRead: {"Cache Read", unitTokens}, billing.BucketCacheWrite5m: {"Cache Write 5 Minutes", unitTokens}, billing.BucketCacheWrite1h: {"Cache Write 1 Hour", unitTokens},
	billing.BucketOutput: {"Output", unitTokens}, billing.BucketReasoning: {"Reasoning Output", unitTokens}, billing.BucketCitation: {"Citation Output", unitTokens},
	billing.BucketInputAudio: {"Audio Input", unitTokens}, billing.BucketCacheReadAudio: {"Audio Cache Read", unitTokens}, billing.BucketOutputAudio: {"Audio Output", unitTokens},
	billing.BucketInputImage: {"Image Input", unitTokens}, billing.BucketCacheReadImage: {"Image Cache Read", unitTokens}, billing.BucketOutputImage: {"Image Output", unitTokens},
	billing.BucketSearch: {"Web Search", "Searches"}, billing.BucketRequest: {"Request", unitRequests},
}

// wholeCall is the meter of a call that is one charge, because what its parts cost is not known any more.
const wholeCall = "call"

// sku is what a unit of one meter of one model is called.
type sku struct{ id, meter, unit, priceID, details, description string }

type skuKey struct{ provider, model, row, rev, meter, unit, name string }

// keepNames bounds the names a file remembers.
const keepNames = 20_000

// focusWriter turns events into rows.
type focusWriter struct {
	enc    encoder
	q      *Request
	row    [focusWidth]value
	skus   map[skuKey]*sku
	tags   map[[3]string]string
	tally  tally
	billed [2]billing.Pico // what rows added up to: the organisation's and people's own
	cost   [2]billing.Pico
	list   [2]billing.Pico
}

// focus writes the charges of each organisation, month by month of its own zone: what is booked in a month is a charge of that billing period.
func (x *Export) focus(ctx context.Context, w io.Writer) (Result, encoder, error) {
	enc, err := newEncoder(x.q.Format, focusColumns(x.q.FOCUS), w)
	if err != nil {
		return Result{}, nil, err
	}
	f := &focusWriter{enc: enc, q: &x.q, skus: map[skuKey]*sku{}, tags: map[[3]string]string{}}
	var orgs []string
	err = x.r.Cells(ctx, report.Cells{Filter: x.q.Filter, By: []report.Dim{report.ByOrg}, Zone: x.q.Zone}, func(c report.Cell) error {
		orgs = append(orgs, c.By[0])
		return nil
	})
	if err != nil {
		return f.tally.Result, nil, err
	}
	closes, err := x.r.Closes(ctx, x.q.Scope)
	if err != nil {
		return f.tally.Result, nil, err
	}
	slices.Sort(orgs)
	for _, name := range orgs {
		org, err := tenancy.ParseOrgID(name)
		if err != nil {
			return f.tally.Result, nil, err
		}
		if err := f.account(ctx, x.r, org, closes); err != nil {
			return f.tally.Result, nil, err
		}
	}
	t := &f.tally.Totals
	if f.billed != [2]billing.Pico{t.Org.Billed, 0} || f.cost != [2]billing.Pico{t.Org.Cost, t.BYOK.Cost} || f.list != [2]billing.Pico{t.Org.List, t.BYOK.List} {
		return f.tally.Result, nil, fault.New(fault.Internal, "export.focus", "export_differs", "The charges do not add up to the calls they are of, and the file must not be used. Tell us the range.")
	}
	return f.tally.Result, enc, nil
}

// account writes one organisation's charges.
func (f *focusWriter) account(ctx context.Context, r report.Reader, org tenancy.OrgID, closes []report.Close) error {
	a, err := f.q.Account(ctx, org)
	if err != nil {
		return err
	}
	if a.Zone == nil {
		a.Zone = time.UTC
	}
	f.row = [focusWidth]value{}
	set := func(at int, s string) { f.row[at] = textOf(s) }
	set(fBillingAccountID, org.String())
	set(fBillingAccountName, a.Name)
	if a.Name == "" {
		set(fBillingAccountName, org.String())
	}
	set(fBillingAccountType, "Organisation")
	set(fBillingCurrency, "USD")
	set(fChargeFrequency, "Usage-Based")
	set(fServiceCategory, "AI and Machine Learning")
	set(fServiceSubcategory, "Generative AI")
	from, to := f.q.From, f.q.To
	if f.q.Days.Set() {
		from, to = billing.DayStart(report.Date(f.q.Days.First), a.Zone), billing.DayStart(report.Date(f.q.Days.Last), a.Zone)
	}
	day := report.Date(billing.DayOf(from, a.Zone))
	for month := day.AddDate(0, 0, 1-day.Day()); ; {
		next := month.AddDate(0, 1, 0)
		start, end := billing.DayStart(month, a.Zone), billing.DayStart(next, a.Zone)
		if !start.Before(to) {
			return nil
		}
		period := month.Format("2006-01")
		f.row[fBillingPeriodStart], f.row[fBillingPeriodEnd] = momentOf(start), momentOf(end)
		invoice := ""
		if slices.ContainsFunc(closes, func(c report.Close) bool { return c.Org == org && c.Period == period }) {
			invoice = org.String() + "/" + period
		}
		part := report.Filter{Scope: report.Scope{Org: org}, From: later(start, from), To: earlier(end, to), Match: f.q.Match}
		if err := each(ctx, r, part, func(e *billing.Event) error { return f.event(e, invoice, start, end) }); err != nil {
			return err
		}
		month = next
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// event writes the charges of one event.
func (f *focusWriter) event(e *billing.Event, invoice string, start, end time.Time) error {
	if err := f.tally.event(e); err != nil {
		return err
	}
	byok := e.BYOK()
	issuer := f.q.Issuer
	if byok {
		issuer, invoice = e.Provider, "" // the person has the provider's own invoice
	}
	row := &f.row
	row[fInvoiceID], row[fInvoiceIssuerName] = textOrNull(invoice), textOf(issuer)
	provider := textOf(e.Provider)
	row[fProviderName], row[fPublisherName], row[fServiceProviderName], row[fHostProviderName] = provider, provider, provider, provider
	row[fRegionID], row[fRegionName] = textOrNull(e.Usage.Terms.Geo), textOrNull(e.Usage.Terms.Geo)
	row[fResourceID], row[fResourceType] = textOrNull(e.KeyID), value{}
	if e.KeyID != "" {
		row[fResourceType] = textOf("LLM API Key")
	}
	row[fSubAccountID], row[fSubAccountName], row[fSubAccountType] = textOrNull(e.ProjectID), textOrNull(e.ProjectID), value{}
	if e.ProjectID != "" {
		row[fSubAccountType] = textOf("Project")
	}
	row[fTags] = value{s: f.tagsOf(e), ok: true}
	row[fxBasis], row[fxKeySource], row[fxModel] = textOf(string(e.Basis)), textOrNull(e.KeySource), textOrNull(e.Model)
	row[fxReasoningTokens], row[fxRunID], row[fxStatus], row[fxUser] = countOf(e.Usage.Reasoning), textOrNull(e.RunID), textOf(e.Status), textOrNull(string(e.User))

	// Seconds are what FOCUS knows; the end is not a part of the period.
	from := e.StartedAt.Truncate(time.Second)
	to := e.EndedAt.Add(time.Second - 1).Truncate(time.Second)
	if !to.After(from) {
		to = from.Add(time.Second)
	}
	row[fChargeClass] = value{}
	if e.StartedAt.Before(start) { // booked late, as its own month was closed
		row[fChargeClass] = textOf(classCorrection)
	} else if to.After(end) {
		to = end
	}
	row[fChargePeriodStart], row[fChargePeriodEnd] = momentOf(from), momentOf(to)
	return f.charges(e, byok)
}

func (f *focusWriter) charges(e *billing.Event, byok bool) error {
	if e.Basis == billing.Correction || e.Cost == nil {
		return f.adjustment(e, byok)
	}
	list := f.q.Prices.List()
	quote := list.Quote(e.Provider, e.Model, e.StartedAt, e.Usage)
	parts := quote.Parts()
	// A catalogue that is not the one it was booked by, or a price the provider told, cannot say what the parts cost.
	if len(parts) == 0 || e.List == nil || *quote.Cost != *e.List || *e.Cost != *e.List {
		return f.whole(e, byok)
	}
	agreed, terms := parts, quote.Multiplier
	if own := f.q.Prices.For(e.Org); !byok && own != list {
		q := own.Quote(e.Provider, e.Model, e.StartedAt, e.Usage)
		agreed, terms = q.Parts(), q.Multiplier
		if q.Cost == nil || *q.Cost != e.Billed || len(agreed) != len(parts) {
			return f.whole(e, byok)
		}
	} else if !byok && *e.List != e.Billed {
		return f.whole(e, byok)
	}
	for i, p := range parts {
		a := agreed[i]
		listed, ok1 := unitPrice(p, quote.Multiplier)
		contracted, ok2 := unitPrice(a, terms)
		if !ok1 || !ok2 || a.Bucket != p.Bucket {
			if i == 0 {
				return f.whole(e, byok)
			}
			return fault.New(fault.Internal, "export.focus", "charge_unpriceable", "A call could not be split into charges. Tell us the range.")
		}
		m := meters[p.Bucket]
		s := f.skuOf(e, p.Bucket.String(), m[1], m[0])
		if err := f.charge(e, byok, s, p.Bucket.String(), p.Count, listed, contracted, p.Cost, a.Cost, p.Cost, p.Cost); err != nil {
			return err
		}
	}
	return nil
}

// unitPrice is the exact price of a unit; ok is false where it has more digits than can be written.
func unitPrice(p billing.Part, multiplier int64) (value, bool) {
	if p.Bucket >= billing.BucketSearch || multiplier == 1_000_000 {
		return moneyOf(p.Rate), true
	}
	hi, lo := bits.Mul64(uint64(p.Rate), uint64(multiplier))
	return value{n: int64(lo), scale: priceScale, ok: true}, hi == 0 && lo < 1<<63
}

// whole writes a call as one charge for one request.
func (f *focusWriter) whole(e *billing.Event, byok bool) error {
	list := *e.Cost
	var told billing.Pico
	if e.List != nil {
		list, told = *e.List, *e.List
	}
	agreed := e.Billed
	if byok {
		agreed = list
	}
	s := f.skuOf(e, wholeCall, unitRequests, "Call")
	return f.charge(e, byok, s, wholeCall, 1, moneyOf(list), moneyOf(agreed), list, agreed, *e.Cost, told)
}

// charge writes one row of usage: count units at a listed and a contracted price. cost is what the provider charges, told the ledger's list price.
func (f *focusWriter) charge(e *billing.Event, byok bool, s *sku, name string, count int64, listed, contracted value, list, agreed, cost, told billing.Pico) error {
	row := &f.row
	n := value{n: count, ok: true}
	row[fChargeCategory], row[fChargeDescription], row[fPricingCategory] = textOf(categoryUsage), textOf(s.description), textOf("Standard")
	if e.Basis == billing.Reported {
		row[fPricingCategory] = textOf("Dynamic")
	}
	row[fConsumedQuantity], row[fConsumedUnit], row[fPricingQuantity], row[fPricingUnit] = n, textOf(s.unit), n, textOf(s.unit)
	row[fSkuID], row[fSkuMeter], row[fSkuPriceID], row[fSkuPriceDetails] = textOf(s.id), textOf(s.meter), textOf(s.priceID), value{s: s.details, ok: true}
	row[fListUnitPrice], row[fContractedUnitPrice] = listed, contracted
	return f.put(e, byok, name, list, agreed, cost, told)
}

// adjustment writes a correction, or a call without a price: nothing is charged for that until a correction does.
func (f *focusWriter) adjustment(e *billing.Event, byok bool) error {
	row := &f.row
	for _, at := range [...]int{fPricingCategory, fConsumedQuantity, fConsumedUnit, fPricingQuantity, fPricingUnit, fSkuID, fSkuMeter, fSkuPriceID, fSkuPriceDetails, fListUnitPrice, fContractedUnitPrice} {
		row[at] = value{}
	}
	row[fChargeCategory] = textOf(categoryAdjustment)
	name, said := "correction", "correction of the price of a call of "
	if e.Basis != billing.Correction {
		name, said = "unpriced", "call without a known price of "
	}
	row[fChargeDescription] = textOf(said + e.Model)
	var list, cost billing.Pico
	if e.List != nil {
		list = *e.List
	}
	if e.Cost != nil {
		cost = *e.Cost
	}
	agreed := e.Billed
	if byok {
		agreed = list
	}
	return f.put(e, byok, name, list, agreed, cost, list)
}

func (f *focusWriter) put(e *billing.Event, byok bool, name string, list, agreed, cost, told billing.Pico) error {
	row := &f.row
	billed, who := agreed, 0
	if byok {
		billed, who = 0, 1
	}
	row[fServiceName] = textOf(f.serviceOf(e))
	row[fBilledCost], row[fEffectiveCost] = moneyOf(billed), moneyOf(billed)
	row[fContractedCost], row[fListCost], row[fxProviderCost], row[fxListCost] = moneyOf(agreed), moneyOf(list), moneyOf(cost), moneyOf(told)
	row[fxChargeID] = textOf(e.ID + "/" + name)
	f.billed[who] += billed
	f.cost[who] += cost
	f.list[who] += told
	f.tally.Rows++
	return f.enc.row(row[:])
}

// skuOf names a unit of a meter.
func (f *focusWriter) skuOf(e *billing.Event, meter, unit, name string) *sku {
	key := skuKey{e.Provider, e.Model, e.PriceRow, e.PriceRev, meter, unit, name}
	if s := f.skus[key]; s != nil {
		return s
	}
	if len(f.skus) >= keepNames {
		clear(f.skus)
	}
	s := &sku{id: e.Provider + "/" + e.Model + "/" + meter, meter: name + " " + unit, unit: unit}
	if name == "Call" || name == "Request" {
		s.meter = name + "s"
	}
	s.priceID = s.id
	details := []byte(`{"x_Model":`)
	details = appendJSONText(details, e.Model)
	if e.PriceRow != "" {
		s.priceID += "/" + e.PriceRow + "/" + e.PriceRev
		details = appendJSONText(append(details, `,"x_PriceRow":`...), e.PriceRow)
		details = appendJSONText(append(details, `,"x_PriceRevision":`...), e.PriceRev)
	}
	s.details = string(append(details, '}'))
	s.description = s.meter + " of " + e.Model
	f.skus[key] = s
	return s
}

// serviceOf names the provider's service.
func (f *focusWriter) serviceOf(e *billing.Event) string {
	key := [3]string{"\x00service", e.Provider}
	if s, ok := f.tags[key]; ok {
		return s
	}
	s := strings.TrimSpace(e.Provider + " models")
	f.tags[key] = s
	return s
}

// tagsOf is what a charge is tagged with.
func (f *focusWriter) tagsOf(e *billing.Event) string {
	key := [3]string{string(e.User), string(e.Surface), e.Capability}
	if s, ok := f.tags[key]; ok {
		return s
	}
	if len(f.tags) >= keepNames {
		clear(f.tags)
	}
	b := appendJSONText([]byte(`{"gateway/surface":`), string(e.Surface))
	if e.User != "" {
		b = appendJSONText(append(b, `,"gateway/user":`...), string(e.User))
	}
	if e.Capability != "" {
		b = appendJSONText(append(b, `,"gateway/capability":`...), e.Capability)
	}
	s := string(append(b, '}'))
	f.tags[key] = s
	return s
}

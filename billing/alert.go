package billing

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// AlertKind says what an alert is about.
type AlertKind string

// The kinds of alerts.
const (
	AlertThreshold AlertKind = "threshold" // so many percent of the cap were spent
	AlertForecast  AlertKind = "forecast"  // at the pace of the window so far, more than the cap will be
)

// Alert is a threshold that was crossed, the first time in a window, or a forecast that did. A budget that only warns is a soft cap, and its
// alerts are those of one.
type Alert struct {
	Org      tenancy.OrgID `json:"-"`
	Budget   string        `json:"budget"` // Budget.ID
	Seq      int64         `json:"-"`
	Unit     Unit          `json:"unit"`
	Start    time.Time     `json:"windowStart"`
	Kind     AlertKind     `json:"kind"`
	Percent  int           `json:"percent"` // of the cap; 0 for a forecast
	Spent    Amount        `json:"-"`
	Cap      Amount        `json:"-"`
	Forecast Amount        `json:"-"` // what the window will have come to; of a forecast that was just made
	At       time.Time     `json:"at"`
}

// Notice is what an organisation's own systems are told. Its id is the same however often it is told.
type Notice struct {
	ID   string
	Kind string
	Body []byte // JSON
}

// Kinds of notices.
const (
	NoticeThreshold = "budget.threshold_reached"
	NoticeForecast  = "budget.forecast_exceeds_cap"
	NoticeTest      = "webhook.test"
)

// noticeData is what a notice says of a budget. Amounts are decimal strings in its unit.
type noticeData struct {
	Org         string     `json:"org"`
	Budget      string     `json:"budget"`
	Scope       Scope      `json:"scope"`
	Mode        Mode       `json:"mode"`
	Unit        Unit       `json:"unit"`
	Percent     int        `json:"percent,omitempty"`
	Spent       string     `json:"spent"`
	Cap         string     `json:"cap"`
	Forecast    string     `json:"forecast,omitempty"`
	WindowStart time.Time  `json:"windowStart"`
	WindowEnd   *time.Time `json:"windowEnd"` // null: never
}

// Notice is the alert as it is told to the organisation's systems, in the form of the Standard Webhooks specification.
func (a *Alert) Notice(b *Budget) (Notice, error) {
	n := Notice{ID: fmt.Sprintf("evt_%d_%d_%d", a.Seq, a.Start.UnixMilli(), a.Percent), Kind: NoticeThreshold}
	d := noticeData{Org: a.Org.String(), Budget: b.ID, Scope: b.Scope, Mode: b.Mode, Unit: b.Unit, Percent: a.Percent, Spent: b.Unit.Format(a.Spent), Cap: b.Unit.Format(a.Cap), WindowStart: a.Start}
	if a.Kind == AlertForecast {
		n.Kind, d.Forecast = NoticeForecast, b.Unit.Format(a.Forecast)
	}
	if end := b.Window.At(a.Start, b.Location()).End; !end.IsZero() {
		d.WindowEnd = &end
	}
	var err error
	n.Body, err = NoticeBody(n.Kind, a.At, d)
	return n, err
}

// NoticeBody is the body of a notice: its type, when it came about, and its data.
func NoticeBody(kind string, at time.Time, data any) ([]byte, error) {
	return json.Marshal(struct {
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      any       `json:"data"`
	}{kind, at.UTC(), data})
}

// TestNotice is what an administrator sends to see whether a webhook works.
func TestNotice(org tenancy.OrgID, at time.Time) (Notice, error) {
	n := Notice{ID: "evt_test_" + strconv.FormatInt(at.UnixNano(), 36), Kind: NoticeTest}
	var err error
	n.Body, err = NoticeBody(n.Kind, at, map[string]string{"org": org.String()})
	return n, err
}

// foresight is how much of a window must be over before its pace says anything.
const foresight = 10 // a tenth

// Foresee is what a budget's window will have come to at the pace so far; ok is false where there is nothing to tell: too early, a window without
// an end or one that rolls, a cap that is reached already, or one that will not be.
func (b *Budget) Foresee(spent Amount, now time.Time) (forecast Amount, ok bool) {
	if b.Window.Kind == WindowRolling || b.Window.Kind == WindowLifetime || len(b.Alerts) == 0 {
		return 0, false
	}
	span := b.Window.At(now, b.Location())
	whole, gone := span.End.Sub(span.Start), now.Sub(span.Start)
	most := b.EffectiveCap(now)
	if gone < whole/foresight || spent <= 0 || spent >= most {
		return 0, false
	}
	f := float64(spent) * (float64(whole) / float64(gone))
	if f <= float64(most) {
		return 0, false
	}
	return Amount(min(f, math.MaxInt64/4)), true
}

package billing

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Amount is a quantity in a budget's own unit: nano-USD (10^-9 USD, at most 9.2 billion USD) or tokens.
type Amount int64

// Unit is what a budget counts.
type Unit string

// The units of budgets.
const (
	UnitUSD    Unit = "usd"    // nano-USD
	UnitTokens Unit = "tokens" // input and output together
)

const nanoDigits = 9

// NanoUp is an amount of money in nano-USD, rounded up: a hold is never smaller than what it is for, nor is what is booked smaller than
// what was spent. The difference is below one nano-USD per attempt.
func NanoUp(p Pico) Amount {
	n := p / 1000
	if p%1000 > 0 {
		n++
	}
	return Amount(n)
}

// Parse reads an amount of this unit: a plain decimal in USD with at most nine decimals, or a whole number of tokens. Negative amounts and
// anything else are a fault of kind Invalid.
func (u Unit) Parse(s string) (Amount, error) {
	scale := 0
	if u == UnitUSD {
		scale = nanoDigits
	}
	v, ok := parseFixed(s, scale)
	if !ok || v < 0 {
		return 0, fault.Invalidf("billing.Unit.Parse", "", "%.40q is not an amount; write USD such as \"12.50\" or whole tokens such as \"1000000\"", s)
	}
	return Amount(v), nil
}

// Format writes what Parse reads, in the shortest form.
func (u Unit) Format(a Amount) string {
	if u != UnitUSD {
		return strconv.FormatInt(int64(a), 10)
	}
	sign := ""
	v := uint64(a)
	if a < 0 {
		sign, v = "-", -v
	}
	s := fmt.Sprintf("%s%d.%09d", sign, v/1e9, v%1e9)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// word is the unit in a sentence.
func (u Unit) word() string {
	if u == UnitUSD {
		return "USD"
	}
	return string(u)
}

// ScopeKind says whose attempts a budget counts.
type ScopeKind string

// The levels a budget can be set on.
const (
	ScopeOrg     ScopeKind = "org"
	ScopeProject ScopeKind = "project"
	ScopeUser    ScopeKind = "user"
	ScopeKey     ScopeKind = "key"   // a provider key
	ScopeToken   ScopeKind = "token" // a caller's access token
)

// Scope is a level and the one thing on it; Subject is empty for the organisation itself.
type Scope struct {
	Kind    ScopeKind `json:"kind"`
	Subject string    `json:"subject,omitempty"`
}

// String is the scope as errors name it: org, or kind and subject.
func (s Scope) String() string {
	if s.Kind == ScopeOrg {
		return string(s.Kind)
	}
	return string(s.Kind) + " " + s.Subject
}

// Mode is what a budget does when there is no room.
type Mode string

// The modes.
const (
	ModeRefuse Mode = "refuse" // the attempt is refused
	ModeClamp  Mode = "clamp"  // the answer is made as short as the room allows, refused below MinClamp tokens
	ModeWarn   Mode = "warn"   // nothing is refused; alerts fire
)

// MinClamp is the shortest answer, in tokens, that an attempt is still made for.
const MinClamp = 256

// Unpriced is what a money budget does about models whose price is not known.
type UnpricedRule string

// The rules.
const (
	UnpricedDeny  UnpricedRule = "deny"  // refused: what cannot be priced cannot be kept within a cap
	UnpricedAllow UnpricedRule = "allow" // let through and counted as nothing
)

// Raise is a temporary addition to a cap. The zero Raise adds nothing.
type Raise struct {
	Amount Amount
	Until  time.Time // not included
	Reason string
	By     tenancy.UserID
}

// Budget is a cap on what one scope of an organisation may use in each window.
type Budget struct {
	Seq       int64  // the store's own number; never used twice
	ID        string // chosen by whoever makes it: [a-z0-9-]{1,40}, unique in the organisation
	Scope     Scope
	Unit      Unit
	Cap       Amount
	Mode      Mode
	Window    Window
	Zone      string // IANA; the organisation's at the time the budget was saved
	Alerts    []int  // percent of the effective cap, rising
	Unpriced  UnpricedRule
	CountBYOK bool // count attempts that people paid with keys of their own
	Raise     Raise
	Version   int64 // 1 for a new budget, one more with each change
	By        tenancy.UserID
	At        time.Time
	Since     time.Time // attempts that started before were counted once, from the ledger
}

// The bounds of what a budget may say.
const (
	MaxBudgets     = 500 // of one organisation
	maxAlerts      = 10
	maxReasonBytes = 500
	maxSubject     = 200
	maxRolling     = 366
)

// reservedIDs are words of the API's paths.
var reservedIDs = []string{"effective", "alerts"}

// Validate reports the first field that cannot be, as a fault of kind Unprocessable with a JSON pointer.
func (b *Budget) Validate() error {
	bad := func(field, format string, args ...any) error {
		return &fault.Error{Op: "billing.Budget.Validate", Kind: fault.Unprocessable, Code: "budget_invalid", Field: field, Public: fmt.Sprintf(format, args...)}
	}
	if s, err := tenancy.ParseSlug(b.ID); err != nil || slices.Contains(reservedIDs, string(s)) {
		return bad("/id", "A budget's id is 1 to 40 of a-z, 0-9 and -, and not effective or alerts.")
	}
	switch b.Scope.Kind {
	case ScopeOrg:
		if b.Scope.Subject != "" {
			return bad("/scope/subject", "A budget of the organisation has no subject; leave it out.")
		}
	case ScopeProject, ScopeUser, ScopeKey, ScopeToken:
		if b.Scope.Subject == "" || len(b.Scope.Subject) > maxSubject {
			return bad("/scope/subject", "Name the one %s this budget is for, in at most %d bytes.", b.Scope.Kind, maxSubject)
		}
	default:
		return bad("/scope/kind", "kind is org, project, user, key or token.")
	}
	if b.Unit != UnitUSD && b.Unit != UnitTokens {
		return bad("/unit", "unit is usd or tokens.")
	}
	if b.Cap < 0 || b.Cap > math.MaxInt64/4 {
		return bad("/cap", "The cap is too large, or negative.")
	}
	if b.Mode != ModeRefuse && b.Mode != ModeClamp && b.Mode != ModeWarn {
		return bad("/mode", "mode is refuse, clamp or warn.")
	}
	if b.Unpriced != UnpricedDeny && b.Unpriced != UnpricedAllow {
		return bad("/unpriced", "unpriced is deny or allow.")
	}
	if err := b.Window.validate(); err != "" {
		return bad("/window", "%s", err)
	}
	if _, err := time.LoadLocation(b.Zone); err != nil || b.Zone == "" || b.Zone == "Local" {
		return bad("/zone", "The organisation's time zone is not known here.")
	}
	if len(b.Alerts) > maxAlerts {
		return bad("/alerts", "At most %d alerts.", maxAlerts)
	}
	for i, a := range b.Alerts {
		if a < 1 || a > 1000 || i > 0 && a <= b.Alerts[i-1] {
			return bad("/alerts/"+strconv.Itoa(i), "Alerts are whole percent from 1 to 1000, each above the one before.")
		}
	}
	return b.Raise.validate()
}

func (r Raise) validate() error {
	bad := func(field, public string) error {
		return &fault.Error{Op: "billing.Raise", Kind: fault.Unprocessable, Code: "raise_invalid", Field: field, Public: public}
	}
	switch {
	case r == Raise{}:
		return nil
	case r.Amount <= 0 || r.Amount > math.MaxInt64/4:
		return bad("/amount", "Say by how much the cap is raised, above zero.")
	case r.Until.IsZero():
		return bad("/until", "Say until when the cap is raised.")
	case strings.TrimSpace(r.Reason) == "" || len(r.Reason) > maxReasonBytes:
		return bad("/reason", "Say why, in at most 500 bytes.")
	}
	return nil
}

// EffectiveCap is the cap at a moment, with a raise that has not expired.
func (b *Budget) EffectiveCap(at time.Time) Amount {
	if at.Before(b.Raise.Until) {
		return b.Cap + b.Raise.Amount
	}
	return b.Cap
}

// Location is the zone the budget's windows are in.
func (b *Budget) Location() *time.Location {
	z, err := time.LoadLocation(b.Zone)
	if err != nil {
		return time.UTC
	}
	return z
}

// Spender is whom an attempt is counted for.
type Spender struct {
	User    tenancy.UserID
	Project string
	KeyID   string
	Token   string
	BYOK    bool // paid with a person's own key
}

// Covers reports whether a budget counts a spender's attempts.
func (b *Budget) Covers(s Spender) bool {
	if s.BYOK && b.Unit == UnitUSD && !b.CountBYOK {
		return false
	}
	switch b.Scope.Kind {
	case ScopeOrg:
		return true
	case ScopeProject:
		return b.Scope.Subject == s.Project
	case ScopeUser:
		return b.Scope.Subject == string(s.User)
	case ScopeKey:
		return b.Scope.Subject == s.KeyID
	case ScopeToken:
		return b.Scope.Subject == s.Token
	}
	return false
}

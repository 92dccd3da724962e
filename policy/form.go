package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// The modes of a row of the form.
const (
	ModeAllow = "allow" // by those the row admits; for others it is switched off
	ModeAsk   = "ask"   // the same, and a person has to approve each call
	ModeOff   = "off"   // by nobody
)

// The codes of what the form refuses.
const (
	CodeModelNotAllowed     = "model_not_allowed"
	CodeOutsideWorkingHours = "outside_working_hours"
	CodeDisabledByPolicy    = "disabled_by_policy"
	CodeTooManyRounds       = "too_many_rounds"
)

// Form is an organisation's settings made ready to be asked. It is immutable and safe for concurrent use.
type Form struct {
	settings Settings
	rows     []row // most specific first; rows of one rank decide together
	models   Models
	hours    *hours
	byRole   bool
}

type row struct {
	CapabilityRule
	rank   int // of the pattern: the more specific the higher
	lowest int // role rank the rule admits; 0: every role
}

// exactRank is above that of every glob.
const exactRank = MaxEntryBytes + 1

// patternRank orders patterns: a name before every glob, and globs by how much of a name they spell out.
func patternRank(pattern string) int {
	stars := strings.Count(pattern, "*")
	if stars == 0 {
		return exactRank
	}
	return len(pattern) - stars
}

// NewForm makes settings ready. Faults are those of NormalizeSettings.
func NewForm(s Settings) (*Form, error) {
	n, err := NormalizeSettings(s)
	if err != nil {
		return nil, err
	}
	f := &Form{settings: n, models: n.AllowedBy()}
	// The short form is rows of mode off. Where a pattern stands in both, both count, and off is the stricter.
	for _, p := range n.DisabledCapabilities {
		f.rows = append(f.rows, row{CapabilityRule: CapabilityRule{Pattern: p, Mode: ModeOff}, rank: patternRank(p)})
	}
	for _, r := range n.Capabilities {
		f.rows = append(f.rows, row{CapabilityRule: r, rank: patternRank(r.Pattern), lowest: lowestRole(r.Roles)})
		f.byRole = f.byRole || len(r.Roles) > 0
	}
	slices.SortStableFunc(f.rows, func(a, b row) int { return cmp.Or(b.rank-a.rank, cmp.Compare(a.Pattern, b.Pattern)) })
	if n.WorkingHours != nil {
		if f.hours, err = newHours(n.WorkingHours); err != nil {
			return nil, err
		}
		f.byRole = f.byRole || len(n.WorkingHours.Roles) > 0
	}
	return f, nil
}

// Settings returns the normal form the form was made of. It must not be changed.
func (f *Form) Settings() *Settings { return &f.settings }

// Models says which models the form allows.
func (f *Form) Models() Models { return f.models }

// HasRows reports whether the form says anything about capabilities.
func (f *Form) HasRows() bool { return len(f.rows) > 0 }

// HasHours reports whether the form restricts when people may chat.
func (f *Form) HasHours() bool { return f.hours != nil }

// ByRole reports whether the form distinguishes roles.
func (f *Form) ByRole() bool { return f.byRole }

// Ruling is what the form says about one capability for one role.
type Ruling struct {
	Mode    string // ModeAllow, ModeAsk or ModeOff
	Pattern string // of the row that decided; empty: no row fits, and the mode is allow
	Message string // what a caller is told; empty unless the mode is off
}

// Capability returns what the form says about a capability for a person of a role. The most specific row that fits decides:
// a name before a glob, a glob that spells out more before one that spells out less. Of rows that are as specific as each
// other the strictest decides.
func (f *Form) Capability(name string, role tenancy.Role) Ruling {
	best := Ruling{Mode: ModeAllow}
	found := -1
	for i := range f.rows {
		r := &f.rows[i]
		if found >= 0 && r.rank < f.rows[found].rank {
			break
		}
		if !Match(r.Pattern, name) {
			continue
		}
		mode := r.Mode
		if r.lowest > 0 && roleRank(role) < r.lowest {
			mode = ModeOff
		}
		if found < 0 || modeRank(mode) > modeRank(best.Mode) || mode == best.Mode && best.Mode == ModeOff && f.rows[found].Message == "" && r.Message != "" {
			best, found = Ruling{Mode: mode, Pattern: r.Pattern}, i
		}
	}
	if found >= 0 && best.Mode == ModeOff {
		best.Message = f.rows[found].refusal(name)
	}
	return best
}

// refusal is what a caller of a capability is told whom the row does not admit.
func (r *row) refusal(name string) string {
	switch {
	case r.Message != "":
		return r.Message
	case r.Mode == ModeOff:
		return fmt.Sprintf("%q is switched off in your organisation's settings. An administrator can switch it on again.", clip(name))
	}
	return fmt.Sprintf("%q needs the role %s in your organisation. Ask one of its administrators.", clip(name), roleNames[r.lowest-1])
}

// Open reports whether people of a role may chat at a moment. Of the moment its zone counts when the form names none.
func (f *Form) Open(at time.Time, role tenancy.Role) bool {
	return f.hours == nil || f.hours.open(at, role)
}

// Turn returns what the form has against a chat turn; nil when nothing.
func (f *Form) Turn(at time.Time, role tenancy.Role, model string) []fault.Reason {
	var out []fault.Reason
	if !f.models.Allow(model) {
		out = append(out, ModelNotAllowed(model))
	}
	if !f.Open(at, role) {
		out = append(out, fault.Reason{Code: CodeOutsideWorkingHours, Message: f.hours.message})
	}
	return out
}

// Call returns what the form has against one call of a capability, beyond what it has against the turn; nil when nothing. round
// counts the model's answers of the turn, from 1.
func (f *Form) Call(name string, role tenancy.Role, round int) []fault.Reason {
	var out []fault.Reason
	if r := f.Capability(name, role); r.Mode == ModeOff {
		out = append(out, fault.Reason{Code: CodeDisabledByPolicy, Message: r.Message})
	}
	if most := f.settings.Limits.MaxRounds; most > 0 && round > most {
		out = append(out, fault.Reason{Code: CodeTooManyRounds,
			Message: fmt.Sprintf("Your organisation allows %d rounds of calls in one turn, and this is another. Answer with what is known.", most)})
	}
	return out
}

// ModelNotAllowed is the refusal of a model that no list allows.
func ModelNotAllowed(model string) fault.Reason {
	if r := []rune(model); len(r) > 100 {
		model = string(r[:100])
	}
	return fault.Reason{Code: CodeModelNotAllowed,
		Message: fmt.Sprintf("The model %q is not one your organisation allows. Choose another model, or ask an administrator to allow it.", model)}
}

func modeRank(mode string) int {
	switch mode {
	case ModeAllow:
		return 0
	case ModeAsk:
		return 1
	}
	return 2 // off, and a word that is no mode
}

// roleNames are the roles that settings may name, from least to most. Whoever may be named stands for everyone above: a person
// with more rights never has fewer hands. Superusers stand above all.
var roleNames = [...]string{string(tenancy.Viewer), string(tenancy.Editor), string(tenancy.OrgAdmin), string(tenancy.OrgOwner)}

// roleRank orders roles from 1; 0 is no role, which no rule with roles admits.
func roleRank(r tenancy.Role) int {
	switch r {
	case tenancy.Viewer:
		return 1
	case tenancy.Editor:
		return 2
	case tenancy.OrgAdmin:
		return 3
	case tenancy.OrgOwner:
		return 4
	case tenancy.Superuser:
		return 5
	}
	return 0
}

// lowestRole returns the rank of the least of the roles, 0 when there are none.
func lowestRole(roles []tenancy.Role) int {
	lowest := 0
	for _, r := range roles {
		if n := roleRank(r); lowest == 0 || n < lowest {
			lowest = n
		}
	}
	return lowest
}

// hours are working hours made ready.
type hours struct {
	zone     *time.Location // nil: that of the moment that is asked about
	days     [7]bool        // by time.Weekday
	from, to int            // minutes of the day; to <= from goes on into the next day
	exempt   int            // role rank; 0: nobody
	message  string
}

func newHours(w *WorkingHours) (*hours, error) {
	h := &hours{exempt: lowestRole(w.Roles), message: w.Message}
	if w.TimeZone != "" {
		var err error
		if h.zone, err = time.LoadLocation(w.TimeZone); err != nil {
			return nil, fault.Wrap(fault.Unprocessable, "policy.NewForm", "invalid_settings", badZone(w.TimeZone), err).At("/" + fieldHours + "/time_zone")
		}
	}
	h.from, _ = minuteOfDay(w.From) // normal form has valid times
	h.to, _ = minuteOfDay(w.To)
	for i, name := range dayNames {
		h.days[(i+1)%7] = len(w.Days) == 0 || slices.Contains(w.Days, name)
	}
	if h.message == "" {
		h.message = "Your organisation's chat is open from " + w.From + " to " + w.To + hoursWhere(w) + ". Come back then, or ask an administrator."
	}
	return h, nil
}

func hoursWhere(w *WorkingHours) string {
	out := ""
	if len(w.Days) > 0 && len(w.Days) < 7 {
		out = " on " + strings.Join(w.Days, ", ")
	}
	if w.TimeZone != "" {
		out += " (" + w.TimeZone + ")"
	}
	return out
}

// open goes by the clock on the wall, so an hour that happens twice is open twice, and one that is left out never.
func (h *hours) open(at time.Time, role tenancy.Role) bool {
	if h.exempt > 0 && roleRank(role) >= h.exempt {
		return true
	}
	if h.zone != nil {
		at = at.In(h.zone)
	}
	minute, day := at.Hour()*60+at.Minute(), at.Weekday()
	if h.from < h.to {
		return h.days[day] && minute >= h.from && minute < h.to
	}
	// The day is the one on which the span begins.
	return h.days[day] && minute >= h.from || h.days[(day+6)%7] && minute < h.to
}

// minuteOfDay reads hh:mm, up to 24:00.
func minuteOfDay(s string) (int, bool) {
	if len(s) != 5 || s[2] != ':' {
		return 0, false
	}
	for _, i := range []int{0, 1, 3, 4} {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	h, m := int(s[0]-'0')*10+int(s[1]-'0'), int(s[3]-'0')*10+int(s[4]-'0')
	return h*60 + m, h < 24 && m < 60 || h == 24 && m == 0
}

package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lossless-group/gateway/tenancy"
)

// Widening is one place where a policy may allow more than another.
type Widening struct {
	Field   string // the setting's name; empty: the Rego
	Message string
}

// WidenedSettings lists the settings that are not provably as strict in to as in from, sorted by field. It compares texts, not
// meanings: what it lists may still be stricter, what it does not list never allows more.
func WidenedSettings(from, to Settings) []Widening {
	var out []Widening
	a, b := settingsMembers(from), settingsMembers(to)
	for _, d := range diffSettings(from, to) {
		narrows, known := narrowing[d.Field]
		switch {
		case d.Field == fieldDisabled, d.Field == fieldRules:
			if narrowerRows(a, b) {
				continue
			}
		case known && narrows(d.From, d.To):
			continue
		}
		out = append(out, Widening{Field: d.Field, Message: fmt.Sprintf("%s may allow more than before: %s instead of %s.", d.Field, brief(d.To), brief(d.From))})
	}
	return out
}

// RegoChanged reports whether the files that decide differ; tests do not decide.
func RegoChanged(from, to Source) bool { return !slices.Equal(from.Modules(), to.Modules()) }

// brief is a value for a sentence.
func brief(v json.RawMessage) string {
	const most = 120
	if len(v) > most {
		return strings.ToValidUTF8(string(v[:most]), "") + "..."
	}
	return string(v)
}

// narrowing says for each setting but the rows of the form, whose short form is disabled_capabilities, whether its new value allows no more than the old one. A setting without a row here is never
// narrower, so a setting that is added needs an approval until somebody says what narrows it.
var narrowing = map[string]func(from, to json.RawMessage) bool{
	fieldModels: func(from, to json.RawMessage) bool {
		var old, now []string
		return read(from, &old) && read(to, &now) && (len(old) == 0 || len(now) > 0 && covers(old, now))
	},
	fieldProfile: func(from, to json.RawMessage) bool {
		var old, now string
		if !read(from, &old) || !read(to, &now) {
			return false
		}
		if now == "" {
			now = DefaultProfile
		}
		if old == "" {
			old = DefaultProfile
		}
		return StricterProfile(old, now) == now
	},
	fieldLimits:   narrowerLimits,
	fieldHours:    narrowerHours,
	fieldOnError:  func(_, to json.RawMessage) bool { return string(to) == `"`+OnErrorDeny+`"` },
	fieldAudit:    func(_, to json.RawMessage) bool { return string(to) == "true" },
	fieldApproval: func(_, to json.RawMessage) bool { return string(to) == "true" },
}

// read decodes a setting's value; null is the zero value.
func read(v json.RawMessage, into any) bool { return json.Unmarshal(v, into) == nil }

// covers reports whether every glob of small is one of large or below one of them. A glob whose text fits another has nothing that
// other lets through, because a star fits any run of bytes, also one with stars in it.
func covers(large, small []string) bool {
	return !slices.ContainsFunc(small, func(g string) bool { _, ok := FirstMatch(large, g); return !ok })
}

// formRow is a row of the form as far as it decides.
type formRow struct {
	Mode  string         `json:"mode"`
	Roles []tenancy.Role `json:"roles"` // these and those above; none: everybody
}

// within reports whether a row lets through no more than another.
func (r formRow) within(o formRow) bool {
	if r.Mode == ModeOff {
		return true
	}
	return modeRank(r.Mode) >= modeRank(o.Mode) && lowestRole(r.Roles) >= lowestRole(o.Roles)
}

// open is a row that restricts nothing, as no row does.
func (r formRow) open() bool { return formRow{Mode: ModeAllow}.within(r) }

// rowsOf reads the rows of the form, with those of its short form. Where both have a pattern, off is the stricter.
func rowsOf(members map[string]json.RawMessage) (map[string]formRow, bool) {
	var rows map[string]formRow
	var off []string
	if !read(orNull(members[fieldRules]), &rows) || !read(orNull(members[fieldDisabled]), &off) {
		return nil, false
	}
	if rows == nil {
		rows = map[string]formRow{}
	}
	for _, pattern := range off {
		rows[pattern] = formRow{Mode: ModeOff}
	}
	return rows, true
}

// narrowerRows compares the rows of the form. The most specific row decides, so a row that is added can lift one that is broader: it
// has to be at least as strict as all there were, but for those of another name. A row that restricts can only be removed when all
// that remain switch off, and one of them has its names.
func narrowerRows(from, to map[string]json.RawMessage) bool {
	old, ok := rowsOf(from)
	now, also := rowsOf(to)
	if !ok || !also {
		return false
	}
	var off []string
	for pattern, is := range now {
		if is.Mode == ModeOff {
			off = append(off, pattern)
		}
	}
	for pattern, was := range old {
		is, kept := now[pattern]
		covered := len(off) == len(now) && covers(off, []string{pattern})
		if kept && !is.within(was) || !kept && !was.open() && !covered {
			return false
		}
	}
	for pattern, is := range now {
		if _, had := old[pattern]; had {
			continue
		}
		for other, was := range old {
			apart := !strings.Contains(pattern, "*") && !strings.Contains(other, "*")
			if !apart && !is.within(was) {
				return false
			}
		}
	}
	return true
}

// narrowerLimits compares caps: none may go, and none may rise.
func narrowerLimits(from, to json.RawMessage) bool {
	var old, now map[string]*float64
	if !read(from, &old) || !read(to, &now) {
		return false
	}
	for name, was := range old {
		if was == nil || *was <= 0 {
			continue
		}
		if is := now[name]; is == nil || *is <= 0 || *is > *was {
			return false
		}
	}
	return true
}

// narrowerHours compares working hours: setting them where there were none narrows, and so does exempting fewer roles; everything else
// would need a calendar to compare.
func narrowerHours(from, to json.RawMessage) bool {
	if isNull(from) {
		return true
	}
	var old, now map[string]json.RawMessage
	if !read(from, &old) || !read(to, &now) || now == nil {
		return false
	}
	for _, side := range []map[string]json.RawMessage{old, now} {
		delete(side, "message")
	}
	var before, after []tenancy.Role
	if !read(orNull(old["roles"]), &before) || !read(orNull(now["roles"]), &after) {
		return false
	}
	delete(old, "roles")
	delete(now, "roles")
	same := maps.EqualFunc(old, now, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
	return same && (len(after) == 0 || len(before) > 0 && lowestRole(after) >= lowestRole(before))
}

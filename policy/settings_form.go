package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// member is one member of a JSON object and where it stands.
type member struct {
	name    string
	pointer string
	raw     json.RawMessage
}

// members reads one JSON object: its members in their order, none of them twice and, unless known is nil, none that is not known.
func members(op, pointer string, doc json.RawMessage, what string, known []string) ([]member, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		if known == nil {
			return nil, unprocessable(op, pointer, "Send %s as one JSON object.", what)
		}
		return nil, unprocessable(op, pointer, "Send %s as one JSON object; its members may be %s.", what, strings.Join(known, ", "))
	}
	var out []member
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, fault.Wrap(fault.Invalid, op, "invalid_request", "The settings are not valid JSON; send one object.", err)
		}
		m := member{name: name, pointer: pointer + "/" + pointerEscape.Replace(clip(name))}
		if seen[name] {
			return nil, unprocessable(op, m.pointer, "The member %q stands twice; keep one of them.", clip(name))
		}
		seen[name] = true
		if known != nil && !slices.Contains(known, name) {
			if near := nearest(name, known); near != "" {
				return nil, unprocessable(op, m.pointer, "There is no member %q in %s. Did you mean %s?", clip(name), what, near)
			}
			return nil, unprocessable(op, m.pointer, "There is no member %q in %s; use %s.", clip(name), what, strings.Join(known, ", "))
		}
		if err := dec.Decode(&m.raw); err != nil {
			return nil, fault.Wrap(fault.Invalid, op, "invalid_request", "The settings are not valid JSON; send one object.", err)
		}
		out = append(out, m)
	}
	return out, nil
}

// nearest returns the word a writer most likely meant, empty when none is near.
func nearest(word string, known []string) string {
	best, least := "", 1+len(word)/3
	if len(word) > MaxEntryBytes {
		return ""
	}
	for _, k := range known {
		if d := editDistance(strings.ToLower(word), k); d <= least && (best == "" || d < least) {
			best, least = k, d
		}
	}
	return best
}

// editDistance counts the bytes to change, to put in, to take out, and the neighbours to swap.
func editDistance(a, b string) int {
	before, last, now := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			now[j] = min(last[j]+1, now[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(b)]
}

// The members of a row, of limits and of working hours.
var (
	ruleFields  = []string{"mode", "roles", "message"}
	limitFields = []string{"max_tokens", "max_rounds"}
	hoursFields = []string{"time_zone", "days", "from", "to", "message", "roles"}
	dayNames    = []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}
	modeNames   = []string{ModeAllow, ModeAsk, ModeOff}
)

// MarshalJSON writes one object, keyed by pattern, in the order of the rows.
func (rs CapabilityRules) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, r := range rs {
		if i > 0 {
			b = append(b, ',')
		}
		name, err := compactJSON(r.Pattern)
		if err != nil {
			return nil, err
		}
		row, err := compactJSON(r)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, name...), ':'), row...)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON reads what MarshalJSON writes, as strictly as ParseSettings.
func (rs *CapabilityRules) UnmarshalJSON(doc []byte) error {
	const op = "policy.CapabilityRules"
	rules, err := mergeRules(op, member{name: fieldRules, pointer: "/" + fieldRules, raw: doc}, nil)
	if err == nil {
		*rs, err = normalizeRules(op, rules)
	}
	return err
}

func mergeRules(op string, m member, have CapabilityRules) (CapabilityRules, error) {
	if isNull(m.raw) {
		return nil, nil
	}
	rows, err := members(op, m.pointer, m.raw, m.name, nil)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(have)
	for _, row := range rows {
		at := slices.IndexFunc(out, func(r CapabilityRule) bool { return r.Pattern == row.name })
		if isNull(row.raw) {
			if at >= 0 {
				out = slices.Delete(out, at, at+1)
			}
			continue
		}
		if len(out) >= MaxEntries && at < 0 {
			return nil, tooMany(op, m.pointer)
		}
		if at < 0 {
			out, at = append(out, CapabilityRule{Pattern: row.name}), len(out)
		}
		fields, err := members(op, row.pointer, row.raw, "the row", ruleFields)
		if err != nil {
			return nil, err
		}
		for _, f := range fields {
			switch f.name {
			case "mode":
				out[at].Mode, err = text(op, f)
			case "roles":
				out[at].Roles, err = roleList(op, f)
			case "message":
				out[at].Message, err = text(op, f)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func mergeLimits(op string, m member, have Limits) (Limits, error) {
	if isNull(m.raw) {
		return Limits{}, nil
	}
	fields, err := members(op, m.pointer, m.raw, m.name, limitFields)
	if err != nil {
		return have, err
	}
	for _, f := range fields {
		n := 0
		if !isNull(f.raw) && (json.Unmarshal(f.raw, &n) != nil || n < 1) {
			return have, unprocessable(op, f.pointer, "%s is a whole number from 1, or null for no cap.", f.name)
		}
		switch f.name {
		case "max_tokens":
			have.MaxTokens = n
		case "max_rounds":
			have.MaxRounds = n
		}
	}
	return have, nil
}

func mergeHours(op string, m member, have *WorkingHours) (*WorkingHours, error) {
	if isNull(m.raw) {
		return nil, nil
	}
	fields, err := members(op, m.pointer, m.raw, m.name, hoursFields)
	if err != nil {
		return nil, err
	}
	out := WorkingHours{}
	if have != nil {
		out = *have
	}
	for _, f := range fields {
		switch f.name {
		case "time_zone":
			out.TimeZone, err = text(op, f)
		case "days":
			if out.Days, err = list(op, f.pointer, f.raw); err == nil && out.Days != nil && len(out.Days) == 0 {
				err = unprocessable(op, f.pointer, "days names at least one of %s; leave it out for every day.", strings.Join(dayNames, ", "))
			}
		case "from":
			out.From, err = text(op, f)
		case "to":
			out.To, err = text(op, f)
		case "message":
			out.Message, err = text(op, f)
		case "roles":
			out.Roles, err = roleList(op, f)
		}
		if err != nil {
			return nil, err
		}
	}
	return &out, nil
}

func roleList(op string, m member) ([]tenancy.Role, error) {
	words, err := list(op, m.pointer, m.raw)
	var out []tenancy.Role
	for _, w := range words {
		out = append(out, tenancy.Role(w))
	}
	if err == nil && words != nil && len(words) == 0 {
		return nil, unprocessable(op, m.pointer, "roles names at least one of %s; leave it out when it is not about roles.", strings.Join(roleNames[:], ", "))
	}
	return out, err
}

// mergeRedaction applies a merge patch to an object that nobody here looks into.
func mergeRedaction(op string, m member, have json.RawMessage) (json.RawMessage, error) {
	if isNull(m.raw) {
		return nil, nil
	}
	if err := checkRedaction(op, m.pointer, m.raw); err != nil {
		return nil, err
	}
	return mergeRaw(op, m.pointer, have, m.raw)
}

// mergeRaw is RFC 7396: members of the patch replace those of the target, objects are merged, null takes away. What the
// target has keeps its place.
func mergeRaw(op, pointer string, target, patch json.RawMessage) (json.RawMessage, error) {
	if !isObject(patch) {
		return patch, nil
	}
	changes, err := members(op, pointer, patch, "it", nil)
	if err != nil {
		return nil, err
	}
	var have []member
	if isObject(target) {
		if have, err = members(op, pointer, target, "it", nil); err != nil {
			return nil, err
		}
	}
	places := make(map[string]int, len(have))
	for i, m := range have {
		places[m.name] = i
	}
	for _, c := range changes {
		at, there := places[c.name]
		switch {
		case !there && isNull(c.raw):
		case !there:
			if c.raw, err = mergeRaw(op, c.pointer, nil, c.raw); err != nil {
				return nil, err
			}
			have = append(have, c)
		case isNull(c.raw):
			have[at].raw = nil
		default:
			if have[at].raw, err = mergeRaw(op, c.pointer, have[at].raw, c.raw); err != nil {
				return nil, err
			}
		}
	}
	b := []byte{'{'}
	for _, m := range have {
		if m.raw == nil {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		name, err := compactJSON(m.name)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, name...), ':'), m.raw...)
	}
	return append(b, '}'), nil
}

func isObject(raw json.RawMessage) bool {
	t := bytes.TrimSpace(raw)
	return len(t) > 0 && t[0] == '{'
}

// checkRedaction bounds the redaction member before anything is done with it.
func checkRedaction(op, pointer string, raw json.RawMessage) error {
	if len(raw) > MaxRedactionBytes {
		return fault.New(fault.TooLarge, op, "settings_too_large", fmt.Sprintf("%s may be at most %d bytes; shorten its lists.", fieldRedact, MaxRedactionBytes)).At(pointer)
	}
	if !isObject(raw) || !json.Valid(raw) || !utf8.Valid(raw) {
		return unprocessable(op, pointer, "%s is one JSON object in UTF-8, or null for none.", fieldRedact)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	for depth := 0; ; {
		t, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if d, ok := t.(json.Delim); ok {
			if d == '{' || d == '[' {
				depth++
			} else {
				depth--
			}
		}
		if err != nil || depth > maxRedactionDepth {
			return unprocessable(op, pointer, "%s may be nested %d deep at most.", fieldRedact, maxRedactionDepth)
		}
	}
}

// normalizeRedaction writes the object without spaces and with the escapes of encoding/json, so that writing and reading it again
// gives the same bytes.
func normalizeRedaction(op string, raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	if err := checkRedaction(op, "/"+fieldRedact, raw); err != nil {
		return nil, err
	}
	merged, err := mergeRaw(op, "/"+fieldRedact, nil, raw)
	if err != nil {
		return nil, err
	}
	var compact, out bytes.Buffer
	if err := json.Compact(&compact, merged); err != nil {
		return nil, fault.Wrap(fault.Invalid, op, "invalid_request", "The settings are not valid JSON; send one object.", err)
	}
	if json.HTMLEscape(&out, compact.Bytes()); out.Len() == len("{}") {
		return nil, nil // an object of nothing says nothing
	}
	return out.Bytes(), nil
}

// normalizeRules checks rows and returns them sorted; nil when there are none.
func normalizeRules(op string, rules CapabilityRules) (CapabilityRules, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	if len(rules) > MaxEntries {
		return nil, tooMany(op, "/"+fieldRules)
	}
	out := slices.Clone(rules)
	seen := map[string]bool{}
	for i := range out {
		r := &out[i]
		at := "/" + fieldRules + "/" + pointerEscape.Replace(clip(r.Pattern))
		if len(r.Pattern) > MaxEntryBytes {
			return nil, unprocessable(op, at, "A capability name or glob may be at most %d bytes long.", MaxEntryBytes)
		}
		if r.Pattern == "" || !validCapabilityGlob(r.Pattern) {
			return nil, unprocessable(op, at, "%q is not a capability name or glob; use lower-case words joined by dots, such as slide.edit or slide.*", r.Pattern)
		}
		if seen[r.Pattern] {
			return nil, unprocessable(op, at, "There are two rows for %s; keep one of them.", r.Pattern)
		}
		seen[r.Pattern] = true
		if !slices.Contains(modeNames, r.Mode) {
			if r.Mode == "" {
				return nil, unprocessable(op, at+"/mode", "The row for %s needs a mode: %s.", r.Pattern, strings.Join(modeNames, ", "))
			}
			return nil, unprocessable(op, at+"/mode", "%q is not a mode; use %s.", clip(r.Mode), strings.Join(modeNames, ", "))
		}
		var err error
		if r.Roles, err = normalizeRoles(op, at+"/roles", r.Roles); err != nil {
			return nil, err
		}
		if r.Mode == ModeOff && len(r.Roles) > 0 {
			return nil, unprocessable(op, at+"/roles", "Off is off for everyone. Leave roles out, or use the mode allow with the roles that may use %s.", r.Pattern)
		}
		if err := checkMessage(op, at+"/message", r.Message); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b CapabilityRule) int { return strings.Compare(a.Pattern, b.Pattern) })
	return out, nil
}

// normalizeRoles returns roles from least to most, without duplicates and nil when there are none.
func normalizeRoles(op, pointer string, roles []tenancy.Role) ([]tenancy.Role, error) {
	var out []tenancy.Role
	for i, r := range roles {
		if !slices.Contains(roleNames[:], string(r)) {
			return nil, unprocessable(op, fmt.Sprintf("%s/%d", pointer, i), "%q is not a role that settings can name; use %s. Those above a role are included.", clip(string(r)), strings.Join(roleNames[:], ", "))
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b tenancy.Role) int { return roleRank(a) - roleRank(b) })
	return slices.Compact(out), nil
}

func checkMessage(op, pointer, s string) error {
	if len(s) > MaxMessageBytes {
		return unprocessable(op, pointer, "A message may be at most %d bytes long.", MaxMessageBytes)
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) || s != "" && strings.TrimSpace(s) == "" {
		return unprocessable(op, pointer, "A message is one line of text people can read, or null for a sentence of ours.")
	}
	return nil
}

func checkLimits(op string, l Limits) error {
	if l.MaxTokens < 0 || l.MaxTokens > MaxTokensCap {
		return unprocessable(op, "/"+fieldLimits+"/max_tokens", "max_tokens is a whole number from 1 to %d, or null for no cap.", MaxTokensCap)
	}
	if l.MaxRounds < 0 || l.MaxRounds > MaxRoundsCap {
		return unprocessable(op, "/"+fieldLimits+"/max_rounds", "max_rounds is a whole number from 1 to %d, or null for no cap.", MaxRoundsCap)
	}
	return nil
}

func badZone(name string) string {
	return fmt.Sprintf("%q is not a time zone; use a name of the IANA database, such as Europe/Berlin or UTC, or leave it out for the organisation's own.", clip(name))
}

func normalizeHours(op string, w *WorkingHours) (*WorkingHours, error) {
	if w == nil {
		return nil, nil
	}
	const at = "/" + fieldHours
	out := *w
	if w.TimeZone != "" {
		// Local is a name to Go, and means another zone on every machine.
		if _, err := time.LoadLocation(w.TimeZone); err != nil || w.TimeZone == "Local" || len(w.TimeZone) > MaxEntryBytes {
			return nil, unprocessable(op, at+"/time_zone", "%s", badZone(w.TimeZone))
		}
	}
	for i, d := range w.Days {
		if !slices.Contains(dayNames, d) {
			return nil, unprocessable(op, fmt.Sprintf("%s/days/%d", at, i), "%q is not a day; use %s.", clip(d), strings.Join(dayNames, ", "))
		}
	}
	out.Days = slices.Clone(w.Days)
	slices.SortFunc(out.Days, func(a, b string) int { return slices.Index(dayNames, a) - slices.Index(dayNames, b) })
	if out.Days = slices.Compact(out.Days); len(out.Days) == 0 || len(out.Days) == len(dayNames) {
		out.Days = nil
	}
	from, ok := minuteOfDay(w.From)
	if !ok || from == 24*60 {
		return nil, unprocessable(op, at+"/from", "from is a time of day from 00:00 to 23:59, such as 08:00.")
	}
	to, ok := minuteOfDay(w.To)
	if !ok {
		return nil, unprocessable(op, at+"/to", "to is a time of day from 00:00 to 24:00, such as 18:00.")
	}
	if from == to {
		return nil, unprocessable(op, at+"/to", "from and to are the same time. For whole days say from 00:00 to 24:00.")
	}
	var err error
	if out.Roles, err = normalizeRoles(op, at+"/roles", w.Roles); err != nil {
		return nil, err
	}
	return &out, checkMessage(op, at+"/message", w.Message)
}

package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// Bounds of a settings document.
const (
	MaxSettingsBytes  = 768 << 10 // of the JSON text
	MaxEntries        = 500       // of each list
	MaxEntryBytes     = 200       // of each entry, and of each name of a row
	MaxMessageBytes   = 300       // of each message
	MaxRedactionBytes = 512 << 10 // of the redaction member: 10,000 words of a dictionary and room for the rest
	MaxTokensCap      = 10_000_000
	MaxRoundsCap      = 1_000

	maxRedactionDepth = 16
)

// The members of a settings document, in the order they are checked.
const (
	fieldDisabled = "disabled_capabilities"
	fieldModels   = "allowed_models"
	fieldProfile  = "redaction_profile"
	fieldRules    = "capabilities"
	fieldLimits   = "limits"
	fieldHours    = "working_hours"
	fieldOnError  = "on_error"
	fieldAudit    = "audit_required"
	fieldApproval = "approval_required_to_widen"
	fieldRedact   = "redaction"
)

var settingsFields = []string{fieldDisabled, fieldModels, fieldProfile, fieldRules, fieldLimits, fieldHours, fieldOnError, fieldAudit, fieldApproval, fieldRedact}

// ParseSettings reads a settings document. The result is in normal form: lists sorted, without duplicates and never
// nil, so that encoding/json writes the same bytes for the same settings. A document of no bytes gives settings that
// restrict nothing, which is what an organisation at revision 0 has.
//
// It is strict: a member it does not know, a member that stands twice, a value of another type or an entry outside the
// grammar is a *fault.Error whose Field points at the place. The kind is Invalid when the text is not JSON, TooLarge
// over MaxSettingsBytes and Unprocessable otherwise.
func ParseSettings(doc []byte) (Settings, error) {
	const op = "policy.ParseSettings"
	if len(bytes.TrimSpace(doc)) == 0 {
		return Settings{DisabledCapabilities: []string{}, AllowedModels: []string{}}, nil
	}
	s, err := merge(op, Settings{}, doc)
	if err != nil {
		return Settings{}, err
	}
	return normalize(op, s)
}

// PatchSettings applies a JSON merge patch (RFC 7396) and returns the result in normal form: a member that is absent
// stays, null sets it back to restricting nothing, a list replaces the whole list, an object is merged member by member. Faults are those of ParseSettings;
// current is never changed.
func PatchSettings(current Settings, patch []byte) (Settings, error) {
	const op = "policy.PatchSettings"
	s, err := merge(op, current, patch)
	if err != nil {
		return Settings{}, err
	}
	return normalize(op, s)
}

// NormalizeSettings checks settings that did not come from JSON and returns their normal form as a copy. Faults are
// those of ParseSettings.
func NormalizeSettings(s Settings) (Settings, error) {
	return normalize("policy.NormalizeSettings", s)
}

func unprocessable(op, pointer, format string, args ...any) *fault.Error {
	return fault.New(fault.Unprocessable, op, "invalid_settings", fmt.Sprintf(format, args...)).At(pointer)
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

// merge reads one JSON object member by member, because encoding/json alone would let the last of two equal members win
// and would name no place in its errors.
func merge(op string, s Settings, doc []byte) (Settings, error) {
	if len(doc) > MaxSettingsBytes {
		return s, fault.New(fault.TooLarge, op, "settings_too_large", fmt.Sprintf("Settings may be at most %d bytes; use globs such as slide.* to shorten the lists.", MaxSettingsBytes))
	}
	if !json.Valid(doc) {
		return s, fault.Invalidf(op, "", "The settings are not valid JSON; send one object.")
	}
	given, err := members(op, "", doc, "the settings", settingsFields)
	if err != nil {
		return s, err
	}
	for _, m := range given {
		switch m.name {
		case fieldDisabled:
			s.DisabledCapabilities, err = list(op, m.pointer, m.raw)
		case fieldModels:
			s.AllowedModels, err = list(op, m.pointer, m.raw)
		case fieldProfile:
			s.RedactionProfile, err = text(op, m)
		case fieldRules:
			s.Capabilities, err = mergeRules(op, m, s.Capabilities)
		case fieldLimits:
			s.Limits, err = mergeLimits(op, m, s.Limits)
		case fieldHours:
			s.WorkingHours, err = mergeHours(op, m, s.WorkingHours)
		case fieldOnError:
			s.OnError, err = text(op, m)
		case fieldAudit:
			s.AuditRequired, err = boolean(op, m)
		case fieldApproval:
			s.ApprovalRequiredToWiden, err = boolean(op, m)
		case fieldRedact:
			s.Redaction, err = mergeRedaction(op, m, s.Redaction)
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

func list(op, pointer string, raw json.RawMessage) ([]string, error) {
	if isNull(raw) {
		return nil, nil
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return nil, unprocessable(op, pointer, "%s is a list of strings, or null for none.", pointer[1:])
	}
	if len(items) > MaxEntries {
		return nil, tooMany(op, pointer)
	}
	out := make([]string, len(items))
	for i, item := range items {
		// A null inside a list would decode as an empty string without complaint.
		if isNull(item) || json.Unmarshal(item, &out[i]) != nil {
			return nil, unprocessable(op, fmt.Sprintf("%s/%d", pointer, i), "Entries of %s are strings.", pointer[1:])
		}
	}
	return out, nil
}

func text(op string, m member) (string, error) {
	if isNull(m.raw) {
		return "", nil
	}
	var s string
	if json.Unmarshal(m.raw, &s) != nil {
		return "", unprocessable(op, m.pointer, "%s is a text, or null to leave it out.", m.name)
	}
	return s, nil
}

func boolean(op string, m member) (b bool, err error) {
	if !isNull(m.raw) && json.Unmarshal(m.raw, &b) != nil {
		return false, unprocessable(op, m.pointer, "%s is true or false, or null for false.", m.name)
	}
	return b, nil
}

func isNull(raw json.RawMessage) bool { return string(bytes.TrimSpace(raw)) == "null" }

func normalize(op string, s Settings) (Settings, error) {
	disabled, err := entries(op, "/"+fieldDisabled, s.DisabledCapabilities, validCapabilityGlob,
		"%q is not a capability name or glob; use lower-case words joined by dots, such as slide.edit or slide.*")
	if err != nil {
		return Settings{}, err
	}
	models, err := entries(op, "/"+fieldModels, s.AllowedModels, validModelGlob,
		"%q is not a model name or glob; use a model's id, such as claude-sonnet-4-6 or claude-*")
	if err != nil {
		return Settings{}, err
	}
	if s.RedactionProfile != "" && profileRank(s.RedactionProfile) < 0 {
		return Settings{}, badProfile(op, "/"+fieldProfile)
	}
	out := Settings{DisabledCapabilities: disabled, AllowedModels: models, RedactionProfile: s.RedactionProfile,
		Limits: s.Limits, OnError: s.OnError, AuditRequired: s.AuditRequired, ApprovalRequiredToWiden: s.ApprovalRequiredToWiden}
	if out.Capabilities, err = normalizeRules(op, s.Capabilities); err != nil {
		return Settings{}, err
	}
	if err := checkLimits(op, s.Limits); err != nil {
		return Settings{}, err
	}
	if out.WorkingHours, err = normalizeHours(op, s.WorkingHours); err != nil {
		return Settings{}, err
	}
	switch s.OnError {
	case "", OnErrorLastGood, OnErrorDeny:
	default:
		return Settings{}, unprocessable(op, "/"+fieldOnError, "%s is %s or %s, or null for %s.", fieldOnError, OnErrorLastGood, OnErrorDeny, OnErrorLastGood)
	}
	if out.Redaction, err = normalizeRedaction(op, s.Redaction); err != nil {
		return Settings{}, err
	}
	return out, nil
}

func entries(op, pointer string, in []string, valid func(string) bool, complaint string) ([]string, error) {
	if len(in) > MaxEntries {
		return nil, tooMany(op, pointer)
	}
	out := make([]string, 0, len(in))
	for i, e := range in {
		at := fmt.Sprintf("%s/%d", pointer, i)
		if len(e) > MaxEntryBytes {
			return nil, unprocessable(op, at, "An entry may be at most %d bytes long.", MaxEntryBytes)
		}
		if e == "" || !valid(e) {
			return nil, unprocessable(op, at, complaint, e)
		}
		out = append(out, e)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func tooMany(op, pointer string) error {
	return unprocessable(op, pointer, "%s may have at most %d entries; use globs such as slide.* to shorten it.", pointer[1:], MaxEntries)
}

func badProfile(op, pointer string) error {
	return unprocessable(op, pointer, "%s is off, balanced or strict, or null for balanced.", pointer[1:])
}

// clip keeps what a stranger sent from filling an error.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "..."
	}
	return s
}

// Warnings lists, as sentences in the order of the settings, the entries that fit nothing known: most often a typing
// error, sometimes a capability of an app that is not registered yet. They are not faults. A nil list of what is known
// means that nothing is known of that sort, and gives no warnings about it. Which tool servers requests will name nobody knows.
func Warnings(s Settings, knownCapabilities, knownModels []string) []string {
	var out []string
	add := func(what, consequence string, globs, known []string) {
		if known == nil {
			return
		}
		for _, g := range globs {
			if !strings.HasPrefix(g, ToolServerPrefix) && !slices.ContainsFunc(known, func(name string) bool { return Match(g, name) }) {
				out = append(out, fmt.Sprintf("%q fits no %s this gateway knows; %s", g, what, consequence))
			}
		}
	}
	add("capability", "it switches off only tools of that name that callers bring along.", s.DisabledCapabilities, knownCapabilities)
	patterns := make([]string, len(s.Capabilities))
	for i, r := range s.Capabilities {
		patterns[i] = r.Pattern
		if r.Mode != ModeOff && slices.Contains(s.DisabledCapabilities, r.Pattern) {
			out = append(out, fmt.Sprintf("%q is in disabled_capabilities too, so its row has no effect; take it out of one of them.", r.Pattern))
		}
	}
	add("capability", "its row is only about tools of that name that callers bring along.", patterns, knownCapabilities)
	add("model", "nothing is allowed by it.", s.AllowedModels, knownModels)
	return out
}

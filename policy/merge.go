package policy

import (
	"cmp"
	"slices"

	"github.com/lossless-group/gateway/fault"
)

// The redaction profiles, from least to most strict.
const (
	ProfileOff      = "off"
	ProfileBalanced = "balanced"
	ProfileStrict   = "strict"
)

// DefaultProfile is what an organisation gets that has not chosen.
const DefaultProfile = ProfileBalanced

func profileRank(p string) int {
	switch p {
	case ProfileOff:
		return 0
	case ProfileBalanced:
		return 1
	case ProfileStrict:
		return 2
	}
	return -1
}

// ValidProfile reports whether p is one of the three profiles.
func ValidProfile(p string) bool { return profileRank(p) >= 0 }

// StricterProfile returns the stricter of two profiles. Empty is the least strict of all, so it leaves the other; a
// word that is no profile counts as strict, because nobody can say what it would have let through.
func StricterProfile(a, b string) string {
	rank := func(p string) int {
		if p == "" {
			return -1
		}
		if r := profileRank(p); r >= 0 {
			return r
		}
		return 2
	}
	ra, rb := rank(a), rank(b)
	if max(ra, rb) == 2 {
		return ProfileStrict
	}
	if ra >= rb {
		return a
	}
	return b
}

// LowerCap returns the lower of two caps, where zero and below mean no cap.
func LowerCap(a, b int) int {
	switch {
	case a <= 0:
		return max(b, 0)
	case b <= 0:
		return a
	}
	return min(a, b)
}

// Union returns the sorted union of two sets of names; it is nil when both are empty, and never shares memory with them.
func Union(a, b []string) []string {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := make([]string, 0, len(a)+len(b))
	out = append(append(out, a...), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

// Models says which models may be used: those that fit every list of globs it was made from. The zero value allows all.
// It is immutable.
type Models struct{ lists [][]string }

// AllowModels makes the Models of one list: nil means no restriction, an empty list allows none.
func AllowModels(globs []string) Models {
	if globs == nil {
		return Models{}
	}
	return Models{lists: [][]string{slices.Clone(globs)}}
}

// AllowedBy makes the Models of an organisation's settings, where an empty list means no restriction.
func (s Settings) AllowedBy() Models {
	if len(s.AllowedModels) == 0 {
		return Models{}
	}
	return AllowModels(s.AllowedModels)
}

// And returns the intersection: what both allow.
func (m Models) And(o Models) Models {
	if len(m.lists) == 0 {
		return o
	}
	if len(o.lists) == 0 {
		return m
	}
	return Models{lists: slices.Concat(m.lists, o.lists)}
}

// Allow reports whether a model fits every list.
func (m Models) Allow(model string) bool {
	for _, l := range m.lists {
		if _, ok := FirstMatch(l, model); !ok {
			return false
		}
	}
	return true
}

// Restricted reports whether there is any list at all.
func (m Models) Restricted() bool { return len(m.lists) > 0 }

// Contribution is what one stage (platform, plan, settings) has to say about a question. The zero value objects to
// nothing. Contributions form a lattice under And: it is commutative, associative and idempotent, and its result never
// permits what one of its operands refuses. That is why a later stage can only narrow an earlier one.
type Contribution struct {
	Deny            []fault.Reason // any one refuses
	Disabled        []string       // capability names
	Models          Models
	MaxTokens       int    // 0: no cap
	Profile         string // empty: no opinion
	Redactions      []Redaction
	RequireApproval []string // capability names
	Labels          []string
}

// And joins two contributions: union of refusals, of disabled capabilities, of approvals and of labels, intersection of
// models, the lower cap, the stricter profile, the stricter redaction of each entity. It never shares memory with the lists of its operands.
func (c Contribution) And(o Contribution) Contribution {
	return Contribution{
		Deny:            unionReasons(c.Deny, o.Deny),
		Disabled:        Union(c.Disabled, o.Disabled),
		Models:          c.Models.And(o.Models),
		MaxTokens:       LowerCap(c.MaxTokens, o.MaxTokens),
		Profile:         StricterProfile(c.Profile, o.Profile),
		Redactions:      unionRedactions(c.Redactions, o.Redactions),
		RequireApproval: Union(c.RequireApproval, o.RequireApproval),
		Labels:          Union(c.Labels, o.Labels),
	}
}

// redactionActions are what a Redaction can ask for, from least to most strict.
var redactionActions = [...]string{"flag", "tokenize", "hash", "mask", "block"}

// ValidRedactionAction reports whether a Redaction can ask for it.
func ValidRedactionAction(a string) bool { return slices.Contains(redactionActions[:], a) }

// redactionRank orders actions; a word that is none counts as the strictest, as nobody can say what it would have let through.
func redactionRank(a string) int {
	if i := slices.Index(redactionActions[:], a); i >= 0 {
		return i
	}
	return len(redactionActions) - 1
}

// unionRedactions keeps the strictest action of each entity, sorted by entity.
func unionRedactions(a, b []Redaction) []Redaction {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := make([]Redaction, 0, len(a)+len(b))
	for _, r := range append(append(out, a...), b...) {
		out = append(out, Redaction{Entity: r.Entity, Action: redactionActions[redactionRank(r.Action)]})
	}
	slices.SortFunc(out, func(x, y Redaction) int {
		return cmp.Or(cmp.Compare(x.Entity, y.Entity), cmp.Compare(redactionRank(y.Action), redactionRank(x.Action)))
	})
	return slices.CompactFunc(out, func(x, y Redaction) bool { return x.Entity == y.Entity })
}

// unionReasons sorts by code and message, so that the same refusals always read the same.
func unionReasons(a, b []fault.Reason) []fault.Reason {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := make([]fault.Reason, 0, len(a)+len(b))
	out = append(append(out, a...), b...)
	slices.SortFunc(out, func(x, y fault.Reason) int {
		return cmp.Or(cmp.Compare(x.Code, y.Code), cmp.Compare(x.Message, y.Message))
	})
	return slices.Compact(out)
}

// Narrows reports whether d permits nothing that wide does not: the order of the lattice, for decisions about the same
// question.
func (d Decision) Narrows(wide Decision) bool {
	if d.Allow && !wide.Allow {
		return false
	}
	for _, n := range wide.DisabledCapabilities {
		if !d.Disabled(n) {
			return false
		}
	}
	for _, n := range wide.RequireApproval {
		if !d.NeedsApproval(n) {
			return false
		}
	}
	for _, r := range wide.Redactions {
		if !slices.ContainsFunc(d.Redactions, func(x Redaction) bool {
			return x.Entity == r.Entity && redactionRank(x.Action) >= redactionRank(r.Action)
		}) {
			return false
		}
	}
	if wide.MaxTokens > 0 && (d.MaxTokens <= 0 || d.MaxTokens > wide.MaxTokens) {
		return false
	}
	return StricterProfile(d.RedactionProfile, wide.RedactionProfile) == StricterProfile(d.RedactionProfile, "")
}

package redaction

import (
	"slices"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// Only returns a profile that looks for nothing but the named entities, by their public names, and masks them. Where nothing else is
// looked for, a value whose check is valid counts without a word about it nearby. Fault: Invalid for a name that is no entity's.
func Only(names ...string) (*Profile, error) {
	p := Profile{name: "only"}
	for _, name := range names {
		e, ok := entityNamed(name)
		if !ok {
			return nil, fault.New(fault.Invalid, "redaction.Only", "unknown_redaction_entity", "Redaction does not know that entity; Entities lists those it knows.")
		}
		p.request[e] = Mask
		p.bare = p.bare.with(e)
		if catalogue[e].secret {
			p.response[e] = Mask
		}
	}
	return compile(p), nil
}

// Entity describes one row of the catalogue.
type Entity struct {
	Name    string `json:"name"`    // as in findings and policies
	Profile string `json:"profile"` // the weakest profile that looks for it: balanced or strict; "" when a policy must name it
	Secret  bool   `json:"secret"`  // never restorable
	Context string `json:"context"` // a word that makes a value count whose form alone proves nothing; "" where none is needed
}

// Entities lists everything redaction can find, in catalogue order.
func Entities() []Entity {
	out := make([]Entity, 0, entityCount)
	for e := entity(0); e < entityCount; e++ {
		r := catalogue[e]
		out = append(out, Entity{r.name, [...]string{"balanced", "strict", ""}[r.level], r.secret, contextWord(e)})
	}
	return out
}

// contextWord is the first word of the catalogue about an entity.
func contextWord(e entity) string {
	for _, l := range contextWords {
		if slices.Contains(l.of, e) {
			w, _, _ := strings.Cut(l.terms, ",")
			return strings.TrimSuffix(w, "*")
		}
	}
	return ""
}

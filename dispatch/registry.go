package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

const (
	defaultTimeout = 30 * time.Second
	maxTimeout     = 10 * time.Minute
	maxName        = 128
)

// Registry is the immutable set of capabilities of one version. It is safe for concurrent use. Capabilities it hands out
// have no Handler: a Turn is the only way to one.
type Registry struct {
	names   []string // sorted
	byName  map[string]*entry
	version string
}

type entry struct {
	cap        Capability // without Handler
	handler    Handler
	schema     *jsonschema.Schema
	output     *jsonschema.Schema // nil: anything
	conditions []condition
}

// NewRegistry checks every capability and compiles its schema. It reports all faults at once, as one error of kind
// Invalid and code invalid_registry: a name outside the grammar (segments of [A-Za-z0-9_-] that neither start nor end
// with a hyphen, joined by dots, the first character a letter or an underscore, at most 128 bytes) or given twice, a
// schema that is not an object schema of JSON Schema 2020-12 or refers to another document, an unknown kind or tier, no
// description, and a confirmation demanded of a handler that cannot preview.
func NewRegistry(caps []Capability) (*Registry, error) {
	r := &Registry{byName: make(map[string]*entry, len(caps))}
	var faults []error
	for i, c := range caps {
		e, err := newEntry(c)
		if err == nil && r.byName[c.Name] != nil {
			err = errors.New("it is registered twice")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("capability %d (%q): %w", i, clip(c.Name, 80), err))
			continue
		}
		r.byName[c.Name] = e
		r.names = append(r.names, c.Name)
	}
	if len(faults) > 0 {
		joined := errors.Join(faults...)
		return nil, fault.Wrap(fault.Invalid, "dispatch.NewRegistry", "invalid_registry", "The capability registry has faults; mend each of them: "+strings.ReplaceAll(joined.Error(), "\n", "; ")+".", joined)
	}
	sort.Strings(r.names)
	r.version = r.hash()
	return r, nil
}

func newEntry(c Capability) (*entry, error) {
	if c.Name == ProposeTool {
		return nil, errors.New("the name belongs to the gateway")
	}
	if !validName(c.Name) {
		return nil, errors.New("the name must be dot-joined segments of letters, digits, _ and inner -, starting with a letter or _")
	}
	switch c.Kind {
	case Read, Preview, Mutate:
	default:
		return nil, fmt.Errorf("the kind %q is none of read, preview, mutate", clip(string(c.Kind), 40))
	}
	if c.RequiredTier < tenancy.TierViewer || c.RequiredTier > tenancy.TierAdmin {
		return nil, errors.New("the required tier must be viewer, user or admin")
	}
	if strings.TrimSpace(c.Description) == "" {
		return nil, errors.New("the description is empty; the model needs one")
	}
	if strings.ContainsAny(c.OneLine, "\r\n") {
		return nil, errors.New("the one-line description has a line break")
	}
	if c.Timeout < 0 || c.Timeout > maxTimeout {
		return nil, fmt.Errorf("the timeout must be between 0 and %s", maxTimeout)
	}
	if c.Handler == nil {
		return nil, errors.New("there is no handler")
	}
	if _, ok := c.Handler.(Confirmed); c.RequiresConfirmation && !ok {
		return nil, errors.New("it requires confirmation, but its handler has no preview, apply and discard")
	}
	sch, compact, err := compileSchema(c.InputSchema)
	if err != nil {
		return nil, fmt.Errorf("input schema: %w", err)
	}
	e := &entry{handler: c.Handler, schema: sch}
	if len(c.OutputSchema) > 0 {
		if e.output, c.OutputSchema, err = compileAny(c.OutputSchema); err != nil {
			return nil, fmt.Errorf("output schema: %w", err)
		}
	}
	if c.ConfirmBy != BySelf && c.ConfirmBy != ByAdmin && c.ConfirmBy != ByMember {
		return nil, fmt.Errorf("confirmBy %q is neither empty nor admin nor anyMember", clip(string(c.ConfirmBy), 40))
	}
	if err := c.Hints.check(); err != nil {
		return nil, err
	}
	if len(c.Postconditions) > maxPostconditions {
		return nil, fmt.Errorf("there are more than %d postconditions", maxPostconditions)
	}
	for i, p := range c.Postconditions {
		cond, err := p.compile()
		if err != nil {
			return nil, fmt.Errorf("postcondition %d: %w", i, err)
		}
		e.conditions = append(e.conditions, cond)
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	c.InputSchema, c.Handler = compact, nil
	e.cap = c
	return e, nil
}

// Bounds of what a capability adds to the roster, which every turn pays for.
const (
	maxHints    = 10
	maxHint     = 200
	maxRequired = 10
)

func (h Hints) check() error {
	if len(h.Recognition) > maxHints || len(h.Requires) > maxRequired {
		return fmt.Errorf("there may be at most %d recognition hints and %d required fields of the context", maxHints, maxRequired)
	}
	for _, s := range append([]string{h.Invoke, h.Propose}, h.Recognition...) {
		if len(s) > maxHint || strings.ContainsAny(s, "\r\n") {
			return fmt.Errorf("a hint must be one line of at most %d bytes", maxHint)
		}
	}
	for _, s := range h.Requires {
		if !validName(s) {
			return fmt.Errorf("%q is not a field of the context, such as activeView.deckId", clip(s, 80))
		}
	}
	return nil
}

func validName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	if c := s[0]; !(c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') {
		return false
	}
	for seg := range strings.SplitSeq(s, ".") {
		if seg == "" || seg[0] == '-' || seg[len(seg)-1] == '-' {
			return false
		}
		for i := range len(seg) {
			c := seg[i]
			if !(c == '_' || c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') {
				return false
			}
		}
	}
	return true
}

// hash covers everything a client or a model can notice. Handlers are code and have no part in it.
func (r *Registry) hash() string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, n := range r.names {
		c := r.byName[n].cap
		// Strings, numbers and checked JSON always encode, and a hash never fails to write.
		_ = enc.Encode([]any{c.Name, c.App, c.Title, c.Description, c.AdminDescription, c.OneLine, c.InputSchema, c.OutputSchema, c.Kind, c.RequiredTier,
			c.RequiresConfirmation, c.ConfirmBy, c.Annotations, c.Hints, c.Postconditions, c.Timeout})
	}
	return "r-" + hex.EncodeToString(h.Sum(nil)[:8])
}

// Version identifies the registry's contents: equal for equal sets in whatever order they were registered.
func (r *Registry) Version() string { return r.version }

// Lookup returns a capability, without its handler, by its exact name.
func (r *Registry) Lookup(name string) (Capability, bool) {
	e, ok := r.byName[name]
	if !ok {
		return Capability{}, false
	}
	return e.cap, true
}

// Match resolves a turn's globs: * stands for any run of characters, dots included, ? for one. It returns the sorted
// names that any glob matches and, in the order given, the globs that match nothing.
func (r *Registry) Match(globs []string) (names, unmatched []string) {
	hit := make(map[string]bool, len(r.names))
	for _, g := range globs {
		found := false
		if !strings.ContainsAny(g, `*?[\`) {
			_, found = r.byName[g]
			if found {
				hit[g] = true
			}
		} else if len(g) <= maxName {
			for _, n := range r.names {
				// A malformed glob matches nothing and is reported with the others.
				if ok, err := path.Match(g, n); err == nil && ok {
					hit[n], found = true, true
				}
			}
		}
		if !found {
			unmatched = append(unmatched, g)
		}
	}
	for _, n := range r.names {
		if hit[n] {
			names = append(names, n)
		}
	}
	return names, unmatched
}

// View returns, sorted by name, the capabilities that a tier may use and that are not disabled. A nil disabled disables
// nothing.
func (r *Registry) View(tier tenancy.Tier, disabled func(name string) bool) []Capability {
	var out []Capability
	for _, n := range r.names {
		c := r.byName[n].cap
		if c.RequiredTier <= tier && (disabled == nil || !disabled(n)) {
			out = append(out, c)
		}
	}
	return out
}

// Tools renders capabilities for the model, sorted by wire name; equal capabilities give equal bytes. encode turns a
// capability name into one that every provider takes; the caller keeps the table for the way back.
func Tools(caps []Capability, encode func(string) string) []chat.Tool {
	out := make([]chat.Tool, 0, len(caps))
	for _, c := range caps {
		d := c.Description
		if c.RequiresConfirmation {
			d += " It shows a preview first and takes effect only after the person accepts it."
		}
		out = append(out, chat.Tool{Name: encode(c.Name), Description: d, InputSchema: c.InputSchema})
	}
	slices.SortFunc(out, func(a, b chat.Tool) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// clip shortens s to at most n bytes without splitting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

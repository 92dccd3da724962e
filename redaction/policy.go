package redaction

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// Bounds of a policy document.
const (
	maxDictionaries = 32
	maxWords        = 20_000
	maxWordBytes    = 200
	maxAllowed      = 1000
)

// The scopes within which a value always has the same token.
const (
	scopeConversation = "conversation"
	scopeUser         = "user"
	scopeOrg          = "org"
)

// ParsePolicy compiles an organisation's redaction document into a profile; name is what the profile is based on when the document
// names none, "" for balanced. An empty document is the profile itself.
//
// It is strict: a member it does not know, a member that stands twice and a value it cannot honour are faults of kind Unprocessable,
// code invalid_redaction, whose Field is the JSON pointer of the place within the document. A document that is not JSON is
// Invalid.
//
// It knows of no external detectors; see Engine.ParsePolicy.
func ParsePolicy(doc []byte, name string) (*Profile, error) { return parsePolicy(doc, name, nil) }

// ParsePolicy is the function of that name for a document that may switch on the detectors of the engine.
func (e *Engine) ParsePolicy(doc []byte, name string) (*Profile, error) {
	return parsePolicy(doc, name, e.offered)
}

func parsePolicy(doc []byte, name string, offered []External) (*Profile, error) {
	base, ok := named(name)
	if !ok {
		return ParseProfile(name)
	}
	if len(bytes.TrimSpace(doc)) == 0 || string(bytes.TrimSpace(doc)) == "null" {
		return compile(base), nil
	}
	if !json.Valid(doc) {
		return nil, fault.New(fault.Invalid, opPolicy, "invalid_redaction", "The redaction document is not valid JSON; send one object.")
	}
	r := &reading{offered: offered}
	p := r.policy(doc, base)
	if r.err != nil {
		return nil, r.err
	}
	return compile(p), nil
}

const opPolicy = "redaction.ParsePolicy"

// policy reads the whole document.
func (r *reading) policy(doc json.RawMessage, p Profile) Profile {
	parts := map[string]json.RawMessage{}
	at := map[string]string{}
	r.object("", doc, func(name, where string, raw json.RawMessage) bool {
		parts[name], at[name] = raw, where
		switch name {
		case "version", "profile", "fail_mode", "scope", "parts", "entities", "allow", "deny_dictionaries", "custom", "tokens", "json", "limits", "external":
			return true
		}
		return false
	})
	if r.err != nil {
		return p
	}
	read := func(name string, f func(at string, raw json.RawMessage)) {
		if raw, ok := parts[name]; ok && r.err == nil {
			f(at[name], raw)
		}
	}
	read("version", func(at string, raw json.RawMessage) {
		if string(raw) != "1" {
			r.fail(at, "version is 1.")
		}
	})
	read("profile", func(at string, raw json.RawMessage) {
		p, _ = named(r.one(at, raw, "off", "balanced", "strict"))
	})
	p.tooLarge = Block
	read("fail_mode", func(at string, raw json.RawMessage) {
		if r.one(at, raw, "closed", "open") == "open" {
			p.tooLarge = Flag
		}
	})
	read("tokens", func(at string, raw json.RawMessage) { r.tokens(at, raw, &p) })
	read("custom", func(at string, raw json.RawMessage) { r.patterns(at, raw, &p) })
	read("deny_dictionaries", func(at string, raw json.RawMessage) { r.dictionaries(at, raw, &p) })
	read("external", func(at string, raw json.RawMessage) { r.detectors(at, r.texts(at, raw, maxExternal), &p) })
	read("entities", func(at string, raw json.RawMessage) { r.entities(at, raw, &p) })
	read("parts", func(at string, raw json.RawMessage) { r.parts(at, raw, &p) })
	read("allow", func(at string, raw json.RawMessage) { p.allow = r.allowed(at, raw) })
	read("json", func(at string, raw json.RawMessage) {
		r.object(at, raw, func(name, at string, raw json.RawMessage) bool {
			switch name {
			case "numbers":
				p.numbers = r.action(at, raw, Allow, Flag, Block)
			case "keys":
				p.keys = r.action(at, raw, Allow, Flag, Block)
			default:
				return false
			}
			return true
		})
	})
	read("limits", func(at string, raw json.RawMessage) { r.limits(at, raw, &p) })
	read("scope", func(at string, raw json.RawMessage) { r.directions(at, raw, &p) })
	if p.extras != nil && r.err == nil {
		p.extras.words = newDictionary(p.extras.words.list)
	}
	return p
}

// directions switches whole directions off; it comes last, so that nothing switches one on again.
func (r *reading) directions(at string, raw json.RawMessage, p *Profile) {
	r.object(at, raw, func(name, at string, raw json.RawMessage) bool {
		on := r.flag(at, raw)
		switch name {
		case "request":
			if !on {
				p.request, p.numbers, p.keys = [entityCount]Action{}, Allow, Allow
				for i := range p.custom {
					p.custom[i].request = Allow
				}
			}
		case "response":
			if !on {
				p.response = [entityCount]Action{}
				for i := range p.custom {
					p.custom[i].response = Allow
				}
			}
		case "transcript":
			if !on {
				p.stored = [entityCount]Action{}
				for i := range p.custom {
					p.custom[i].stored = Allow
				}
			}
		case "logs":
			if !on {
				r.fail(at, "Logs are always masked; leave logs out or set it to true.")
			}
		default:
			return false
		}
		return true
	})
}

func (r *reading) parts(at string, raw json.RawMessage, p *Profile) {
	r.object(at, raw, func(name, at string, raw json.RawMessage) bool {
		if name == "reasoning" {
			r.one(at, raw, "passthrough") // a provider refuses reasoning whose bytes changed
			return true
		}
		k := slices.Index(positionNames[posSystem:], name)
		if k < 0 {
			return false
		}
		switch r.one(at, raw, "enforce", "flag", "off") {
		case "flag":
			p.modes[int(posSystem)+k] = flagOnly
		case "off":
			p.modes[int(posSystem)+k] = pass
		}
		return true
	})
}

// ruling is what a document says about one entity, custom or not.
type ruling struct{ request, response, stored Action }

// rule reads the members that say what happens; it reports false for any other member.
func (r *reading) rule(name, at string, raw json.RawMessage, to *ruling) bool {
	switch name {
	case "request", "action":
		to.request = r.action(at, raw, actionOrder[:]...)
	case "response":
		to.response = r.action(at, raw, Allow, Flag, Hash, Mask, Block)
	case "transcript":
		to.stored = r.action(at, raw, Allow, Hash, Mask)
	case "log":
		r.action(at, raw, Mask)
	default:
		return false
	}
	return true
}

func (r *reading) entities(at string, raw json.RawMessage, p *Profile) {
	r.object(at, raw, func(name, at string, raw json.RawMessage) bool {
		e, ok := p.named(name)
		if !ok {
			r.fail(at, "Nothing called %q can be found here; docs/redaction.md lists the names.", short(name))
			return true
		}
		var to ruling
		r.object(at, raw, func(name, at string, raw json.RawMessage) bool {
			switch name {
			case "min_score":
				var least *float64
				if json.Unmarshal(raw, &least) != nil || least == nil || *least < 0 || *least > 1 {
					r.fail(at, "min_score is a number from 0 to 1.")
					return true
				}
				if p.least == nil {
					p.least = map[entity]float64{}
				}
				p.least[e] = *least
			case "mask":
				style := r.one(at, raw, "label", "last4")
				if e >= entityCount {
					r.fail(at, "A custom entity is masked by its label.")
					return true
				}
				if p.lastFour = p.lastFour.without(e); style == "last4" {
					p.lastFour = p.lastFour.with(e)
				}
			default:
				return r.rule(name, at, raw, &to)
			}
			return true
		})
		if e >= entityCount {
			p.custom[e-entityCount].apply(to)
			return true
		}
		if to.request == Tokenize && catalogue[e].secret && !p.reveal {
			r.fail(at+"/request", "A secret is only tokenized when tokens.secrets is true, because it could then be restored; use mask.")
		}
		if to.request != "" {
			p.request[e] = to.request
		}
		if to.response != "" {
			p.response[e] = to.response
		}
		if to.stored != "" {
			p.stored[e] = to.stored
		}
		return true
	})
}

func (c *custom) apply(to ruling) {
	if to.request != "" {
		c.request = to.request
	}
	if to.response != "" {
		c.response = to.response
	}
	if to.stored != "" {
		c.stored = to.stored
	}
}

var customName = regexp.MustCompile(`^[A-Z][A-Z_]{1,22}[A-Z]$`)

// define adds a custom entity and returns its index. Names have no digits, so that no token of theirs looks like a number.
func (r *reading) define(p *Profile, at, name string, to ruling) int {
	if name = strings.ToUpper(name); r.err != nil {
		return -1
	}
	if !customName.MatchString(name) || strings.HasSuffix(name, "_H") {
		r.fail(at+"/name", "A name has 3 to 24 letters and underscores, such as EMPLOYEE_ID.")
		return -1
	}
	if _, taken := p.named(name); taken {
		r.fail(at+"/name", "The name %s is taken; choose another.", name)
		return -1
	}
	if p.extras == nil {
		p.extras = &extras{words: &dictionary{}}
	}
	if to.request == "" {
		to.request = Tokenize
	}
	p.extras.rules = append(p.extras.rules, extra{row: row{name: name, short: name, label: "[" + name + "]", score: 0.9}})
	p.custom = append(p.custom, custom{request: Allow, response: Allow, stored: Allow})
	p.custom[len(p.custom)-1].apply(to)
	return len(p.extras.rules) - 1
}

func (r *reading) patterns(at string, raw json.RawMessage, p *Profile) {
	r.list(at, raw, maxCustom, func(at string, raw json.RawMessage) {
		var to ruling
		var name, pattern string
		var context []string
		r.object(at, raw, func(member, at string, raw json.RawMessage) bool {
			switch member {
			case "name":
				name = r.text(at, raw)
			case "pattern":
				pattern = r.text(at, raw)
			case "context":
				context = r.texts(at, raw, 50)
			default:
				return r.rule(member, at, raw, &to)
			}
			return true
		})
		k := r.define(p, at, name, to)
		if k < 0 {
			return
		}
		re, literals, why := compilePattern(pattern)
		if why != "" {
			r.fail(at+"/pattern", "The pattern %s.", why)
			return
		}
		x := &p.extras.rules[k]
		x.pattern = re
		for _, c := range context {
			x.context = append(x.context, foldWord(c))
		}
		for _, l := range literals {
			p.extras.words.list = append(p.extras.words.list, word{folded: l, rule: int32(k)})
		}
	})
}

func (r *reading) dictionaries(at string, raw json.RawMessage, p *Profile) {
	total := 0
	r.list(at, raw, maxDictionaries, func(at string, raw json.RawMessage) {
		var to ruling
		var name string
		var list []string
		whole, folded := true, true
		r.object(at, raw, func(member, at string, raw json.RawMessage) bool {
			switch member {
			case "name":
				name = r.text(at, raw)
			case "words":
				list = r.texts(at, raw, maxWords)
			case "whole_word":
				whole = r.flag(at, raw)
			case "fold":
				folded = r.flag(at, raw)
			default:
				return r.rule(member, at, raw, &to)
			}
			return true
		})
		k := r.define(p, at, name, to)
		if k < 0 {
			return
		}
		if total += len(list); total > maxWords || len(list) == 0 {
			r.fail(at+"/words", "All dictionaries together hold 1 to %d words.", maxWords)
			return
		}
		p.extras.words.list = slices.Grow(p.extras.words.list, len(list))
		for i, s := range list {
			if s = strings.TrimSpace(s); len(s) < 2 {
				r.fail(at+"/words/"+strconv.Itoa(i), "A word has at least two bytes.")
				return
			}
			w := word{folded: foldWord(s), whole: whole, rule: int32(k)}
			if !folded {
				w.exact = s
			}
			p.extras.words.list = append(p.extras.words.list, w)
		}
	})
}

func (r *reading) allowed(at string, raw json.RawMessage) *allowList {
	a := &allowList{values: map[string]bool{}, domains: map[string]bool{}}
	r.object(at, raw, func(name, at string, raw json.RawMessage) bool {
		switch name {
		case "values":
			for _, v := range r.texts(at, raw, maxAllowed) {
				a.values[foldWord(v)] = true
			}
		case "domains":
			for _, v := range r.texts(at, raw, maxAllowed) {
				a.domains[foldWord(strings.TrimPrefix(v, "*."))] = true
			}
		case "ip":
			for i, v := range r.texts(at, raw, maxAllowed) {
				n, err := netip.ParsePrefix(v)
				if err != nil {
					var one netip.Addr
					if one, err = netip.ParseAddr(v); err == nil {
						n = netip.PrefixFrom(one, one.BitLen())
					}
				}
				if err != nil {
					r.fail(at+"/"+strconv.Itoa(i), "An entry of ip is an address or a network such as 10.0.0.0/8.")
					return true
				}
				a.networks = append(a.networks, n.Masked())
			}
		case "json_paths":
			for i, v := range r.texts(at, raw, maxAllowed) {
				steps, ok := parsePath(v)
				if !ok {
					r.fail(at+"/"+strconv.Itoa(i), "An entry of json_paths is a path such as $.messages[*].content or $.metadata.order_id.")
					return true
				}
				a.paths = append(a.paths, steps)
			}
		default:
			return false
		}
		return true
	})
	return a
}

func (r *reading) tokens(at string, raw json.RawMessage, p *Profile) {
	r.object(at, raw, func(name, at string, raw json.RawMessage) bool {
		switch name {
		case "scope":
			p.scope = r.one(at, raw, scopeConversation, scopeUser, scopeOrg)
		case "style":
			r.one(at, raw, "plain")
		case "secrets":
			p.reveal = r.flag(at, raw)
		default:
			return false
		}
		return true
	})
}

func (r *reading) limits(at string, raw json.RawMessage, p *Profile) {
	r.object(at, raw, func(name, at string, raw json.RawMessage) bool {
		switch name {
		case "max_scan_bytes":
			var n *int
			if json.Unmarshal(raw, &n) != nil || n == nil || *n < 1024 || *n > 1<<30 {
				r.fail(at, "max_scan_bytes is a number of bytes from 1024 to 1073741824.")
				return true
			}
			p.maxScan = *n
		case "over_limit":
			p.tooLarge = r.action(at, raw, Flag, Block)
		case "max_custom":
			var n *int
			if json.Unmarshal(raw, &n) != nil || n == nil || *n < 0 || *n > maxCustom {
				r.fail(at, "max_custom is a number from 0 to %d.", maxCustom)
				return true
			}
			if len(p.custom) > *n {
				r.fail("/custom", "There are more custom entities than limits.max_custom allows.")
			}
		default:
			return false
		}
		return true
	})
}

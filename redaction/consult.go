package redaction

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// Detector finds in texts what this package cannot, such as names. It answers with one list for each text, in their order; a span is
// in bytes of its text, on the borders of characters. An error means that nothing is known of any of them.
type Detector interface {
	Detect(ctx context.Context, texts, entities []string) ([][]Span, error)
}

// External is a detector an operator offers, and what organisations may have of it.
type External struct {
	Name     string   // how redaction documents call it: a-z, 0-9 and dashes, 1 to 40
	Entities []string // what it may report; other findings of it are left out
	Open     bool     // when it does not answer, texts pass; otherwise they do not leave
	Detector Detector
}

// Bounds of external detectors.
const (
	maxExternal   = 8       // detectors
	maxReported   = 16      // entities of one
	keptTexts     = 16_384  // remembered answers, each of a text of one organisation
	maxKnown      = 1000    // values of one turn that are looked for again
	minKnown      = 3       // bytes of such a value
	externalScore = 0.85    // what an entity counts that only a detector knows
	detectorTexts = "texts" // purpose of the key that answers are remembered by
)

var externalName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// ValidExternal checks what an operator offers: faults of kind Invalid, and Internal for one without a Detector.
func ValidExternal(list []External) error {
	const op = "redaction.New"
	if len(list) > maxExternal {
		return fault.New(fault.Invalid, op, "invalid_detector", "At most 8 external detectors can be offered; remove some.")
	}
	seen := map[string]bool{}
	for _, x := range list {
		switch {
		case !externalName.MatchString(x.Name) || seen[x.Name]:
			return fault.New(fault.Invalid, op, "invalid_detector", "A detector's name has 1 to 40 of a-z, 0-9 and dashes, and no two have the same.")
		case len(x.Entities) == 0 || len(x.Entities) > maxReported:
			return fault.New(fault.Invalid, op, "invalid_detector", "A detector names 1 to 16 entities it may report.")
		case x.Detector == nil:
			return fault.New(fault.Internal, op, "invalid_detector", "A detector was configured that nobody can ask.")
		}
		seen[x.Name] = true
		for _, e := range x.Entities {
			if _, known := entityNamed(e); !known && !customName.MatchString(e) {
				return fault.New(fault.Invalid, op, "invalid_detector", "An entity of a detector has 3 to 24 capital letters and underscores, such as LOCATION.")
			}
		}
	}
	return nil
}

// asked is a detector an organisation switched on, and what its findings are here.
type asked struct {
	*External
	ents map[string]entity
}

// detectors reads the names of the detectors a document switches on. What they report is hidden unless the document says otherwise.
func (r *reading) detectors(at string, names []string, p *Profile) {
	for i, name := range names {
		here := at + "/" + strconv.Itoa(i)
		k := slices.IndexFunc(r.offered, func(x External) bool { return x.Name == name })
		if k < 0 || slices.Index(names, name) < i {
			r.fail(here, "Your operator offers no detector called %q, or it stands here twice; ask which there are.", short(name))
			return
		}
		a := asked{&r.offered[k], map[string]entity{}}
		for _, name := range a.Entities {
			e, known := p.named(name)
			if !known {
				n := r.define(p, here, name, ruling{})
				if n < 0 {
					return
				}
				p.extras.rules[n].row.score = externalScore
				e = entityCount + entity(n)
			} else if e < entityCount && severity(p.request[e]) == 0 {
				if p.request[e] = Tokenize; catalogue[e].secret {
					p.request[e] = Mask
				}
			}
			a.ents[strings.ToUpper(name)] = e
		}
		p.external = append(p.external, a)
	}
}

// foreign is what detectors found in a turn.
type foreign struct {
	byText map[string][]span
	values []known
}

// known is a value that was found, to be found again in texts nobody is asked about: what is kept of a turn, and what is joined of
// several texts.
type known struct {
	value string
	ent   entity
}

// find appends what is known about a text.
func (f *foreign) find(text string, spans []span) []span {
	if found, ok := f.byText[text]; ok {
		return append(spans, found...)
	}
	for _, v := range f.values {
		for from := 0; ; {
			k := strings.Index(text[from:], v.value)
			if k < 0 {
				break
			}
			k += from
			if from = k + len(v.value); isWholeWord(text, k, from) {
				spans = append(spans, span{k, from, v.ent})
			}
		}
	}
	return spans
}

func (f *foreign) add(text string, found []span) {
	f.byText[text] = append(f.byText[text], found...)
	for _, x := range found {
		v := known{text[x.start:x.end], x.ent}
		if len(v.value) >= minKnown && len(f.values) < maxKnown && !slices.Contains(f.values, v) {
			f.values = append(f.values, v)
		}
	}
}

// MaskContext is Mask after the detectors that the profile names were asked about the texts of the body. What they said of a text
// is remembered, so that a conversation that is sent again asks about its news only. Further errors: Unavailable with code
// redaction_detector_failed when a detector that must answer did not, and what Mask says.
func (s *Session) MaskContext(ctx context.Context, proto chat.Protocol, body []byte, edits ...chat.Edit) (Masked, error) {
	if err := s.consult(ctx, proto, body); err != nil {
		return Masked{}, err
	}
	m, _, err := s.mask(proto, body, edits, false)
	return m, err
}

// Unanswered lists, sorted, the detectors that did not answer and whose texts passed all the same.
func (s *Session) Unanswered() []string { return s.unanswered }

// consult asks about all texts of a body.
func (s *Session) consult(ctx context.Context, proto chat.Protocol, body []byte) error {
	root, known := roots[proto]
	if len(s.p.external) == 0 || !known || s.p.maxScan > 0 && len(body) > s.p.maxScan {
		return nil
	}
	var texts []string
	pass := maskPass{s: s, body: body, detector: detector{gather: func(text string) { texts = append(texts, strings.Clone(text)) }}}
	pass.walker = walker{b: body, sink: &pass, pos: posOther}
	if err := pass.walker.walk(root); err != nil {
		return err
	}
	return s.ask(ctx, texts)
}

// ask asks each detector about the texts it was not asked about before.
func (s *Session) ask(ctx context.Context, texts []string) error {
	if s.foreign == nil {
		s.foreign = &foreign{byText: map[string][]span{}}
		s.detector.foreign = s.foreign
	}
	slices.Sort(texts)
	texts = slices.DeleteFunc(slices.Compact(texts), func(t string) bool { _, ok := s.foreign.byText[t]; return ok || strings.TrimSpace(t) == "" })
	for i := range s.p.external {
		x := &s.p.external[i]
		if !slices.ContainsFunc(x.Entities, func(name string) bool { e := x.ents[strings.ToUpper(name)]; return s.p.acts(e) }) {
			continue
		}
		if err := s.askOne(ctx, x, texts); err != nil {
			if !x.Open {
				return fault.Wrap(fault.Unavailable, "redaction.MaskContext", "redaction_detector_failed", "The detector "+x.Name+" that your organisation's redaction relies on did not answer, so nothing was sent. Try again; if it stays, tell an administrator.", err)
			}
			if !slices.Contains(s.unanswered, x.Name) {
				s.unanswered = append(s.unanswered, x.Name)
				slices.Sort(s.unanswered)
			}
		}
	}
	return nil
}

// askOne asks one detector; nothing of its answer is taken unless all of it can be.
func (s *Session) askOne(ctx context.Context, x *asked, texts []string) error {
	var news []string
	found := make(map[string][]Span, len(texts))
	for _, t := range texts {
		if spans, ok := s.e.answers.Get(s.e.answerKey(s.scope.Org.String(), x, t)); ok {
			found[t] = spans
		} else {
			news = append(news, t)
		}
	}
	if len(news) > 0 {
		lists, err := x.Detector.Detect(ctx, news, x.Entities)
		if err != nil {
			return err
		}
		if len(lists) != len(news) {
			return fault.New(fault.Upstream, "redaction.askOne", "detector_answer", "The detector answered about another number of texts.")
		}
		for i, list := range lists {
			if !within(news[i], list) {
				return fault.New(fault.Upstream, "redaction.askOne", "detector_answer", "The detector named places that are not in the text.")
			}
			found[news[i]] = slices.Clone(list)
		}
		for _, t := range news {
			s.e.answers.Add(s.e.answerKey(s.scope.Org.String(), x, t), found[t])
		}
	}
	for _, t := range texts {
		var spans []span
		for _, f := range found[t] {
			e, offered := x.ents[strings.ToUpper(f.Entity)]
			if offered && f.Score >= s.p.least[e] {
				spans = append(spans, span{f.Start, f.End, e})
			}
		}
		s.foreign.add(t, spans)
	}
	return nil
}

// within reports whether all spans lie in the text, on the borders of characters.
func within(text string, list []Span) bool {
	border := func(i int) bool { return i == len(text) || utf8.RuneStart(text[i]) }
	for _, x := range list {
		if x.Start < 0 || x.Start >= x.End || x.End > len(text) || !border(x.Start) || !border(x.End) {
			return false
		}
	}
	return true
}

// answerKey is what an answer is remembered by: nothing of the text can be told from it.
func (e *Engine) answerKey(org string, x *asked, text string) (k [sha256.Size]byte) {
	h := hmac.New(sha256.New, e.key(derivation{purpose: detectorTexts, org: org}))
	for _, part := range append([]string{x.Name, text}, x.Entities...) {
		_ = binary.Write(h, binary.LittleEndian, uint64(len(part))) // a hash takes everything
		h.Write([]byte(part))
	}
	h.Sum(k[:0])
	return k
}

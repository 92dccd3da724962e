package billing

import (
	"sync"
	"unicode"
	"unicode/utf8"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/tenancy"
)

// Weighing estimates how many tokens a text has from the kinds of characters it is made of, as it comes: byte-level vocabularies cut it into words,
// digits, signs and spaces much alike, and each of those has a usual price. The weights were fitted against the o200k vocabulary; what a model's own
// vocabulary does differently is learned by an Estimator. The zero value has seen nothing. It is not safe for concurrent use.
type Weighing struct {
	milli int64 // thousandths of a token, of the pieces that have ended
	run   int   // characters of the piece that has not
	kind  runeKind
	lone  bool  // the piece before was one character that joins the word behind it
	mixed int   // how often letters and digits, or cases, changed without a space: high in base64, hashes and keys
	span  int   // characters since the last space
	base  int64 // milli when that span began
}

// runeKind is what a piece is made of.
type runeKind uint8

const (
	kindNone runeKind = iota
	kindLower
	kindUpper
	kindDigit
	kindSign
	kindSpace
	kindBreak
	kindLetter // of an alphabet other than ASCII's
	kindWide   // ideographs
	kindKana
	kindHangul
	kindPicture
)

// Weights in thousandths of a token.
const (
	weighWord    = 1000 // a word of common length
	weighLonger  = 190  // each character beyond weighUsual
	weighUsual   = 8
	weighShout   = 200 // a character of a run of capitals beyond the first two
	weighSign    = 300 // a character of a run of signs beyond the first
	weighLetter  = 150 // a character of an accented or other alphabet's word, beyond the first
	weighWide    = 660 // an ideograph
	weighKana    = 790
	weighHangul  = 460
	weighPicture = 1600
	weighNoise   = 690 // a character of base64 and the like
)

// Add weighs more of the text. Cut it where you like, but not within a character.
func (w *Weighing) Add(text string) {
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			w.one(asciiKind(c))
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		w.one(wideKind(r))
		i += n
	}
}

func asciiKind(c byte) runeKind {
	switch {
	case c >= 'a' && c <= 'z':
		return kindLower
	case c >= 'A' && c <= 'Z':
		return kindUpper
	case c >= '0' && c <= '9':
		return kindDigit
	case c == '\n' || c == '\r':
		return kindBreak
	case c <= ' ' || c == 0x7f:
		return kindSpace
	}
	return kindSign
}

func wideKind(r rune) runeKind {
	switch {
	case r >= 0x3040 && r <= 0x30FF:
		return kindKana
	case r >= 0xAC00 && r <= 0xD7AF:
		return kindHangul
	case r >= 0x2E80 && r <= 0x9FFF, r >= 0xF900 && r <= 0xFAFF, r >= 0xFF00 && r <= 0xFFEF, r >= 0x20000 && r <= 0x3FFFF:
		return kindWide
	case r >= 0x1F000 && r <= 0x1FAFF, r >= 0x2600 && r <= 0x27BF, r == 0xFE0F, r == 0x200D, r == utf8.RuneError:
		return kindPicture
	case unicode.IsLetter(r), unicode.IsMark(r):
		return kindLetter
	case unicode.IsSpace(r):
		return kindSpace
	}
	return kindSign
}

func (w *Weighing) one(k runeKind) {
	if k == w.kind {
		w.run++
		if w.span++; k >= kindWide {
			w.span = 0
		}
		return
	}
	word := k == kindLower || k == kindUpper || k == kindLetter
	// A capital begins a word and belongs to it; so do an accent within one and the letters around it.
	joins := w.kind == kindUpper && k == kindLower || (w.kind == kindLower || w.kind == kindLetter) && k == kindLetter || w.kind == kindLetter && k == kindLower
	if joins {
		if w.kind == kindUpper && w.run > 2 { // XMLHttp: the last capital is the word's
			w.run--
			w.end()
			w.run = 1
		}
		if w.kind == kindLetter {
			k = kindLetter
		}
		w.kind = k
		w.run++
		w.span++
		return
	}
	before, length := w.kind, w.run
	if length == 1 && (before == kindSpace || before == kindSign && !w.lone) && word {
		w.run = 0 // it joins the word
	} else if before == kindSpace && k == kindSign {
		w.run-- // the last space joins the signs
	}
	w.end()
	w.lone = before == kindSpace && k == kindSign
	switch {
	case k == kindSpace || k == kindBreak || k >= kindWide || k == kindSign && before != kindLower && before != kindUpper && before != kindDigit:
		w.settle()
	case before != kindSpace && before != kindBreak && before != kindSign && before != kindNone:
		w.mixed++
	}
	if w.kind, w.run = k, 1; k == kindBreak && before == kindSign { // it joins the signs
		w.run = 0
	}
	w.span++
}

// end counts the piece that ended.
func (w *Weighing) end() {
	if n := int64(w.run); n > 0 {
		w.milli += pieceWeight(w.kind, n)
	}
	w.run = 0
}

func pieceWeight(k runeKind, n int64) int64 {
	switch k {
	case kindLower:
		return weighWord + max(n-weighUsual, 0)*weighLonger
	case kindUpper:
		return weighWord + max(n-2, 0)*weighShout
	case kindDigit:
		return (n + 2) / 3 * weighWord
	case kindSign:
		return weighWord + (n-1)*weighSign
	case kindSpace, kindBreak: // runs are one token up to a length no text has
		return weighWord + n/16*weighWord
	case kindLetter:
		return weighWord + max(n-3, 0)*weighLetter
	case kindWide:
		return n * weighWide
	case kindKana:
		return n * weighKana
	case kindHangul:
		return n * weighHangul
	case kindPicture:
		return n * weighPicture
	}
	return 0
}

// settle ends a span without spaces: one that changes its kind all the time is noise, which costs by the character.
func (w *Weighing) settle() {
	if w.span >= 16 && w.mixed*4 >= w.span {
		w.milli = w.base + int64(w.span)*weighNoise
	}
	w.span, w.mixed, w.base = 0, 0, w.milli
}

// Tokens is the estimate of what was added so far, rounded up.
func (w *Weighing) Tokens() int64 {
	c := *w
	c.end()
	c.settle()
	return (c.milli + 999) / 1000
}

// Estimator learns how far the tokens that providers count are from what this package expects, by organisation and model: of answers against their
// Weighing, of prompts against the size of their bodies. What it says is bounded and follows from what it was told, in that order. It is safe for concurrent use.
type Estimator struct {
	mu   sync.Mutex
	seen *lru.Cache[estimated, *learned]
}

type estimated struct {
	org   tenancy.OrgID
	model string
}

// learned is the sums of what was expected and what was counted, older ones weighing less.
type learned struct{ answer, prompt leaning }

// leaning is a ratio that follows the newest few thousand tokens.
type leaning struct{ expected, counted int64 }

const (
	estimatorSize = 4096    // pairs of organisation and model that are remembered
	leaningKeeps  = 200_000 // tokens after which both sums are halved
	leaningDoubts = 50      // tokens' worth of standing by what was expected
	leaningAtMost = 4       // times, either way
	promptEnough  = 1_000   // tokens of prompts after which their size is enough to go by
	promptEnds    = 4 << 10 // bytes of either end of a long prompt
)

// NewEstimator returns one that has learned nothing.
func NewEstimator() *Estimator {
	c, err := lru.New[estimated, *learned](estimatorSize)
	if err != nil {
		panic(err) // the size is positive
	}
	return &Estimator{seen: c}
}

// learn takes in one more pair. A single one is bounded, so that nonsense of a provider is forgotten again.
func (l *leaning) learn(expected, counted int64) {
	if expected <= 0 || counted <= 0 || expected > maxTokens {
		return
	}
	if expected > leaningKeeps/4 { // one long one is not the truth about all
		counted, expected = counted/(expected/(leaningKeeps/4)+1), leaningKeeps/4
	}
	counted = min(max(counted, expected/leaningAtMost), expected*leaningAtMost)
	if l.expected += expected; l.expected > leaningKeeps {
		l.expected, l.counted = l.expected/2, (l.counted+counted)/2
		return
	}
	l.counted += counted
}

// apply brings what is expected to what experience says.
func (l *leaning) apply(expected int64) int64 {
	if expected <= 0 {
		return 0
	}
	if expected > maxTokens {
		return maxTokens
	}
	return expected * (l.counted + leaningDoubts) / (l.expected + leaningDoubts)
}

func (e *Estimator) of(org tenancy.OrgID, model string, make bool) *learned {
	if l, ok := e.seen.Get(estimated{org, model}); ok || !make {
		return l
	}
	l := &learned{}
	e.seen.Add(estimated{org, model}, l)
	return l
}

// Prompt estimates the tokens of a prompt by its body: by its size where enough was learned, else by what it is made of.
func (e *Estimator) Prompt(org tenancy.OrgID, model string, body []byte) int64 {
	expected := EstimateTokens(int64(len(body)))
	if expected == 0 {
		return 0
	}
	var l learned
	e.mu.Lock()
	if have := e.of(org, model, false); have != nil {
		l = *have
	}
	e.mu.Unlock()
	if l.prompt.expected >= promptEnough {
		return max(l.prompt.apply(expected), 1)
	}
	return max(l.answer.apply(weighBody(body)), 1) // the vocabulary is the same
}

// weighBody weighs a body, and of a long one its ends: it is done while somebody waits.
func weighBody(body []byte) int64 {
	var w Weighing
	if len(body) <= 2*promptEnds {
		w.Add(string(body))
		return w.Tokens()
	}
	w.Add(string(body[:promptEnds]))
	w.Add(string(body[len(body)-promptEnds:]))
	return min(w.Tokens()*int64(len(body))/(2*promptEnds), maxTokens)
}

// Answer estimates the tokens of an answer of that weight.
func (e *Estimator) Answer(org tenancy.OrgID, model string, w *Weighing) int64 {
	expected := w.Tokens()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.of(org, model, false); l != nil && expected > 0 {
		return max(l.answer.apply(expected), 1)
	}
	return expected
}

// Learn takes in an attempt whose usage is the provider's last word: the bytes of its prompt, and the weight of all the text of its answer, 0 or
// nil where they say nothing about the tokens, as with images and with thinking that was not shown. Estimates are ignored.
func (e *Estimator) Learn(ev *Event, promptBytes int64, answer *Weighing) {
	if ev.Basis != Computed && ev.Basis != Reported || ev.Status != StatusOK {
		return
	}
	u := &ev.Usage
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.of(ev.Org, ev.Model, true)
	if u.InputAudio == 0 && u.InputImage == 0 {
		l.prompt.learn(EstimateTokens(promptBytes), u.InputTotal())
	}
	if answer != nil && u.OutputAudio == 0 && u.OutputImage == 0 {
		l.answer.learn(answer.Tokens(), u.Output-u.Reasoning)
	}
}

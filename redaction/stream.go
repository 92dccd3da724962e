package redaction

import (
	"strings"
	"unicode/utf8"
)

// Stream restores one provider stream while it passes, and hides the secrets a model makes up. Each channel, usually
// the index of a content block, is a text of its own. It holds back only what could still become a token or a secret;
// what it returns over all calls does not depend on how the text was cut into deltas.
//
// A channel is either text or a tool's input, from its first delta on. A Stream is not safe for concurrent use.
//
// Where the profile blocks what a model writes, the Stream gives out what came before it and then nothing more, and Blocked says why.
type Stream struct {
	r        reader // of what is left to do here
	all      reader // of all there is to do
	hider    *Stream
	channels []*channel
}

// Blocked returns the fault of kind Forbidden, code content_policy, that ends an answer with what the profile blocks in answers; nil
// when there is none.
func (st *Stream) Blocked() error { return st.r.halt.fault("redaction.Stream") }

// Active reports whether the stream may change anything at all. Where it may, a surface leaves out what repeats the text in another
// form, such as log probabilities.
func (st *Stream) Active() bool { return st.all.active() }

// Stream makes the restorer of one provider stream.
func (s *Session) Stream() *Stream {
	all := reader{s: s, hide: true, halt: &halt{}}
	if all.slow() {
		return &Stream{r: all.restorer(), all: all, hider: &Stream{r: all.hider(), all: all.hider()}}
	}
	return &Stream{r: all, all: all}
}

// channel is the state of one text or one JSON document in the making.
type channel struct {
	id      int
	prev    byte   // the last byte before held, 0 at the start of a text
	held    []byte // decoded bytes nothing is decided about yet
	keep    uint8  // not 0: bytes of these classes still belong to a secret already replaced
	pem     bool   // held is a private key's block whose end has not come
	changes []change

	sieve *sieve    // of a text, where the profile asks for one
	json  *document // of a tool's input
}

func (st *Stream) channel(id int) *channel {
	for _, c := range st.channels {
		if c.id == id {
			return c
		}
	}
	c := &channel{id: id}
	st.channels = append(st.channels, c)
	return c
}

// Text takes the next piece of a plain text and returns what may be shown now, which can be nothing.
func (st *Stream) Text(id int, delta string) string {
	if delta == "" || !st.Active() {
		return delta
	}
	if st.r.halt.count > 0 {
		return ""
	}
	c := st.channel(id)
	if st.hider != nil {
		if c.sieve == nil {
			c.sieve = &sieve{r: st.all}
		}
		delta = st.hider.Text(id, delta)
		if halted := st.r.halt.count > 0; halted || delta != "" {
			delta = c.sieve.pass(delta, !halted)
		}
		if st.r.halt.count > 0 { // what came before is all there is
			c.held = append(c.held, delta...)
			return st.settle(c, false)
		}
		if delta == "" {
			return ""
		}
	}
	return st.text(c, delta)
}

// text takes what may be shown but for tokens and secrets.
func (st *Stream) text(c *channel, delta string) string {
	if len(c.held) == 0 && c.keep == 0 {
		var t tail
		c.changes, t = st.r.read(delta, c.prev, true, c.changes[:0])
		if len(c.changes) == 0 && t.hold == len(delta) {
			c.prev = delta[len(delta)-1]
			return delta
		}
		return st.emit(c, delta, t)
	}
	c.held = append(c.held, delta...)
	if c.waits(len(delta)) {
		return ""
	}
	return st.settle(c, true)
}

// waits reports whether nothing can have changed for a key's block: without this, every delta of a long key would read
// the block from its start again.
func (c *channel) waits(added int) bool {
	if !c.pem || len(c.held) >= maxPEM {
		return false
	}
	if c.held[0] == puttyBegin[0] || strings.HasPrefix(view(c.held), ssh2Dashes+ssh2Begin) { // those are read by lines
		return !strings.ContainsAny(view(c.held[max(0, len(c.held)-added-1):]), "\n\r\\-")
	}
	news := c.held[max(0, len(c.held)-added-len(pemEnd)-maxPEMLabel-len(pemDashes)):]
	return !strings.Contains(view(news), pemDashes)
}

// settle decides what it can of the held text.
func (st *Stream) settle(c *channel, more bool) string {
	text := string(c.held)
	if c.keep != 0 {
		end, growing := extent(text, 0, c.keep, more)
		text = text[end:]
		if growing {
			c.held = append(c.held[:0], text...)
			return ""
		}
		c.keep = 0
	}
	var t tail
	c.changes, t = st.r.read(text, c.prev, more, c.changes[:0])
	return st.emit(c, text, t)
}

// emit returns the decided part of text and keeps the rest.
func (st *Stream) emit(c *channel, text string, t tail) string {
	st.r.count(c.changes)
	out := spliced(text[:t.hold], c.changes)
	if t.hold > 0 {
		c.prev = prevAt(text, t.hold, c.changes)
	}
	c.held = append(c.held[:0], text[t.hold:]...)
	c.keep = t.keep
	c.pem = t.strong && t.ent == privateKey
	return out
}

// prevAt is the byte before hold as what follows is read with it.
func prevAt(text string, hold int, changes []change) byte {
	if k := len(changes); k > 0 && changes[k-1].end == hold && changes[k-1].act != "" && changes[k-1].act != Flag {
		return afterHidden
	}
	return text[hold-1]
}

// ToolInput takes the next fragment of a JSON document and returns what may be passed on now. Only string values are
// touched, and what is put into them is escaped; a fragment may end anywhere, inside an escape too.
func (st *Stream) ToolInput(id int, delta string) string {
	if delta == "" || !st.Active() {
		return delta
	}
	if st.r.halt.count > 0 {
		return ""
	}
	c := st.channel(id)
	if c.json == nil {
		c.json = &document{}
	}
	return st.document(c, delta)
}

// Flush ends a channel where the provider ended it and returns what was still held.
func (st *Stream) Flush(id int) string {
	for i, c := range st.channels {
		if c.id == id {
			st.channels = append(st.channels[:i], st.channels[i+1:]...)
			return st.end(c)
		}
	}
	return ""
}

func (st *Stream) end(c *channel) string {
	if st.r.halt.count > 0 {
		return ""
	}
	if c.json != nil {
		return st.endValue(c)
	}
	if c.sieve != nil {
		c.held = append(c.held, c.sieve.pass(st.hider.Flush(c.id), false)...)
	}
	return st.settle(c, false)
}

// FlushAll ends all channels of a stream that was cut, and returns what may still be shown of each, keyed by channel;
// channels with nothing left are absent. A secret that had begun and was not decided is hidden, never shown.
func (st *Stream) FlushAll() map[int]string {
	var out map[int]string
	if st.r.halt.count > 0 {
		return nil
	}
	for _, c := range st.channels {
		if rest := st.cut(c); rest != "" {
			if out == nil {
				out = map[int]string{}
			}
			out[c.id] = rest
		}
	}
	st.channels = nil
	return out
}

func (st *Stream) cut(c *channel) string {
	if c.sieve != nil {
		rest := st.hider.cut(st.hider.channel(c.id))
		c.held = append(c.held, c.sieve.pass(rest, false)...)
		return st.settle(c, false)
	}
	if len(c.held) > 0 && c.keep == 0 {
		// What is held begins with the undecided candidate.
		var t tail
		if c.changes, t = st.r.read(string(c.held), c.prev, true, c.changes[:0]); t.strong && t.hold == 0 {
			st.r.s.count(t.ent, Mask, posAssistant)
			return catalogue[t.ent].label
		}
	}
	return st.end(c)
}

// document is the state of a JSON document that comes in fragments. It follows structure only as far as to tell keys
// from values; checking the document is its reader's business.
type document struct {
	nest    []bool // open containers; true: an object
	key     bool   // the next string is a key
	inKey   bool
	inValue bool
	escaped bool   // in a key: the next byte is escaped
	raw     []byte // what the held text looks like in the document, and after it the start of an escape that is cut off
	offset  []int  // of each held byte, where its raw form starts; offset[len(held)] is where the cut-off escape starts
}

// document reads one fragment.
func (st *Stream) document(c *channel, delta string) string {
	d := c.json
	var b strings.Builder
	from := 0 // delta[from:i] passes unchanged
	for i := 0; i < len(delta); {
		switch {
		case d.inValue:
			n, end := valueEnd(d.raw, delta[i:])
			if !st.plain(c, delta[i:i+n], !end) {
				b.WriteString(delta[from:i])
				b.WriteString(st.value(c, delta[i:i+n], !end))
				from = i + n
			}
			i += n
			if end {
				d.inValue = false
				i++
			}
		case d.inKey:
			switch ch := delta[i]; {
			case d.escaped:
				d.escaped = false
			case ch == '\\':
				d.escaped = true
			case ch == '"':
				d.inKey = false
			}
			i++
		default:
			d.structure(delta[i])
			if d.inValue {
				c.prev = 0
			}
			i++
		}
	}
	if from == 0 && b.Len() == 0 && len(d.raw) == 0 {
		return delta
	}
	b.WriteString(delta[from:])
	return b.String()
}

// structure takes one byte outside strings.
func (d *document) structure(ch byte) {
	switch ch {
	case '"':
		d.inKey, d.inValue = d.key, !d.key
	case '{', '[':
		d.nest = append(d.nest, ch == '{')
		d.key = ch == '{'
	case '}', ']':
		if k := len(d.nest); k > 0 {
			d.nest = d.nest[:k-1]
		}
		d.key = false
	case ',':
		k := len(d.nest)
		d.key = k > 0 && d.nest[k-1]
	case ':':
		d.key = false
	}
}

// valueEnd returns the length of the part of s that belongs to the string value, and whether its closing quote follows.
// pending ends with an escape that was cut off, if one was.
func valueEnd(pending []byte, s string) (int, bool) {
	escaped := false
	for k := len(pending) - 1; k >= 0 && pending[k] == '\\'; k-- {
		escaped = !escaped
	}
	// An escape is cut off right after its backslash only when the backslash is the last byte; \u12 holds no quote.
	for i := range len(s) {
		switch {
		case escaped:
			escaped = false
		case s[i] == '\\':
			escaped = true
		case s[i] == '"':
			return i, true
		}
	}
	return len(s), false
}

// plain passes a piece of a value that needs no work: nothing held, no escape, no candidate.
func (st *Stream) plain(c *channel, piece string, more bool) bool {
	if len(c.json.raw) > 0 || len(c.held) > 0 || c.keep != 0 || strings.IndexByte(piece, '\\') >= 0 {
		return false
	}
	if piece == "" {
		return true
	}
	if st.hider != nil {
		return false
	}
	var t tail
	had := *st.r.halt
	c.changes, t = st.r.read(piece, c.prev, more, c.changes[:0])
	if len(c.changes) > 0 || t.hold < len(piece) || t.keep != 0 {
		*st.r.halt = had // the piece is read again with its raw form at hand
		return false
	}
	c.prev = piece[len(piece)-1]
	return true
}

// value takes a piece of a string value, in its raw form, and returns what is decided of it, in raw form too.
func (st *Stream) value(c *channel, piece string, more bool) string {
	d := c.json
	added := len(c.held)
	d.raw = append(d.raw, piece...)
	d.decode(c, more)
	if c.waits(len(c.held)-added) && more {
		return ""
	}
	return st.settleValue(c, more)
}

// decode moves what it can of d.raw behind the held text.
func (d *document) decode(c *channel, more bool) {
	if len(d.offset) == 0 {
		d.offset = append(d.offset, 0)
	}
	for k := d.offset[len(c.held)]; k < len(d.raw); {
		if d.raw[k] != '\\' {
			c.held = append(c.held, d.raw[k])
			k++
			d.offset = append(d.offset, k)
			continue
		}
		r, n := escape(d.raw[k:], more)
		if n < 0 {
			return
		}
		if n == 0 { // malformed: the backslash stands for itself
			r, n = '\\', 1
		}
		had := len(c.held)
		c.held = utf8.AppendRune(c.held, r)
		// All bytes of one escape start where it starts; only the last one ends where it ends.
		for range len(c.held) - had - 1 {
			d.offset = append(d.offset, k)
		}
		k += n
		d.offset = append(d.offset, k)
	}
}

// settleValue decides what it can of the held part of a value.
func (st *Stream) settleValue(c *channel, more bool) string {
	d := c.json
	text := string(c.held)
	if st.hider != nil {
		return st.wholeValue(c, text, more)
	}
	start := 0
	if c.keep != 0 {
		end, growing := extent(text, 0, c.keep, more)
		start = end
		if growing {
			d.drop(c, end)
			return ""
		}
		c.keep = 0
	}
	var t tail
	c.changes, t = st.r.read(text[start:], c.prev, more, c.changes[:0])
	st.r.count(c.changes)
	out := make([]byte, 0, len(d.raw)+32)
	from := start
	for _, ch := range c.changes {
		out = append(out, d.raw[d.offset[from]:d.offset[start+ch.start]]...)
		out = appendEscaped(out, ch.text)
		from = start + ch.end
	}
	hold := start + t.hold
	out = append(out, d.raw[d.offset[from]:d.offset[hold]]...)
	if t.hold > 0 {
		c.prev = prevAt(text[start:], t.hold, c.changes)
	}
	c.keep = t.keep
	c.pem = t.strong && t.ent == privateKey
	d.drop(c, hold)
	if !more {
		out = append(out, d.raw...)
		d.raw, d.offset, c.held = d.raw[:0], d.offset[:0], c.held[:0]
		c.prev, c.keep, c.pem = 0, 0, false
	}
	return string(out)
}

// maxValue bounds the bytes of a string value that are held back as a whole.
const maxValue = 64 << 10

// wholeValue holds a value back until all of it is there: nobody can use a tool's input before it is complete.
func (st *Stream) wholeValue(c *channel, text string, more bool) string {
	d := c.json
	cut := len(text)
	if more {
		if len(text) < maxValue {
			return ""
		}
		if k := strings.LastIndexAny(text[:maxValue], " \n\t"); k > 0 {
			cut = k + 1
		} else {
			cut = maxValue
		}
	}
	out := d.raw[:d.offset[cut]:d.offset[cut]]
	if whole := st.all.whole(text[:cut]); whole != text[:cut] {
		out = appendEscaped(nil, whole)
	}
	passed := string(out)
	d.drop(c, cut)
	if !more {
		passed += string(d.raw)
		d.raw, d.offset, c.held = d.raw[:0], d.offset[:0], c.held[:0]
	}
	return passed
}

// drop forgets the first n held bytes.
func (d *document) drop(c *channel, n int) {
	cut := d.offset[n]
	d.raw = append(d.raw[:0], d.raw[cut:]...)
	d.offset = append(d.offset[:0], d.offset[n:]...)
	for k := range d.offset {
		d.offset[k] -= cut
	}
	c.held = append(c.held[:0], c.held[n:]...)
}

// endValue ends a document that may stop inside a value.
func (st *Stream) endValue(c *channel) string {
	d := c.json
	if !d.inValue {
		return ""
	}
	d.decode(c, false)
	if len(d.offset) == 0 {
		return ""
	}
	return st.settleValue(c, false)
}

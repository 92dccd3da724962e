package redaction

import "slices"

// hit is a detection and what is done about it.
type hit struct {
	start, end int
	ent        entity
	act        Action
}

// detector finds what a profile looks for. It is reused from text to text.
type detector struct {
	scanner scanner
	hits    []hit
	pass    *maskPass // whose body the text stands in, nil when it stands on its own
	offset  int       // of the text in that body
	foreign *foreign
	gather  func(text string) // not nil: texts of requests are told to it instead

	shown  []byte    // what again looks at
	stands []standIn // of what stands for a value in shown
}

// standIn says that shown[from:to] stands for text[start:end].
type standIn struct{ from, to, start, end int }

// request returns what is done about a text of a request, sorted and without overlaps. What is allowed is left out.
func (d *detector) request(p *Profile, text, key string, at position) []hit {
	return d.find(p, inRequest, text, key, at)
}

// stored is request for what is kept of a turn.
func (d *detector) stored(p *Profile, text string) []hit {
	return d.find(p, inTranscript, text, "", posUser)
}

// answer is request for what a model wrote, without what is told by where it starts: that is hidden already.
func (d *detector) answer(p *Profile, text string) []hit {
	return d.find(p, inAnswer, text, "", posAssistant)
}

// direction is where a text goes.
type direction uint8

const (
	inRequest direction = iota
	inAnswer
	inTranscript
)

// does is what happens to one detection.
func (d *detector) does(p *Profile, dir direction, x span, text string, at position) Action {
	spared := p.allow != nil && p.allow.spares(x.ent, text[x.start:x.end], d.pass, d.offset)
	switch dir {
	case inAnswer:
		if spared {
			return Allow
		}
		return p.answers(x.ent)
	case inTranscript:
		return p.keeps(x.ent, spared)
	}
	return p.does(x.ent, at, spared)
}

func (d *detector) find(p *Profile, dir direction, text, key string, at position) []hit {
	if d.gather != nil {
		if p.modes[at] != pass {
			d.gather(text)
		}
		return nil
	}
	on := p.requestOn
	if dir == inAnswer {
		on = p.sieved
	}
	d.spot(p, text, key, on)
	if d.foreign != nil && dir != inAnswer {
		d.scanner.spans = d.foreign.find(text, d.scanner.spans)
	}
	if len(d.scanner.spans) == 0 {
		return nil
	}
	d.hits = d.hits[:0]
	for _, x := range d.scanner.spans {
		if p.least != nil && p.row(x.ent).score < p.least[x.ent] || p.hidden(text, x) {
			continue
		}
		if act := d.does(p, dir, x, text, at); act != Allow && act != "" {
			d.hits = append(d.hits, hit{x.start, x.end, x.ent, act})
		}
	}
	d.hits = settle(p, d.hits)
	if dir != inAnswer { // an answer is hidden as it comes
		for n := 0; n < maxAgain && d.again(p, dir, text, key, at, on); n++ {
		}
	}
	return d.hits
}

// spot leaves what the profile looks for in the scanner's spans.
func (d *detector) spot(p *Profile, text, key string, on entitySet) {
	d.scanner.key, d.scanner.bare = key, p.bare
	d.scanner.scan(text, on)
	d.scanner.key = ""
	if p.extras != nil {
		d.scanner.spans = p.extras.find(text, key, d.scanner.spans)
	}
}

// maxAgain bounds how often a text is looked at again.
const maxAgain = 4

// again looks at the text as it will be once the hits are replaced, and reports whether it found more. A value may stand so close to
// another that it is one only when that is gone: the digits right behind a key, a number that reads on into the next one. Looking
// until nothing new is found makes hiding twice the same as hiding once.
func (d *detector) again(p *Profile, dir direction, text, key string, at position, on entitySet) (more bool) {
	d.show(p, text)
	if len(d.stands) == 0 {
		return false
	}
	d.spot(p, view(d.shown), key, on)
	known := len(d.hits)
	for _, x := range d.scanner.spans {
		if p.least != nil && p.row(x.ent).score < p.least[x.ent] || p.hidden(view(d.shown), x) {
			continue
		}
		x.start, x.end = d.origin(x.start, false), d.origin(x.end, true)
		if x.start >= x.end || slices.ContainsFunc(d.hits[:known], func(h hit) bool { return h.start <= x.start && x.end <= h.end }) {
			continue
		}
		if act := d.does(p, dir, x, text, at); act != Allow && act != "" {
			d.hits, more = append(d.hits, hit{x.start, x.end, x.ent, act}), true
		}
	}
	if more {
		d.hits = settle(p, d.hits)
	}
	return more
}

// show writes what the text will look like. The letters of a token are any: detectors look at the form only.
func (d *detector) show(p *Profile, text string) {
	const body = "BCDFGHJKLM"
	d.shown, d.stands = d.shown[:0], d.stands[:0]
	from := 0
	for _, h := range d.hits {
		if h.act == Flag {
			continue
		}
		d.shown = append(d.shown, text[from:h.start]...)
		k := len(d.shown)
		switch h.act {
		case Tokenize:
			d.shown = append(append(append(d.shown, p.row(h.ent).short...), '_'), body...)
		case Hash:
			d.shown = append(append(append(d.shown, p.row(h.ent).short...), "_H_"...), body...)
		default:
			d.shown = append(d.shown, p.label(h.ent, text[h.start:h.end])...)
		}
		d.stands = append(d.stands, standIn{k, len(d.shown), h.start, h.end})
		from = h.end
	}
	d.shown = append(d.shown, text[from:]...)
}

// origin is the offset in the text of an offset in shown; one within what stands for a value becomes the value's start or end.
func (d *detector) origin(i int, end bool) int {
	shift := 0
	for _, x := range d.stands {
		switch {
		case i <= x.from:
			return i + shift
		case i < x.to && end:
			return x.end
		case i < x.to:
			return x.start
		}
		shift = x.end - x.to
	}
	return i + shift
}

// settle sorts the hits and merges those that overlap. The union stays covered; the stronger action names it, then the longer
// hit, then the higher score. What is only flagged never widens what is replaced.
func settle(p *Profile, hits []hit) []hit {
	slices.SortFunc(hits, func(a, b hit) int {
		if a.start != b.start {
			return a.start - b.start
		}
		if a.end != b.end {
			return b.end - a.end
		}
		return int(a.ent) - int(b.ent)
	})
	out := hits[:0]
	for _, x := range hits {
		k := len(out) - 1
		if k < 0 || x.start >= out[k].end {
			out = append(out, x)
			continue
		}
		y := &out[k]
		if (x.act == Flag) != (y.act == Flag) {
			if y.act == Flag {
				*y = x
			}
			continue
		}
		dx, dy := severity(x.act), severity(y.act)
		lx, ly := x.end-x.start, y.end-y.start
		if dx > dy || dx == dy && (lx > ly || lx == ly && p.row(x.ent).score > p.row(y.ent).score) {
			y.ent, y.act = x.ent, x.act
		}
		y.end = max(y.end, x.end)
	}
	return out
}

// forget clears what was found and read, for a buffer that goes back into a pool.
func (d *detector) forget() {
	clear(d.shown)
	*d = detector{scanner: scanner{spans: d.scanner.spans[:0]}, hits: d.hits[:0], shown: d.shown[:0], stands: d.stands[:0]}
}

// label is what a mask shows of a value.
func (p *Profile) label(e entity, value string) string {
	if e < entityCount && p.lastFour.has(e) {
		var last [4]byte
		k := len(last)
		for i := len(value) - 1; i >= 0 && k > 0; i-- {
			if isDigit(value[i]) {
				k--
				last[k] = value[i]
			}
		}
		if k == 0 {
			return "**** **** **** " + string(last[:])
		}
	}
	return p.row(e).label
}

// Names lists what can be found, as policies and findings name it, in catalogue order.
func Names() []string {
	out := make([]string, 0, entityCount)
	for e := range catalogue {
		out = append(out, catalogue[e].name)
	}
	return out
}

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
}

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
	d.scanner.key, d.scanner.bare = key, p.bare
	d.scanner.scan(text, on)
	d.scanner.key = ""
	if p.extras != nil {
		d.scanner.spans = p.extras.find(text, key, d.scanner.spans)
	}
	if d.foreign != nil && dir != inAnswer {
		d.scanner.spans = d.foreign.find(text, d.scanner.spans)
	}
	if len(d.scanner.spans) == 0 {
		return nil
	}
	d.hits = d.hits[:0]
	for _, x := range d.scanner.spans {
		if p.least != nil && p.row(x.ent).score < p.least[x.ent] {
			continue
		}
		if act := d.does(p, dir, x, text, at); act != Allow && act != "" {
			d.hits = append(d.hits, hit{x.start, x.end, x.ent, act})
		}
	}
	d.hits = settle(p, d.hits)
	return d.hits
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
	*d = detector{scanner: scanner{spans: d.scanner.spans[:0]}, hits: d.hits[:0]}
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

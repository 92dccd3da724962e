package anthropic

import (
	"strings"

	"github.com/lossless-group/gateway/chat"
)

// maxTokenCount is the largest count of tokens that can be true of one call.
const maxTokenCount = 1_000_000_000

// usage gathers the counts of a stream field by field; -1 is not told.
type usage struct {
	input, read, write, write5m, write1h, output, reasoning, searches int64

	tier, speed, geo string // how the call was served, in the provider's words

	told bool // any count was told
	odd  bool // a count was negative, absurd or no whole number, and was ignored
}

func newUsage() usage {
	return usage{input: -1, read: -1, write: -1, write5m: -1, write1h: -1, output: -1, reasoning: -1, searches: -1}
}

// scan takes over every count of the usage object at s. What is null or missing keeps its value.
func (u *usage) scan(s *scanner) {
	if s.space() != '{' {
		s.value()
		return
	}
	s.object(func(k Range, plain bool) {
		switch string(s.key(k, plain)) {
		case "input_tokens":
			u.field(s, &u.input)
		case "cache_read_input_tokens":
			u.field(s, &u.read)
		case "cache_creation_input_tokens":
			u.field(s, &u.write)
		case "output_tokens":
			u.field(s, &u.output)
		case "service_tier":
			u.term(s, &u.tier)
		case "speed":
			u.term(s, &u.speed)
		case "inference_geo":
			u.term(s, &u.geo)
		case "cache_creation":
			u.inner(s, "ephemeral_5m_input_tokens", &u.write5m, "ephemeral_1h_input_tokens", &u.write1h)
		case "output_tokens_details":
			u.inner(s, "thinking_tokens", &u.reasoning, "", nil)
		case "server_tool_use":
			u.inner(s, "web_search_requests", &u.searches, "", nil)
		default:
			s.value()
		}
	})
}

// term takes over a word for how the call was served; the ordinary ones are not kept.
func (u *usage) term(s *scanner, to *string) {
	at := s.value()
	if s.err != nil {
		return
	}
	switch lit := at.In(s.b); string(lit) {
	case "null", `"standard"`, `"default"`, `"not_available"`, `"global"`:
		*to = ""
	default:
		*to = strings.Trim(string(lit), `"`)
	}
}

func (u *usage) inner(s *scanner, nameA string, a *int64, nameB string, b *int64) {
	if s.space() != '{' {
		s.value()
		return
	}
	s.object(func(k Range, plain bool) {
		switch name := s.key(k, plain); {
		case string(name) == nameA:
			u.field(s, a)
		case b != nil && string(name) == nameB:
			u.field(s, b)
		default:
			s.value()
		}
	})
}

func (u *usage) field(s *scanner, to *int64) {
	c := s.space()
	if c == 'n' {
		s.value()
		return
	}
	if c < '0' || c > '9' {
		s.value()
		u.odd = true
		return
	}
	at := s.i
	whole := s.number()
	if s.err != nil {
		return
	}
	if !whole || s.i-at > 10 {
		u.odd = true
		return
	}
	var n int64
	for _, d := range s.b[at:s.i] {
		n = n*10 + int64(d-'0')
	}
	if n > maxTokenCount {
		u.odd = true
		return
	}
	*to, u.told = n, true
}

// normal is the usage in disjoint buckets. Cache writes whose lifetime was not told count as five minutes, the default.
func (u *usage) normal() chat.Usage {
	n := chat.Usage{
		Input:        max(0, u.input),
		CacheRead:    max(0, u.read),
		CacheWrite5m: max(0, u.write5m),
		CacheWrite1h: max(0, u.write1h),
		Output:       max(0, u.output),
		Reasoning:    max(0, u.reasoning),
		Searches:     max(0, u.searches),
	}
	if rest := u.write - n.CacheWrite5m - n.CacheWrite1h; rest > 0 {
		n.CacheWrite5m += rest
	}
	n.Reasoning = min(n.Reasoning, n.Output)
	n.Terms = chat.Terms{ServiceTier: chat.Term(u.tier), Speed: chat.Term(u.speed), Geo: chat.Term(u.geo)}
	return n
}

package gemini

import (
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/jsonscan"
)

// maxTokenCount is the largest count of tokens that can be true of one call.
const maxTokenCount = 1_000_000_000

// usage gathers the counts of a stream field by field.
type usage struct {
	prompt, cached, candidates, thoughts, toolUse, searches int64

	told bool // any count was told
	odd  bool // a count was negative, absurd or no whole number, and was ignored
}

// scan takes over every count of the usageMetadata at s. What is null or missing keeps its value.
func (u *usage) scan(s *jsonscan.Scanner) {
	if s.Space() != '{' {
		s.Value()
		return
	}
	s.Object(func(k jsonscan.Range, plain bool) {
		switch string(s.Key(k, plain)) {
		case "promptTokenCount":
			u.field(s, &u.prompt)
		case "cachedContentTokenCount":
			u.field(s, &u.cached)
		case "candidatesTokenCount":
			u.field(s, &u.candidates)
		case "thoughtsTokenCount":
			u.field(s, &u.thoughts)
		case "toolUsePromptTokenCount":
			u.field(s, &u.toolUse)
		default:
			s.Value()
		}
	})
}

func (u *usage) field(s *jsonscan.Scanner, to *int64) {
	if s.Space() == 'n' {
		s.Value()
		return
	}
	n, ok := s.Int(maxTokenCount)
	if !ok {
		u.odd = true
		return
	}
	*to, u.told = n, true
}

// normal is the usage in disjoint buckets: the prompt's count includes what came from the cache, tokens of tool results at the
// provider are input, and thoughts are output.
func (u *usage) normal() chat.Usage {
	read := min(u.cached, u.prompt)
	return chat.Usage{
		Input: u.prompt - read + u.toolUse, CacheRead: read, Output: u.candidates + u.thoughts, Reasoning: u.thoughts, Searches: u.searches,
	}
}

// appendUsage writes the usageMetadata of u.
func appendUsage(dst []byte, u chat.Usage) []byte {
	n := func(name string, v int64) {
		dst = append(dst, name...)
		dst = strconv.AppendInt(dst, v, 10)
	}
	n(`"usageMetadata":{"promptTokenCount":`, u.InputTotal())
	n(`,"candidatesTokenCount":`, u.Output-u.Reasoning)
	n(`,"totalTokenCount":`, u.InputTotal()+u.Output)
	if u.CacheRead > 0 {
		n(`,"cachedContentTokenCount":`, u.CacheRead)
	}
	if u.Reasoning > 0 {
		n(`,"thoughtsTokenCount":`, u.Reasoning)
	}
	return append(dst, '}')
}

package openai

import (
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/jsonscan"
)

// maxTokenCount is the largest count of tokens that can be true of one call.
const maxTokenCount = 1_000_000_000

// usage gathers the counts of an answer field by field; -1 is not told. One reader serves every API and dialect, so that
// a count is never read in one place and lost in another.
type usage struct {
	prompt, cached, written, writtenLong, completion, reasoning, total, audioIn, audioOut, searches int64

	told bool // any count was told
	odd  bool // a count was negative, absurd or no whole number, and was ignored
}

func newUsage() usage { return usage{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, false, false} }

// scan takes over every count of the usage object at s. What is null or missing keeps its value.
func (u *usage) scan(s *jsonscan.Scanner) {
	s.Members(func(name []byte) {
		switch string(name) {
		case "prompt_tokens", "input_tokens":
			u.field(s, &u.prompt)
		case "completion_tokens", "output_tokens":
			u.field(s, &u.completion)
		case "total_tokens":
			u.field(s, &u.total)
		case "prompt_cache_hit_tokens":
			u.field(s, &u.cached)
		case "num_search_queries":
			u.field(s, &u.searches)
		case "prompt_tokens_details", "input_tokens_details":
			s.Members(func(name []byte) {
				switch string(name) {
				case "cached_tokens":
					u.field(s, &u.cached)
				case "cache_write_tokens":
					u.field(s, &u.written)
				case "cache_write_tokens_details":
					s.Members(func(name []byte) {
						if string(name) == "ttl_12h_tokens" {
							u.field(s, &u.writtenLong)
							return
						}
						s.Value()
					})
				case "audio_tokens":
					u.field(s, &u.audioIn)
				default:
					s.Value()
				}
			})
		case "completion_tokens_details", "output_tokens_details":
			s.Members(func(name []byte) {
				switch string(name) {
				case "reasoning_tokens":
					u.field(s, &u.reasoning)
				case "audio_tokens":
					u.field(s, &u.audioOut)
				default:
					s.Value()
				}
			})
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

// normal is the usage in disjoint buckets. Cache writes whose lifetime was not told count as the shorter one. A
// completion that leaves its reasoning out, as the total shows, is completed.
func (u *usage) normal() chat.Usage {
	prompt := max(0, u.prompt)
	n := chat.Usage{
		CacheRead: min(max(0, u.cached), prompt),
		Output:    max(0, u.completion), Reasoning: max(0, u.reasoning), Searches: max(0, u.searches),
	}
	write := min(max(0, u.written), prompt-n.CacheRead)
	n.CacheWrite1h = min(max(0, u.writtenLong), write)
	n.CacheWrite5m = write - n.CacheWrite1h
	n.Input = prompt - n.CacheRead - write
	if n.Reasoning > 0 && u.total == prompt+n.Output+n.Reasoning {
		n.Output += n.Reasoning
	}
	n.Reasoning = min(n.Reasoning, n.Output)
	n.InputAudio, n.OutputAudio = min(max(0, u.audioIn), prompt), min(max(0, u.audioOut), n.Output)
	return n
}

// appendUsage appends the usage object; the names differ between the two APIs and nothing else does.
func appendUsage(dst []byte, u chat.Usage, responses bool) []byte {
	in, out := "prompt_tokens", "completion_tokens"
	if responses {
		in, out = "input_tokens", "output_tokens"
	}
	count := func(name string, n int64) {
		dst = append(append(append(dst, '"'), name...), `":`...)
		dst = strconv.AppendInt(dst, n, 10)
	}
	dst = append(dst, '{')
	count(in, u.InputTotal())
	dst = append(dst, ',')
	count(out, u.Output)
	dst = append(dst, ',')
	count("total_tokens", u.InputTotal()+u.Output)
	dst = append(append(append(dst, `,"`...), in...), `_details":{`...)
	count("cached_tokens", u.CacheRead)
	dst = append(dst, ',')
	count("cache_write_tokens", u.CacheWrite())
	if u.CacheWrite1h > 0 {
		dst = append(dst, `,"cache_write_tokens_details":{`...)
		count("ttl_12h_tokens", u.CacheWrite1h)
		dst = append(dst, ',')
		count("ttl_30m_tokens", u.CacheWrite5m)
		dst = append(dst, '}')
	}
	if u.InputAudio > 0 {
		dst = append(dst, ',')
		count("audio_tokens", u.InputAudio)
	}
	dst = append(append(append(dst, `},"`...), out...), `_details":{`...)
	count("reasoning_tokens", u.Reasoning)
	if u.OutputAudio > 0 {
		dst = append(dst, ',')
		count("audio_tokens", u.OutputAudio)
	}
	return append(dst, "}}"...)
}

package openai

import (
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/jsonscan"
)

// maxTokenCount is the largest count of tokens that can be true of one call.
const maxTokenCount = 1_000_000_000

// usage gathers the counts of an answer field by field; -1 is not told. One reader serves every API and dialect, so that
// a count is never read in one place and lost in another.
type usage struct {
	prompt, cached, written, writtenLong, completion, reasoning, total, audioIn, audioOut, searches int64

	imageIn, imageOut, cachedAudio, cachedImage, citation, beside int64 // 0 is not told; beside is reasoning that the completion leaves out

	tier, cost string // as the provider said; cost is a decimal in USD

	told bool // any count was told
	odd  bool // a count was negative, absurd or no whole number, and was ignored
}

func newUsage() usage {
	return usage{prompt: -1, cached: -1, written: -1, writtenLong: -1, completion: -1, reasoning: -1, total: -1, audioIn: -1, audioOut: -1, searches: -1}
}

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
		case "prompt_cache_hit_tokens", "cached_tokens":
			u.field(s, &u.cached)
		case "citation_tokens":
			u.field(s, &u.citation)
		case "reasoning_tokens":
			u.field(s, &u.beside)
		case "cost":
			u.money(s, 0)
		case "cost_in_usd_ticks":
			u.money(s, tickDigits)
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
				case "image_tokens":
					u.field(s, &u.imageIn)
				case "cached_tokens_details":
					s.Members(func(name []byte) {
						switch string(name) {
						case "audio_tokens":
							u.field(s, &u.cachedAudio)
						case "image_tokens":
							u.field(s, &u.cachedImage)
						default:
							s.Value()
						}
					})
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
				case "image_tokens":
					u.field(s, &u.imageOut)
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

// served takes over the service tier, which stands beside the usage and often in every chunk; the ordinary ones are not kept.
func (u *usage) served(s *jsonscan.Scanner) {
	at := s.Value()
	if s.Err != nil {
		return
	}
	switch lit := at.In(s.B); string(lit) {
	case "null", `"default"`, `"auto"`, `"standard"`, `"on_demand"`:
		u.tier = ""
	default:
		u.tier = strings.Trim(string(lit), `"`)
	}
}

// tickDigits is how many decimals of a dollar a tick is: 10^10 of them make one.
const tickDigits = 10

// money takes over an amount the provider says the call cost: a plain decimal with at most 12 decimals, or a whole number of 10^-shift USD.
// Anything else, such as an exponent, is not kept; the table of prices remains.
func (u *usage) money(s *jsonscan.Scanner, shift int) {
	at := s.Value()
	if s.Err != nil {
		return
	}
	text := string(at.In(s.B))
	whole, decimals, fraction := strings.Cut(text, ".")
	if len(whole) > 18 || len(decimals) > 18 || strings.Trim(whole+decimals, "0123456789") != "" || whole == "" || fraction && decimals == "" {
		return
	}
	if shift > 0 {
		if fraction {
			return
		}
		whole = strings.Repeat("0", max(0, shift+1-len(whole))) + whole
		whole, decimals = whole[:len(whole)-shift], whole[len(whole)-shift:]
	}
	decimals = strings.TrimRight(decimals, "0")
	if len(decimals) > 12 {
		decimals = decimals[:12]
	}
	if u.cost = whole; decimals != "" {
		u.cost += "." + decimals
	}
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
	if u.citation > 0 { // who tells citations tells them, and the reasoning, beside the completion
		n.Citation = u.citation
		n.Output += u.citation + u.beside
		n.Reasoning += u.beside
	}
	n.Reasoning = min(n.Reasoning, n.Output)
	n.InputAudio, n.OutputAudio = min(max(0, u.audioIn), prompt), min(max(0, u.audioOut), n.Output)
	n.InputImage, n.OutputImage = min(u.imageIn, prompt-n.InputAudio), min(u.imageOut, n.Output-n.OutputAudio)
	n.CacheReadAudio = min(u.cachedAudio, n.CacheRead, n.InputAudio)
	n.CacheReadImage = min(u.cachedImage, n.CacheRead-n.CacheReadAudio, n.InputImage)
	n.Terms = chat.Terms{ServiceTier: chat.Term(u.tier), Cost: u.cost}
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

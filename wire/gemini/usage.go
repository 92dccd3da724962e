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

	audioIn, imageIn, audioOut, imageOut, audioCached, imageCached int64

	traffic string // how the call was served, in the provider's words

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
		case "promptTokensDetails":
			u.modalities(s, &u.audioIn, &u.imageIn)
		case "cacheTokensDetails":
			u.modalities(s, &u.audioCached, &u.imageCached)
		case "candidatesTokensDetails":
			u.modalities(s, &u.audioOut, &u.imageOut)
		case "trafficType":
			u.traffic = s.String()
		default:
			s.Value()
		}
	})
}

// modalities reads a list of counts by modality, of which those are kept that have prices of their own.
func (u *usage) modalities(s *jsonscan.Scanner, audio, image *int64) {
	s.Elements(func(int) {
		to := (*int64)(nil)
		at := s.I
		s.Members(func(name []byte) { // the tag first: nothing says which of the two comes first
			if string(name) != "modality" {
				s.Value()
				return
			}
			switch string(s.Value().In(s.B)) {
			case `"AUDIO"`:
				to = audio
			case `"IMAGE"`:
				to = image
			}
		})
		if to == nil || s.Err != nil {
			return
		}
		again := jsonscan.Scanner{B: s.B[:s.I], I: at}
		again.Members(func(name []byte) {
			if string(name) != "tokenCount" {
				again.Value()
				return
			}
			u.field(&again, to)
		})
	})
}

// tier is the service tier that the kind of traffic means.
func (u *usage) tier() string {
	switch u.traffic {
	case "PROVISIONED_THROUGHPUT":
		return "provisioned"
	case "ON_DEMAND_PRIORITY":
		return "priority"
	case "ON_DEMAND_FLEX":
		return "flex"
	}
	return ""
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
	n := chat.Usage{
		Input: u.prompt - read + u.toolUse, CacheRead: read, Output: u.candidates + u.thoughts, Reasoning: u.thoughts, Searches: u.searches,
		Terms: chat.Terms{ServiceTier: u.tier()},
	}
	n.InputAudio, n.OutputAudio = min(u.audioIn, n.InputTotal()), min(u.audioOut, n.Output)
	n.InputImage, n.OutputImage = min(u.imageIn, n.InputTotal()-n.InputAudio), min(u.imageOut, n.Output-n.OutputAudio)
	n.CacheReadAudio = min(u.audioCached, read, n.InputAudio)
	n.CacheReadImage = min(u.imageCached, read-n.CacheReadAudio, n.InputImage)
	return n
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

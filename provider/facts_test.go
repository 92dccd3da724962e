package provider

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFacts(t *testing.T) {
	f := NewFacts()
	for _, c := range []struct {
		name, kind, model string
		want              Info
	}{
		{"exact", "anthropic", "claude-3-haiku", Info{ContextWindow: 200_000, MaxOutput: 4096, CacheMinimum: 2048, Input: []string{"text", "image", "pdf"}, Output: []string{"text"}}},
		{"a release of it, in capitals", "anthropic", "Claude-3-Haiku-20240307", Info{ContextWindow: 200_000, MaxOutput: 4096, CacheMinimum: 2048, Input: []string{"text", "image", "pdf"}, Output: []string{"text"}}},
		{"the most special family", "anthropic", "claude-opus-4-7", Info{ContextWindow: 1_000_000, MaxOutput: 128_000, CacheMinimum: 4096, NoSampling: true, Input: []string{"text", "image", "pdf"}, Output: []string{"text"}}},
		{"with a publisher and a region in front", "nowhere", "eu.anthropic.claude-opus-4-7-v1:0", Info{CacheMinimum: 4096, NoSampling: true, Input: []string{"text", "image", "pdf"}, Output: []string{"text"}}},
		{"a family's name within another word", "nowhere", "not-claude-opus-4-7", Info{}},
		{"vectors", "openai", "text-embedding-3-small", Info{ContextWindow: 8192, Input: []string{"text"}, Output: []string{"embedding"}, NoSampling: true}},
		{"unknown", "openai", "nobody-knows-this", Info{}},
		{"empty", "openai", "", Info{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff(c.want, f.Find(c.kind, c.model)); d != "" {
				t.Error(d)
			}
		})
	}
	if len(f.exact) < 200 || len(f.prefix) < 5 {
		t.Errorf("%d names and %d kinds were read", len(f.exact), len(f.prefix))
	}
	if got := (&Facts{}).Find("anthropic", "claude-3-haiku"); got.ContextWindow != 0 {
		t.Errorf("no table knows %+v", got)
	}
}

func TestInfoOver(t *testing.T) {
	base := Info{Title: "b", ContextWindow: 1, MaxOutput: 2, CacheMinimum: 3, Input: []string{"text"}, Output: []string{"text"}, NoSampling: true}
	if d := cmp.Diff(base, Info{}.Over(base)); d != "" {
		t.Error(d)
	}
	mine := Info{Title: "m", ContextWindow: 9, MaxOutput: 8, CacheMinimum: 7, Input: []string{"image"}, Output: []string{"audio"}, NoSampling: true}
	if d := cmp.Diff(mine, mine.Over(base)); d != "" {
		t.Error(d)
	}
}

package cache

import "strings"

// minimums are the smallest prefixes, in tokens, that each model family caches. Where sources disagree the larger figure
// stands: a mark below the minimum is ignored without an error, and would only look as if it worked.
var minimums = []struct {
	prefix string
	tokens int
}{
	{"claude-3-5-haiku", 2048},
	{"claude-3-7-sonnet", 1024},
	{"claude-3-haiku", 2048},
	{"claude-fable-5", 2048},
	{"claude-haiku-3", 2048},
	{"claude-haiku-4-5", 4096},
	{"claude-mythos-5", 512},
	{"claude-opus-4", 1024}, // 4 and 4.1
	{"claude-opus-4-5", 4096},
	{"claude-opus-4-6", 4096},
	{"claude-opus-4-7", 4096},
	{"claude-opus-4-8", 4096},
	{"claude-opus-5", 512},
	{"claude-sonnet-4", 1024}, // 4 and 4.5
	{"claude-sonnet-4-6", 2048},
	{"claude-sonnet-5", 1024},
	{"demo-", 256},
}

// unknownMinimum is used for models the table does not name.
const unknownMinimum = 1024

// MinTokens is the smallest prefix, in tokens, that a model caches. The longest matching row decides; a vendor's prefix
// before the model name, as on hosted platforms, is passed over.
func MinTokens(model string) int {
	if i := strings.Index(model, "claude-"); i > 0 {
		model = model[i:]
	}
	best, tokens := 0, unknownMinimum
	for _, m := range minimums {
		if len(m.prefix) > best && strings.HasPrefix(model, m.prefix) {
			best, tokens = len(m.prefix), m.tokens
		}
	}
	return tokens
}

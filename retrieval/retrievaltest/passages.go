package retrievaltest

import (
	"fmt"
	"math/rand/v2"

	"github.com/lossless-group/gateway/retrieval"
)

// Passages makes n chunks of invented words, the same ones each time.
func Passages(n int) []retrieval.Chunk {
	r := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(r, 1.1, 8, 60000)
	out := make([]retrieval.Chunk, n)
	for i := range out {
		out[i] = retrieval.Chunk{ID: fmt.Sprint(i), Text: passage(r, zipf), Source: "invented"}
	}
	return out
}

// passage makes a text of words that are as unevenly frequent as those of a language.
func passage(r *rand.Rand, zipf *rand.Zipf) string {
	var b []byte
	for range 40 + r.IntN(40) {
		b = fmt.Appendf(b, "%s ", pseudo(zipf.Uint64()))
	}
	return string(b)
}

// pseudo is the word of a rank, of syllables, so that words share pieces as words do.
func pseudo(n uint64) string {
	const syllables = "bacedifogunamelirosutavewiyozu"
	var b []byte
	for n += 15; n > 0; n /= 15 {
		i := n % 15
		b = append(b, syllables[2*i:2*i+2]...)
	}
	return string(b)
}

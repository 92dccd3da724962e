package retrieval

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode"
)

// maxTerm bounds a term in bytes; longer runs of letters are no words.
const maxTerm = 64

// stop are words that say nothing of what a text is about.
var stop = func() map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(`a about after all also am an and any are as at be because been before being but by can could did do does doing down each for
		from had has have having he her here hers him his how i if in into is it its itself just me more most my no nor not of off on once only or other our out over own
		same she should so some such than that the their them then there these they this those through to too under until up very was we were what when where which while
		who whom why will with would you your`) {
		m[w] = true
	}
	return m
}()

// Words splits a text into runs of letters and digits in lower case.
func Words(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) })
}

// Terms returns the words of a text that full text search looks at: without words that say nothing, plurals as singulars. A word that
// comes twice is there twice.
func Terms(text string) []string {
	words := Words(text)
	out := words[:0]
	for _, w := range words {
		if !stop[w] && len(w) <= maxTerm {
			out = append(out, Singular(w))
		}
	}
	return out
}

// Singular takes the plural's ending off an English word: cities to city, rabbits to rabbit. Other words stay as they are.
func Singular(w string) string {
	switch n := len(w); {
	case n > 4 && strings.HasSuffix(w, "ies"):
		return w[:n-3] + "y"
	case n > 4 && (strings.HasSuffix(w, "sses") || strings.HasSuffix(w, "shes") || strings.HasSuffix(w, "ches") || strings.HasSuffix(w, "xes")):
		return w[:n-2]
	case n > 3 && strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") && !strings.HasSuffix(w, "us") && !strings.HasSuffix(w, "is"):
		return w[:n-1]
	}
	return w
}

// Okapi BM25 with the customary constants.
const (
	bm25K = 1.2
	bm25B = 0.75
)

// BM25 scores how well a text of a collection answers a word.
type BM25 struct {
	Chunks int     // in the collection
	AvgLen float64 // mean number of terms of a chunk
}

// IDF is how much a word says that so many chunks have; never below 0.
func (b BM25) IDF(having int) float64 {
	n := float64(max(b.Chunks, having))
	return math.Log1p((n - float64(having) + 0.5) / (float64(having) + 0.5))
}

// Score is what a word with that IDF, found tf times in a text of so many terms, adds to the text's score.
func (b BM25) Score(idf float64, tf, terms int) float64 {
	avg := b.AvgLen
	if avg <= 0 {
		avg = 1
	}
	f := float64(tf)
	return idf * f * (bm25K + 1) / (f + bm25K*(1-bm25B+bm25B*float64(terms)/avg))
}

// How lists are joined: reciprocal rank fusion with its customary constant; what matches a wished tag or source gains by a tenth each.
const (
	fuseK     = 60
	tagBoost  = 0.1
	fromBoost = 0.1
)

// Hit is one chunk of an answer.
type Hit struct {
	Chunk
	Collection Collection `json:"collection"`
	Score      float64    `json:"score"` // comparable within one answer only
}

// found are the candidates of one collection.
type found struct {
	collection Collection
	Candidates
}

// fuse joins the lists of all collections. A chunk's score is the sum, over the two kinds of list, of 1/(fuseK+rank), raised by tags and sources.
func fuse(lists []found, q Query) []Hit {
	type key struct {
		c  Collection
		id string
	}
	at := map[key]int{}
	var hits []Hit
	for _, l := range lists {
		for _, list := range [][]Chunk{l.ByVector, l.ByText} {
			for rank, c := range list {
				k := key{l.collection, c.ID}
				i, ok := at[k]
				if !ok {
					i = len(hits)
					at[k] = i
					hits = append(hits, Hit{Chunk: c, Collection: l.collection})
				}
				hits[i].Score += 1 / float64(fuseK+rank+1)
			}
		}
	}
	for i := range hits {
		h := &hits[i]
		if slices.ContainsFunc(h.Tags, func(t string) bool { return slices.Contains(q.Tags, t) }) {
			h.Score *= 1 + tagBoost
		}
		if h.Source != "" && slices.Contains(q.Sources, h.Source) {
			h.Score *= 1 + fromBoost
		}
	}
	slices.SortStableFunc(hits, func(a, b Hit) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), b.Date.Compare(a.Date), cmp.Compare(a.Collection, b.Collection), cmp.Compare(a.ID, b.ID))
	})
	return hits
}

// Package embed turns texts into vectors: offline, by what their words look like, or through a function of the caller's that asks a provider.
//
// It refuses to know providers, keys and where vectors are kept.
//
// Invariants: a text has the same vector on every machine and in every release, or the space has another name; a vector has length 1.
package embed

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
)

// Offline compares texts by their words and by the pieces of their words, each hashed to one of the dimensions. It needs no model and no network. It finds other
// forms of a word and small mistakes; it does not know that two different words mean the same. It is for development and for machines that
// may call nobody; where a provider with embeddings is configured, that one is better.
type Offline struct{ dims int }

var _ retrieval.Embedder = Offline{}

// NewOffline makes an embedder of so many dimensions, 64 to retrieval.MaxDims; 384 is customary.
func NewOffline(dims int) (Offline, error) {
	if dims < 64 || dims > retrieval.MaxDims {
		return Offline{}, fault.Invalidf("embed.NewOffline", "", "The offline embedder has 64 to %d dimensions.", retrieval.MaxDims)
	}
	return Offline{dims}, nil
}

// Space implements retrieval.Embedder.
func (o Offline) Space() retrieval.Space { return retrieval.Space{Name: "offline-1", Dims: o.dims} }

// How much pieces of words weigh beside whole ones, and how long they are in letters.
const (
	pieceWeight = 0.5
	minPiece    = 3
	maxPiece    = 5
)

// common are English words, the most frequent first: what stands here says less the earlier it stands, what does not stand here says most.
var common = func() map[string]float64 {
	words := strings.Fields(`the of and to in a is that for it was on with as be by at he this are from or not his but had an they which have you one were all her she there
		would their we him been has when who will no more if out so up said what its about than into them can only other time new some could these two may first then do any like
		my now over such our man me even most made after also did many off before must well back through years much where your way down should because long each just state those
		people too mr how little good world make very year still see own work men day get here old between both life being under three never know same last another while us might
		great go come since against right came take used himself few house use during without again place american around however home small found mrs thought went say part once
		general high upon school every don does got united left number course war until always away something fact water though less public put thing almost hand enough far took
		head yet government system better set told nothing night end why called find going look asked later point knew next give city business group days word ever case several
		given young let order side turn began quite door rather soon open done want seemed seen saw tell mean think`)
	m := make(map[string]float64, len(words))
	for i, w := range words {
		m[w] = max(0.05, math.Log1p(float64(i))/math.Log1p(float64(4*len(words))))
	}
	return m
}()

// Embed implements retrieval.Embedder. A text without a word has a vector all the same, one that is like no other's.
func (o Offline) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	out := make([][]float32, len(texts))
	for i, t := range texts {
		if err := ctx.Err(); err != nil {
			return nil, fault.Wrap(fault.Canceled, "embed.Offline", "canceled", "The search was cancelled.", err)
		}
		out[i] = o.vector(t)
	}
	return out, nil
}

func (o Offline) vector(text string) []float32 {
	type feature struct {
		n      int
		weight float64
	}
	seen := map[string]feature{}
	add := func(name string, weight float64) {
		f := seen[name]
		seen[name] = feature{f.n + 1, weight}
	}
	for _, w := range retrieval.Words(text) {
		weight, ok := common[w]
		if !ok {
			weight = 1
		}
		add("w"+retrieval.Singular(w), weight)
		letters := []rune("^" + w + "$")
		pieces := 0
		for n := minPiece; n <= maxPiece; n++ {
			pieces += max(0, len(letters)-n+1)
		}
		for n := minPiece; n <= maxPiece; n++ {
			for i := 0; i+n <= len(letters); i++ {
				add("p"+string(letters[i:i+n]), weight*pieceWeight*2/math.Sqrt(float64(pieces)))
			}
		}
	}
	if len(seen) == 0 {
		seen["t"+text] = feature{1, 1}
	}
	// Sums of whole numbers do not depend on the order of a map; sums of floats would, in their last bits.
	sums := make([]int64, o.dims)
	for name, f := range seen {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // a hash takes everything
		x := h.Sum64()
		x = (x ^ x>>33) * 0xff51afd7ed558ccd // the low bits of FNV alone are not spread well
		x ^= x >> 33
		v := int64(math.Round(f.weight * (1 + math.Log(float64(f.n))) * (1 << 20)))
		if x>>63 == 1 {
			v = -v
		}
		sums[x%uint64(o.dims)] += v
	}
	var norm float64
	for _, s := range sums {
		norm += float64(s) * float64(s)
	}
	v := make([]float32, o.dims)
	if norm == 0 { // everything cancelled out
		v[0] = 1
		return v
	}
	for i, s := range sums {
		v[i] = float32(float64(s) / math.Sqrt(norm))
	}
	return v
}

// Call asks a provider for the vectors of texts.
type Call func(ctx context.Context, texts []string) ([][]float32, error)

// Bounds of one call to a provider.
const (
	maxTexts = 96
	maxBytes = 256 << 10
)

// Provider embeds through a call.
type Provider struct {
	space retrieval.Space
	call  Call
}

var _ retrieval.Embedder = (*Provider)(nil)

// NewProvider makes an embedder of a call. The space's name says which model answers, as vectors of two models cannot be compared.
func NewProvider(space retrieval.Space, call Call) (*Provider, error) {
	if call == nil {
		return nil, fault.Invalidf("embed.NewProvider", "", "An embedder needs a provider to ask.")
	}
	return &Provider{space, call}, space.Validate()
}

// Space implements retrieval.Embedder.
func (p *Provider) Space() retrieval.Space { return p.space }

// Embed implements retrieval.Embedder, in calls of bounded size. An answer that does not fit the question is Upstream, code bad_embedding; the vectors are scaled to length 1.
func (p *Provider) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	out := make([][]float32, 0, len(texts))
	for len(texts) > 0 {
		n, size := 0, 0
		for n < min(maxTexts, len(texts)) && (n == 0 || size+len(texts[n]) <= maxBytes) {
			size += len(texts[n])
			if n++; !utf8.ValidString(texts[n-1]) {
				return nil, fault.Invalidf("embed.Provider", "", "Only UTF-8 can be embedded.")
			}
		}
		got, err := p.call(ctx, texts[:n])
		if err != nil {
			return nil, err
		}
		bad := func(cause error) ([][]float32, error) {
			return nil, fault.Wrap(fault.Upstream, "embed.Provider", "bad_embedding", "The provider's embeddings do not fit the question. Check which model is configured.", cause)
		}
		if len(got) != n {
			return bad(fmt.Errorf("%d vectors for %d texts", len(got), n))
		}
		for _, v := range got {
			if err := retrieval.CheckVector(v, p.space); err != nil {
				return bad(err)
			}
			out = append(out, unit(v))
		}
		texts = texts[n:]
	}
	return out, nil
}

func unit(v []float32) []float32 {
	var norm float64
	for _, x := range v {
		norm += float64(x) * float64(x)
	}
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(float64(x) / math.Sqrt(norm))
	}
	return out
}

package embed

import (
	"context"
	"errors"
	"hash/fnv"
	"math"
	"slices"
	"testing"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
)

func offline(t *testing.T) Offline {
	t.Helper()
	o, err := NewOffline(384)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func cosine(a, b []float32) (dot float64) {
	for i := range a {
		dot += float64(a[i]) * float64(b[i])
	}
	return dot
}

func TestOfflineLikeness(t *testing.T) {
	for _, tt := range []struct{ name, text, near, far string }{
		{"the same words", "the harvest of the year", "harvest in this year", "a mayor signs papers"},
		{"a plural", "budgets", "budget", "harvest"},
		{"another form", "theorizing", "theorize", "observing"},
		{"a mistake in writing", "encyclopedia", "encyclopaedia", "pawnbroker"},
		{"case", "RABBIT", "rabbit", "hare"},
		{"words that say little do not decide", "where is the pond", "pond", "where is the of that which"},
	} {
		v, err := offline(t).Embed(t.Context(), []string{tt.text, tt.near, tt.far})
		if err != nil {
			t.Fatal(err)
		}
		if near, far := cosine(v[0], v[1]), cosine(v[0], v[2]); near < far+0.1 {
			t.Errorf("%s: %.2f to %q, %.2f to %q", tt.name, near, tt.near, far, tt.far)
		}
	}
}

func TestOfflineVectorsAreOfLengthOne(t *testing.T) {
	o := offline(t)
	for _, text := range []string{"a", "", " ", "...", "東京", "a longer text with words and words", "\xff"} {
		v, err := o.Embed(t.Context(), []string{text})
		if err != nil || retrieval.CheckVector(v[0], o.Space()) != nil || math.Abs(cosine(v[0], v[0])-1) > 1e-5 {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := NewOffline(10); !fault.Is(err, fault.Invalid) {
		t.Errorf("ten dimensions: %v", err)
	}
}

// What is stored was embedded by some release; another sum here needs another name of the space.
func TestOfflineVectorsNeverChange(t *testing.T) {
	v, err := offline(t).Embed(t.Context(), []string{"Everybody has won, and all must have prizes."})
	if err != nil {
		t.Fatal(err)
	}
	h := fnv.New64a()
	for _, x := range v[0] {
		q := int16(math.Round(float64(x) * 1e4)) // the last bits may differ between processors
		_, _ = h.Write([]byte{byte(q), byte(q >> 8)})
	}
	if got, want := h.Sum64(), uint64(0xd3388c547f066fe1); got != want {
		t.Errorf("the vectors of %v changed: %#x, not %#x", offline(t).Space(), got, want)
	}
}

func TestProvider(t *testing.T) {
	space := retrieval.Space{Name: "model", Dims: 2}
	away := errors.New("away")
	for _, tt := range []struct {
		name  string
		texts int
		call  Call
		calls int
		kind  fault.Kind
		err   error
	}{
		{name: "one", texts: 1, calls: 1},
		{name: "none", texts: 0, calls: 0},
		{name: "more than one call may hold", texts: maxTexts + 1, calls: 2},
		{name: "it fails", texts: 1, calls: 1, err: away, call: func(context.Context, []string) ([][]float32, error) { return nil, away }},
		{name: "too few", texts: 2, calls: 1, kind: fault.Upstream, call: func(context.Context, []string) ([][]float32, error) { return [][]float32{{1, 0}}, nil }},
		{name: "another model's", texts: 1, calls: 1, kind: fault.Upstream, call: func(context.Context, []string) ([][]float32, error) { return [][]float32{{1, 0, 0}}, nil }},
		{name: "no numbers", texts: 1, calls: 1, kind: fault.Upstream, call: func(context.Context, []string) ([][]float32, error) {
			return [][]float32{{float32(math.NaN()), 0}}, nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			calls := 0
			p, err := NewProvider(space, func(ctx context.Context, texts []string) ([][]float32, error) {
				if calls++; tt.call != nil {
					return tt.call(ctx, texts)
				}
				return slices.Repeat([][]float32{{3, 4}}, len(texts)), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Embed(t.Context(), slices.Repeat([]string{"x"}, tt.texts))
			if calls != tt.calls {
				t.Errorf("%d calls, want %d", calls, tt.calls)
			}
			switch {
			case tt.err != nil && !errors.Is(err, tt.err), tt.kind != 0 && !fault.Is(err, tt.kind):
				t.Errorf("got %v", err)
			case tt.err == nil && tt.kind == 0 && (err != nil || len(got) != tt.texts):
				t.Errorf("%d vectors, %v", len(got), err)
			}
			for _, v := range got {
				if math.Abs(cosine(v, v)-1) > 1e-5 {
					t.Errorf("got %v", v)
				}
			}
		})
	}
	if _, err := NewProvider(space, nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("without a call: %v", err)
	}
}

package billing

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPerMillion(t *testing.T) {
	var r Rates
	for b := range r {
		r[b] = NoRate
	}
	r[BucketInput], r[BucketOutput], r[BucketCacheRead], r[BucketSearch], r[BucketReasoning] = 3_000_000, 15_000_000, 75_000, 10_000_000_000, 0
	want := map[string]string{"input": "3", "output": "15", "cacheRead": "0.075", "search": "0.01", "reasoning": "0"}
	if d := cmp.Diff(want, r.PerMillion()); d != "" {
		t.Error(d)
	}
}

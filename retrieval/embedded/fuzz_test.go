package embedded

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/retrieval"
)

// Whatever a file holds, reading it neither panics nor points outside of it, and a text is where it is said to be.
func FuzzEntries(f *testing.F) {
	raw, err := json.Marshal(retrieval.Chunk{ID: "a", Text: "b"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(appendRemove(appendPut(nil, raw, quantise([]float32{1, 0, -1, 0.5})), "a"))
	f.Add([]byte{opPut, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, payload []byte) {
		_ = entries(payload, 4, func(e entry) { // an error is an answer too
			if e.size == 0 {
				return
			}
			var again retrieval.Chunk
			if err := json.Unmarshal(payload[e.at:e.at+e.size], &again); err != nil || cmp.Diff(e.chunk, again) != "" {
				t.Errorf("at %d: %v, %v", e.at, again, err)
			}
		})
	})
}

package embedded

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
	"github.com/lossless-group/gateway/retrieval/embed"
	"github.com/lossless-group/gateway/retrieval/retrievaltest"
)

func engine(t testing.TB, dir string, maxOpen int) (retrievaltest.Engine, *Store) {
	t.Helper()
	e, err := embed.NewOffline(384)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: dir, Space: e.Space(), MaxOpen: maxOpen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return retrievaltest.Engine{Address: retrieval.Embedded, Embedder: e, Client: func(sc retrieval.Scope) (retrievaltest.Store, error) { return s.Client(sc) }}, s
}

func TestConformance(t *testing.T) {
	for _, n := range []int{1, 16} {
		t.Run(fmt.Sprintf("%d open", n), func(t *testing.T) {
			e, _ := engine(t, t.TempDir(), n)
			retrievaltest.Conformance(t, e)
		})
	}
}

func TestIsolation(t *testing.T) {
	for _, n := range []int{1, 16} {
		t.Run(fmt.Sprintf("%d open", n), func(t *testing.T) {
			e, _ := engine(t, t.TempDir(), n)
			retrievaltest.Isolation(t, e)
		})
	}
}

func TestHybridFindsMost(t *testing.T) {
	e, _ := engine(t, t.TempDir(), 1)
	retrievaltest.HybridIsBest(t, e)
}

func TestACrashAtAnyByteLosesOnlyTheLastWrite(t *testing.T) {
	dir := t.TempDir()
	e, s := engine(t, dir, 4)
	c := e.Open(t, "client__acme", "default")
	if err := c.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "client__acme", "default", "client-app-sessions.log")
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if err := c.Upsert(t.Context(), retrieval.AppSessions, e.Records(t, retrieval.Chunk{ID: "a", Text: "first"}, retrieval.Chunk{ID: "b", Text: "second"})); err != nil {
		t.Fatal(err)
	}
	before := size()
	if err := c.Upsert(t.Context(), retrieval.AppSessions, e.Records(t, retrieval.Chunk{ID: "c", Text: "third"}, retrieval.Chunk{ID: "d", Text: "fourth"})); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	reopen := func(t *testing.T, raw []byte) (retrievaltest.Store, retrievaltest.Engine, string) {
		dir := t.TempDir()
		file := filepath.Join(dir, "client__acme", "default", "client-app-sessions.log")
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, raw, 0o600)); err != nil {
			t.Fatal(err)
		}
		e, _ := engine(t, dir, 4)
		return e.Open(t, "client__acme", "default"), e, file
	}
	for _, cut := range []int64{before, before + 1, before + 7, before + 8, before + 9, before + 100, int64(len(whole)) - 1, int64(len(whole))} {
		t.Run(fmt.Sprintf("cut at %d of %d", cut, len(whole)), func(t *testing.T) {
			c, e, _ := reopen(t, whole[:cut])
			want := 2
			if cut == int64(len(whole)) {
				want = 4
			}
			if n, err := c.Count(t.Context(), retrieval.AppSessions); err != nil || n != want {
				t.Fatalf("%d chunks, want %d: %v", n, want, err)
			}
			if err := c.Upsert(t.Context(), retrieval.AppSessions, e.Records(t, retrieval.Chunk{ID: "e", Text: "after the crash"})); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Count(t.Context(), retrieval.AppSessions); err != nil || n != want+1 {
				t.Errorf("%d chunks after writing: %v", n, err)
			}
		})
	}
	t.Run("the last write's end never reached the disk", func(t *testing.T) {
		raw := slices.Clone(whole)
		clear(raw[len(raw)-200:])
		c, _, _ := reopen(t, raw)
		if n, err := c.Count(t.Context(), retrieval.AppSessions); err != nil || n != 2 {
			t.Errorf("%d chunks: %v", n, err)
		}
	})
	t.Run("damage in the middle is an error and changes nothing", func(t *testing.T) {
		raw := slices.Clone(whole)
		raw[before-20] ^= 1
		c, _, file := reopen(t, raw)
		_, err := c.Count(t.Context(), retrieval.AppSessions)
		if !fault.Is(err, fault.Unavailable) || !errors.Is(err, errDamaged) {
			t.Errorf("got %v", err)
		}
		if now, err := os.ReadFile(file); err != nil || !slices.Equal(now, raw) {
			t.Errorf("the file was changed: %v", err)
		}
	})
}

func TestOneProcessAndOneSpace(t *testing.T) {
	dir := t.TempDir()
	e, s := engine(t, dir, 4)
	c := e.Open(t, "client__acme", "default")
	if err := c.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, Space: e.Embedder.Space(), MaxOpen: 1}); !fault.Is(err, fault.Conflict) || fault.From(err).Code != "store_in_use" {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Count(t.Context(), retrieval.AppSessions); !fault.Is(err, fault.Unavailable) {
		t.Errorf("used after closing: %v", err)
	}
	other, err := Open(Config{Dir: dir, Space: retrieval.Space{Name: "another", Dims: 384}, MaxOpen: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	oc, err := other.Client(c.Scope())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := oc.Count(t.Context(), retrieval.AppSessions); !fault.Is(err, fault.Conflict) || fault.From(err).Code != "space_mismatch" {
		t.Errorf("vectors of another embedder: %v", err)
	}
	if err := errors.Join(oc.Drop(t.Context()), oc.Provision(t.Context())); err != nil {
		t.Errorf("starting anew: %v", err)
	}
	server, err := retrieval.NewScope("http://127.0.0.1:1", "client__acme", "default")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Client(server); !fault.Is(err, fault.Invalid) {
		t.Errorf("a server's scope: %v", err)
	}
}

func TestALogIsWrittenAnewWhenMostOfItIsOld(t *testing.T) {
	dir := t.TempDir()
	e, s := engine(t, dir, 4)
	c := e.Open(t, "client__acme", "default")
	if err := c.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	var chunks []retrieval.Chunk
	for i := range 300 {
		chunks = append(chunks, retrieval.Chunk{ID: fmt.Sprint(i), Text: fmt.Sprintf("word%d is here", i)})
	}
	records := e.Records(t, chunks...)
	var largest, last int64
	for range 13 {
		if err := c.Upsert(t.Context(), retrieval.AppSessions, records); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, "client__acme", "default", "client-app-sessions.log"))
		if err != nil {
			t.Fatal(err)
		}
		last = info.Size()
		largest = max(largest, last)
	}
	if last*2 > largest {
		t.Errorf("the log has %d bytes, and had %d", last, largest)
	}
	for range 2 { // as it is in memory, then as it is on disk
		got, err := c.Candidates(t.Context(), retrieval.AppSessions, e.Probe(t, "word7"))
		if err != nil || len(got.ByText) != 1 || got.ByText[0].ID != "7" || got.ByVector[0].ID != "7" {
			t.Fatalf("got %v, %v", got.ByText, err)
		}
		if n, err := c.Count(t.Context(), retrieval.AppSessions); err != nil || n != 300 {
			t.Fatalf("%d chunks: %v", n, err)
		}
		s.mu.Lock()
		s.evict(0)
		s.mu.Unlock()
	}
}

func TestManyAtOnce(t *testing.T) {
	e, _ := engine(t, t.TempDir(), 1) // every other call opens and closes
	var wg sync.WaitGroup
	for org := range 3 {
		c := e.Open(t, fmt.Sprintf("client__%d", org), "default")
		if err := c.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
		for w := range 3 {
			records := e.Records(t, retrieval.Chunk{ID: fmt.Sprint(w), Text: fmt.Sprintf("harvest %d", org)})
			probe := e.Probe(t, "harvest")
			wg.Go(func() {
				for range 10 {
					if err := c.Upsert(t.Context(), retrieval.AppSessions, records); err != nil {
						t.Error(err)
					}
					got, err := c.Candidates(t.Context(), retrieval.AppSessions, probe)
					if err != nil || len(got.ByText) == 0 {
						t.Errorf("got %v, %v", got, err)
					}
					for _, chunk := range got.ByText {
						if chunk.Text != fmt.Sprintf("harvest %d", org) {
							t.Errorf("organisation %d got %q", org, chunk.Text)
						}
					}
				}
			})
		}
	}
	wg.Wait()
}

// Signs and bytes are short cuts; what they find must be what comparing all vectors in full finds.
func TestShortCutsFindWhatComparingAllFinds(t *testing.T) {
	e, _ := engine(t, t.TempDir(), 1)
	c := e.Open(t, "client__acme", "default")
	if err := c.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	records := e.Records(t, retrievaltest.Passages(8000)...)
	if err := c.Upsert(t.Context(), retrieval.AppSessions, records); err != nil {
		t.Fatal(err)
	}
	if share := recall(t, e, c, records); share < 0.95 {
		t.Errorf("found %.3f of the ten nearest, want 0.95", share)
	}
}

// recall is the share of the ten nearest of all records that a search finds among its first ten.
func recall(t testing.TB, e retrievaltest.Engine, c retrievaltest.Store, records []retrieval.Record) float64 {
	t.Helper()
	r := rand.New(rand.NewPCG(3, 4))
	found, wanted := 0, 0
	for range 40 {
		p := e.Probe(t, records[r.IntN(len(records))].Text[20:100])
		got, err := c.Candidates(t.Context(), retrieval.AppSessions, retrieval.Probe{Vector: p.Vector, Depth: 10})
		if err != nil {
			t.Fatal(err)
		}
		all := make([]scored, len(records))
		for i, rec := range records {
			var dot float32
			for k, x := range rec.Vector {
				dot += x * p.Vector[k]
			}
			all[i] = scored{uint32(i), dot}
		}
		for _, want := range best(all, 10) {
			wanted++
			if slices.ContainsFunc(got.ByVector, func(c retrieval.Chunk) bool { return c.ID == records[want.doc].ID }) {
				found++
			}
		}
	}
	return float64(found) / float64(wanted)
}

func TestQuantise(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	v := make([]float32, 384)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	q := quantise(v)
	var dot, norm, qq float64
	for i, x := range v {
		y := float64(q.scale) * float64(q.bytes[i])
		dot, norm, qq = dot+float64(x)*y, norm+float64(x)*float64(x), qq+y*y
	}
	if cos := dot / math.Sqrt(norm*qq); cos < 0.9995 || math.Abs(qq-1) > 0.01 {
		t.Errorf("cosine %f, length %f", cos, math.Sqrt(qq))
	}
}

// BenchmarkCandidates asks 100,000 chunks, both ways, one question after another. It reports the slowest hundredth, and how many of the nearest are
// found. Run once, as a check that it works, it asks 2,000.
func BenchmarkCandidates(b *testing.B) {
	n := 100_000
	if f := flag.Lookup("test.benchtime"); f != nil && f.Value.String() == "1x" {
		n = 2000
	}
	e, _ := engine(b, b.TempDir(), 1)
	c := e.Open(b, "client__acme", "default")
	if err := c.Provision(b.Context()); err != nil {
		b.Fatal(err)
	}
	records := e.Records(b, retrievaltest.Passages(n)...)
	for part := range slices.Chunk(records, 5000) {
		if err := c.Upsert(b.Context(), retrieval.AppSessions, part); err != nil {
			b.Fatal(err)
		}
	}
	share := recall(b, e, c, records)
	probes := make([]retrieval.Probe, 64)
	for i := range probes {
		probes[i] = e.Probe(b, records[i*n/len(probes)].Text[10:70])
	}
	retrievaltest.Percentiles(b, func(i int) error {
		_, err := c.Candidates(b.Context(), retrieval.AppSessions, probes[i%len(probes)])
		return err
	})
	b.ReportMetric(share, "recall@10")
}

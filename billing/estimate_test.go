package billing

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tiktoken-go/tokenizer"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/tenancy"
)

// answerTexts are texts of the kinds that answers are made of: those that were written for it, and this repository's own prose, code and data.
func answerTexts(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/answers/*")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	files = append(files, "../docs/finance.md", "../docs/redaction.md", "settle.go", "pico.go", "../migrations/control/0001_init.sql", "../migrations/control/0005_budgets.sql")
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(f)] = string(b[:min(len(b), 12_000)])
	}
	return out
}

// vocabulary counts tokens as a provider does.
func vocabulary(t testing.TB, name tokenizer.Encoding) func(string) int64 {
	t.Helper()
	codec, err := tokenizer.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) int64 {
		n, err := codec.Count(text)
		if err != nil {
			t.Fatal(err)
		}
		return int64(n)
	}
}

// off is by how many percent an estimate is off, without a sign.
func off(estimate, truth int64) float64 {
	return 100 * float64(max(estimate-truth, truth-estimate)) / float64(truth)
}

// spread tells how far estimates were off, as people read it, and returns the 95th percentile and the worst.
func spread(t testing.TB, name string, list []float64) (p95, worst float64) {
	slices.Sort(list)
	p95, worst = list[len(list)*95/100], list[len(list)-1]
	t.Logf("%-30s n %5d  off by p50 %.1f %%  p90 %.1f %%  p95 %.1f %%  worst %.1f %%", name, len(list), list[len(list)/2], list[len(list)*9/10], p95, worst)
	return p95, worst
}

// TestWeighing compares whole texts, of which nothing was learned, with a real vocabulary.
func TestWeighing(t *testing.T) {
	count := vocabulary(t, tokenizer.O200kBase)
	var all, quarter []float64
	for name, text := range answerTexts(t) {
		var w Weighing
		w.Add(text)
		truth := count(text)
		o := off(w.Tokens(), truth)
		all, quarter = append(all, o), append(quarter, off(EstimateTokens(int64(len(text))), truth))
		if o > 20 {
			t.Errorf("%s has %d tokens, %d expected", name, truth, w.Tokens())
		}
	}
	spread(t, "a quarter of the bytes", quarter)
	if spread(t, "weighed", all); all[len(all)/2] > 6 {
		t.Errorf("half of the texts are off by more than %.1f %%", all[len(all)/2])
	}
}

// TestWeighingPieces: where a text is cut into deltas does not matter.
func TestWeighingPieces(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, text := range answerTexts(t) {
		var whole, parts Weighing
		whole.Add(text)
		for rest := []rune(text); len(rest) > 0; {
			n := min(1+rnd.IntN(9), len(rest))
			parts.Add(string(rest[:n]))
			rest = rest[n:]
		}
		if whole != parts {
			t.Errorf("%s: %d in one, %d in parts", name, whole.Tokens(), parts.Tokens())
		}
	}
	if n := new(Weighing).Tokens(); n != 0 {
		t.Errorf("nothing has %d tokens", n)
	}
}

// TestEstimates cuts answers of organisations that finished others before: what is recorded of a cut one is what it cost, nearly.
func TestEstimates(t *testing.T) {
	cat, day := Embedded(), time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	for model, name := range map[string]tokenizer.Encoding{"gpt-5.4": tokenizer.O200kBase, "gpt-4.1": tokenizer.Cl100kBase} {
		count := vocabulary(t, name)
		rnd := rand.New(rand.NewPCG(6, 6))
		e := NewEstimator()
		var tokens, costs []float64
		for kind, text := range answerTexts(t) {
			org := tenancy.MustOrgID(strings.ReplaceAll(strings.ToLower(kind), "_", "-") + ".example")
			runes := []rune(text)
			first, second := string(runes[:len(runes)/2]), string(runes[len(runes)/2:])
			for range 20 { // it finished some
				finish(e, org, model, first, count)
			}
			for range 10 {
				rest := []rune(second)
				n := len(rest)/2 + rnd.IntN(len(rest)/2)
				said := string(rest[:n])
				truth := count(said)
				var w Weighing
				w.Add(said)
				prompt := promptOf(first + first)
				a := Attempt{ID: "r.1", RunID: "r", Org: org, Provider: "openai", Model: model, KeySource: "org", StartedAt: day, InputHint: e.Prompt(org, model, prompt)}
				got := Settle(a, Outcome{DeliveredBytes: int64(len(said)), Delivered: e.Answer(org, model, &w), Status: StatusCancelled, EndedAt: day}, cat)
				real := Settle(a, Outcome{Usage: chat.Usage{Input: count(string(prompt)), Output: truth}, Told: true, Final: true, Status: StatusOK, EndedAt: day}, cat)
				if got.Basis != Estimated || got.Cost == nil || real.Cost == nil {
					t.Fatalf("%s: %s %v", kind, got.Basis, got.Cost)
				}
				tokens, costs = append(tokens, off(got.Usage.Output, truth)), append(costs, off(int64(*got.Cost), int64(*real.Cost)))
			}
		}
		spread(t, model+" output tokens", tokens)
		if p95, worst := spread(t, model+" cost", costs); p95 > 10 || worst > 15 { // the worst are emoji, of which these vocabularies have some whole
			t.Errorf("%s: one in twenty costs is off by %.1f %%, the worst by %.1f %%", model, p95, worst)
		}
	}
}

// promptOf is the body that asks about a text.
func promptOf(text string) []byte {
	return fmt.Appendf(nil, `{"model":"m","stream":true,"messages":[{"role":"user","content":%q}]}`, text)
}

// finish has an organisation finish an answer.
func finish(e *Estimator, org tenancy.OrgID, model, said string, count func(string) int64) {
	var w Weighing
	w.Add(said)
	prompt := promptOf(said)
	ev := &Event{Attempt: Attempt{Org: org, Model: model}, Status: StatusOK, Basis: Computed, Usage: chat.Usage{Input: count(string(prompt)), Output: count(said)}}
	e.Learn(ev, int64(len(prompt)), &w)
}

// TestEstimatorIsBounded: what one provider or organisation says moves no estimate of another, and nonsense moves none far.
func TestEstimatorIsBounded(t *testing.T) {
	acme, other := tenancy.MustOrgID("acme.example"), tenancy.MustOrgID("other.example")
	var w Weighing
	w.Add(strings.Repeat("a word or two and then some more ", 40))
	plain, body := w.Tokens(), promptOf(strings.Repeat("a word or two and then some more ", 40))
	prompt := NewEstimator().Prompt(acme, "m", body)
	told := func(e *Estimator, u chat.Usage, basis Basis, status string) {
		for range 100 {
			e.Learn(&Event{Attempt: Attempt{Org: acme, Model: "m"}, Status: status, Basis: basis, Usage: u}, int64(len(body)), &w)
		}
	}
	for _, c := range []struct {
		name   string
		usage  chat.Usage
		basis  Basis
		status string
		moves  bool
	}{
		{"far too many", chat.Usage{Input: maxTokens, Output: maxTokens}, Computed, StatusOK, true},
		{"far too few", chat.Usage{Input: 1, Output: 1}, Computed, StatusOK, true},
		{"twice as many", chat.Usage{Input: 2 * prompt, Output: 2 * plain}, Computed, StatusOK, true},
		{"nothing", chat.Usage{}, Computed, StatusOK, false},
		{"an estimate", chat.Usage{Input: 2 * prompt, Output: 2 * plain}, Estimated, StatusCut, false},
		{"a caller who left", chat.Usage{Input: 2 * prompt, Output: 2 * plain}, Computed, StatusCancelled, false},
		{"pictures and sound", chat.Usage{Input: 2 * prompt, InputImage: 1, Output: 2 * plain, OutputAudio: 1}, Computed, StatusOK, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := NewEstimator()
			told(e, c.usage, c.basis, c.status)
			if n := e.Answer(acme, "m", &w); (n != plain) != c.moves || n < plain/leaningAtMost || n > plain*leaningAtMost {
				t.Errorf("%d tokens of answer, %d expected", n, plain)
			}
			if n := e.Prompt(acme, "m", body); (n != prompt) != c.moves || n < prompt/(2*leaningAtMost) || n > prompt*2*leaningAtMost {
				t.Errorf("%d tokens of prompt, %d expected", n, prompt)
			}
			if n, m := e.Answer(other, "m", &w), e.Answer(acme, "other", &w); n != plain || m != plain {
				t.Errorf("another organisation %d, another model %d, want %d", n, m, plain)
			}
		})
	}
}

// TestWeighingAllocates nothing, delta by delta.
func TestWeighingAllocates(t *testing.T) {
	var w Weighing
	e, org := NewEstimator(), tenancy.MustOrgID("acme.example")
	if n := testing.AllocsPerRun(100, func() { w.Add(" délta, "); e.Answer(org, "m", &w) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkWeighing(b *testing.B) {
	text := strings.Repeat("The quarter closed better than planned, by 18 %.\n", 20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		var w Weighing
		w.Add(text)
	}
}

package retrievaltest

import (
	"embed"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/retrieval"
)

//go:embed testdata/*.txt
var texts embed.FS

// Question is asked in words that are partly others than the passage's that answers it.
type Question struct {
	Text   string
	Answer string // the chunk's id
}

// Labelled returns passages from books whose copyright has ended and questions about them.
func Labelled(t testing.TB) ([]retrieval.Chunk, []Question) {
	t.Helper()
	var chunks []retrieval.Chunk
	known := map[string]bool{}
	for _, f := range fields(t, "testdata/passages.txt") {
		source, _, _ := strings.Cut(f[0], "-")
		chunks = append(chunks, retrieval.Chunk{ID: f[0], Text: f[1], Source: source})
		known[f[0]] = true
	}
	var questions []Question
	for _, f := range fields(t, "testdata/questions.txt") {
		if !known[f[1]] {
			t.Fatalf("no passage %q", f[1])
		}
		questions = append(questions, Question{f[0], f[1]})
	}
	return chunks, questions
}

// fields are the two parts of each line.
func fields(t testing.TB, name string) (out [][2]string) {
	t.Helper()
	raw, err := texts.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		a, b, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "|")
		if !ok {
			t.Fatalf("%s: no bar in %q", name, line)
		}
		out = append(out, [2]string{a, b})
	}
	return out
}

// Figures say how well answers are found: the mean of one over the rank of the right one among ten, and the share that have it among the first five.
type Figures struct{ MRR, Recall5 float64 }

// Quality asks all questions three ways: as a Searcher ranks, by vectors alone, by words alone.
func Quality(t testing.TB, e Engine) (hybrid, vector, words Figures) {
	t.Helper()
	chunks, questions := Labelled(t)
	s := e.Open(t, "client__quality", "default")
	must(t, s.Provision(t.Context()))
	must(t, s.Upsert(t.Context(), retrieval.AppSessions, e.Records(t, chunks...)))
	searcher, err := retrieval.New(retrieval.Config{Embedder: e.Embedder, Timeout: retrieval.MaxTimeout})
	must(t, err)
	score := func(f *Figures, want string, found []string) {
		for rank, id := range found[:min(len(found), retrieval.MaxResults)] {
			if id == want {
				f.MRR += 1 / float64(rank+1) / float64(len(questions))
				if rank < 5 {
					f.Recall5 += 1 / float64(len(questions))
				}
			}
		}
	}
	for _, q := range questions {
		got, err := s.Candidates(t.Context(), retrieval.AppSessions, e.Probe(t, q.Text))
		must(t, err)
		score(&vector, q.Answer, ids(got.ByVector))
		score(&words, q.Answer, ids(got.ByText))
		a, err := searcher.Search(t.Context(), s, retrieval.Query{Text: q.Text, Collections: []retrieval.Collection{retrieval.AppSessions}, N: retrieval.MaxResults})
		must(t, err)
		if len(a.Warnings) > 0 {
			t.Errorf("asking %q: %v", q.Text, a.Warnings)
		}
		var found []string
		for _, h := range a.Hits {
			found = append(found, h.ID)
		}
		score(&hybrid, q.Answer, found)
	}
	t.Logf("%d passages, %d questions; MRR@10 and recall@5: hybrid %.3f %.3f, vector alone %.3f %.3f, words alone %.3f %.3f",
		len(chunks), len(questions), hybrid.MRR, hybrid.Recall5, vector.MRR, vector.Recall5, words.MRR, words.Recall5)
	return hybrid, vector, words
}

// HybridIsBest demands that joining both ways ranks right answers higher than either alone, and has no more than one question fewer
// among its first five: so few questions decide nothing about a single one.
func HybridIsBest(t *testing.T, e Engine) {
	_, questions := Labelled(t)
	hybrid, vector, words := Quality(t, e)
	for name, other := range map[string]Figures{"vector": vector, "words": words} {
		if hybrid.MRR <= other.MRR || hybrid.Recall5 < other.Recall5-1.5/float64(len(questions)) {
			t.Errorf("hybrid %+v is not better than %s alone, %+v", hybrid, name, other)
		}
	}
}

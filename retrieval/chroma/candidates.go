package chroma

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/lossless-group/gateway/retrieval"
)

// How words are looked for: the server knows which texts contain a string, not how well they answer. Each of the longest words is asked for on its own, which
// tells how rare it is; the most promising texts are then read and scored here.
const (
	maxTerms = 4
	minTerm  = 3   // letters; the server's index is of three letters
	having   = 100 // ids asked for per word
	acronym  = 4   // letters of words that may be written in capitals throughout
)

// Candidates implements retrieval.Index.
func (c *Client) Candidates(ctx context.Context, name retrieval.Collection, p retrieval.Probe) (retrieval.Candidates, error) {
	ctx, cancel := context.WithTimeout(ctx, c.server.cfg.Timeout)
	defer cancel()
	if p.Vector != nil {
		if err := retrieval.CheckVector(p.Vector, c.server.cfg.Space); err != nil {
			return retrieval.Candidates{}, err
		}
	}
	k, err := c.resolve(ctx, name) // before the questions in parallel, so that they share one look-up
	if err != nil {
		return retrieval.Candidates{}, err
	}
	depth := max(1, min(p.Depth, page))
	var out retrieval.Candidates
	terms := searchable(p.Terms)
	ids := make([][]string, len(terms))
	faults := make([]error, len(terms)+1)
	var wg sync.WaitGroup
	if p.Vector != nil {
		wg.Go(func() { out.ByVector, faults[len(terms)] = c.byVector(ctx, name, p, depth) })
	}
	for i, t := range terms {
		wg.Go(func() { ids[i], faults[i] = c.containing(ctx, name, p.Project, t) })
	}
	wg.Wait()
	if i := slices.IndexFunc(faults, func(err error) bool { return err != nil }); i >= 0 {
		return retrieval.Candidates{}, faults[i]
	}
	out.ByText, err = c.byText(ctx, name, p, depth, k.count, terms, ids, out.ByVector)
	return out, err
}

// searchable are the words worth asking for, the longest first, as long words are rare ones.
func searchable(terms []string) []string {
	terms = slices.DeleteFunc(slices.Clone(terms), func(t string) bool { return utf8.RuneCountInString(t) < minTerm })
	slices.SortStableFunc(terms, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	terms = slices.Compact(terms)
	return terms[:min(maxTerms, len(terms))]
}

// in is the condition that a chunk is of a project; nil: of any.
func in(project string) any {
	if project == "" {
		return nil
	}
	return map[string]any{"project": map[string]string{"$eq": project}}
}

func (c *Client) byVector(ctx context.Context, name retrieval.Collection, p retrieval.Probe, depth int) ([]retrieval.Chunk, error) {
	ask := map[string]any{"query_embeddings": [][]float32{p.Vector}, "n_results": depth, "include": []string{"documents", "metadatas"}}
	if w := in(p.Project); w != nil {
		ask["where"] = w
	}
	var got struct {
		IDs       [][]string   `json:"ids"`
		Documents [][]*string  `json:"documents"`
		Metadatas [][]metadata `json:"metadatas"`
	}
	if err := c.ask(ctx, "chroma.byVector", name, "query", ask, &got); err != nil {
		return nil, err
	}
	var f fetched
	if len(got.IDs) > 0 && len(got.Documents) > 0 {
		f.IDs, f.Documents = got.IDs[0], got.Documents[0]
	}
	if len(got.Metadatas) > 0 {
		f.Metadatas = got.Metadatas[0]
	}
	return f.chunks(), nil
}

// containing returns the ids of chunks that hold a word. The server minds case, so the word is asked for as it begins a sentence too; the
// plural of a word in y ends differently, so the y is not asked for.
func (c *Client) containing(ctx context.Context, name retrieval.Collection, project, term string) ([]string, error) {
	if stem := strings.TrimSuffix(term, "y"); utf8.RuneCountInString(stem) >= minTerm {
		term = stem
	}
	first, n := utf8.DecodeRuneInString(term)
	forms := []any{map[string]string{"$contains": term}, map[string]string{"$contains": string(unicode.ToUpper(first)) + term[n:]}}
	if utf8.RuneCountInString(term) <= acronym {
		forms = append(forms, map[string]string{"$contains": strings.ToUpper(term)})
	}
	ask := map[string]any{"where_document": map[string]any{"$or": forms}, "limit": having, "include": []string{}}
	if w := in(project); w != nil {
		ask["where"] = w
	}
	var f fetched
	err := c.ask(ctx, "chroma.containing", name, "get", ask, &f)
	return f.IDs, err
}

// byText reads the chunks whose words are rarest together and scores them and those found by vector.
func (c *Client) byText(ctx context.Context, name retrieval.Collection, p retrieval.Probe, depth, count int, terms []string, ids [][]string, near []retrieval.Chunk) ([]retrieval.Chunk, error) {
	bm := retrieval.BM25{Chunks: count}
	idf, promise := map[string]float64{}, map[string]float64{}
	for i, t := range terms {
		n := len(ids[i])
		if n >= having { // at least so many; as nothing better is known, the middle between that and all
			n = (having + max(having, count)) / 2
		}
		idf[t] = bm.IDF(n)
		for _, id := range ids[i] {
			promise[id] += idf[t]
		}
	}
	known := map[string]retrieval.Chunk{}
	for _, chunk := range near {
		known[chunk.ID] = chunk
	}
	order := slices.SortedFunc(maps.Keys(promise), func(a, b string) int { return cmp.Or(cmp.Compare(promise[b], promise[a]), cmp.Compare(a, b)) })
	var missing []string
	for _, id := range order[:min(depth, len(order))] {
		if _, ok := known[id]; !ok {
			missing = append(missing, id)
		}
	}
	if len(missing) > 0 {
		var f fetched
		if err := c.ask(ctx, "chroma.byText", name, "get", map[string]any{"ids": missing, "include": []string{"documents", "metadatas"}}, &f); err != nil {
			return nil, err
		}
		for _, chunk := range f.chunks() {
			if p.Project == "" || chunk.Project == p.Project { // it may have changed since its id was found
				known[chunk.ID] = chunk
			}
		}
	}
	words, total := map[string][]string{}, 0
	for id, chunk := range known {
		words[id] = retrieval.Terms(chunk.Text)
		total += len(words[id])
	}
	bm.AvgLen = float64(total) / float64(max(1, len(known)))
	score := map[string]float64{}
	for id, ws := range words {
		tf := map[string]int{}
		for _, w := range ws {
			tf[w]++
		}
		for _, t := range p.Terms { // short words too: they were not asked for, but count where they are
			weight, ok := idf[t]
			if !ok {
				weight = bm.IDF(count / 2)
			}
			if tf[t] > 0 {
				score[id] += bm.Score(weight, tf[t], len(ws))
			}
		}
	}
	best := slices.SortedFunc(maps.Keys(score), func(a, b string) int { return cmp.Or(cmp.Compare(score[b], score[a]), cmp.Compare(a, b)) })
	out := make([]retrieval.Chunk, 0, depth)
	for _, id := range best[:min(depth, len(best))] {
		out = append(out, known[id])
	}
	return out, nil
}

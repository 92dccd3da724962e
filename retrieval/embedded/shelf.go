package embedded

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
)

// How a search is cut short, and when a log is written anew.
const (
	rescored  = 2000 // chunks nearest by signs whose vectors are compared
	compactAt = 1024 // replaced and removed chunks, when they are also more than the living
)

// shelf is one collection in memory and its log.
type shelf struct {
	path  string
	space retrieval.Space

	mu     sync.RWMutex
	file   *os.File
	end    int64
	failed error // after a write that could not be taken back
	docs   []doc
	terms  []uint32 // how many each doc has, or dead; apart from docs, as every search reads all of them
	ids    map[string]uint32
	live   int
	length int // terms of the living
	words  map[string][]posting
	// Vectors lie one after another by doc: bytes as in the log, signs in rotator words of 64 bits.
	bytes   []int8
	signs   []uint64
	rotator rotator
}

type doc struct {
	at      int64 // of the chunk's JSON in the file
	size    uint32
	scale   float32
	project string
}

// dead is in place of a number of terms for what was removed or replaced.
const dead = math.MaxUint32

type posting struct {
	doc uint32
	tf  uint32
}

// openShelf reads a log; fs.ErrNotExist when there is none.
func openShelf(path string, space retrieval.Space) (*shelf, error) {
	s := &shelf{path: path, space: space, rotator: newRotator(space.Dims)}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, nil
}

// load reads the log from disk into an empty memory.
func (s *shelf) load() error {
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.docs, s.terms, s.ids, s.live, s.length, s.words, s.bytes, s.signs = nil, nil, map[string]uint32{}, 0, 0, map[string][]posting{}, nil, nil
	projects := map[string]string{} // one copy of each name
	end, err := replay(f, info.Size(), s.space, func(at int64, e entry) {
		if p, ok := projects[e.chunk.Project]; ok {
			e.chunk.Project = p
		} else {
			projects[e.chunk.Project] = e.chunk.Project
		}
		s.apply(at, e)
	})
	if err == nil && end < info.Size() {
		if err = f.Truncate(end); err == nil {
			err = f.Sync()
		}
	}
	if err == nil && end == 0 {
		err = errDamaged // it is made whole before it gets its name
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.file, s.end = f, end
	return nil
}

func (s *shelf) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close() // all was synced when it was written
		s.file = nil
	}
}

// drop removes the log. Those who still have the shelf find it closed.
func (s *shelf) drop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = fs.ErrNotExist
	err := os.Remove(s.path)
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
		s.file = nil
	}
	return err
}

func (s *shelf) usable() error {
	if s.failed != nil {
		return s.failed
	}
	if s.file == nil {
		return os.ErrClosed
	}
	return nil
}

// apply changes memory by one entry of the frame whose payload begins at base.
func (s *shelf) apply(base int64, e entry) {
	id := e.remove
	if id == "" {
		id = e.chunk.ID
	}
	if old, ok := s.ids[id]; ok {
		s.live--
		s.length -= int(s.terms[old])
		s.terms[old] = dead
		delete(s.ids, id)
	}
	if e.remove != "" {
		return
	}
	n := uint32(len(s.docs))
	terms := retrieval.Terms(e.chunk.Text)
	tf := map[string]uint32{}
	for _, t := range terms {
		tf[t]++
	}
	for t, f := range tf {
		s.words[t] = append(s.words[t], posting{n, f})
	}
	s.docs = append(s.docs, doc{at: base + int64(e.at), size: uint32(e.size), scale: e.vector.scale, project: e.chunk.Project})
	s.terms = append(s.terms, uint32(len(terms)))
	s.ids[id] = n
	s.live++
	s.length += len(terms)
	s.bytes = append(s.bytes, e.vector.bytes...)
	v := make([]float32, s.space.Dims)
	for i, x := range e.vector.bytes {
		v[i] = float32(x)
	}
	s.signs = append(s.signs, s.rotator.signs(v)...)
}

// write appends a frame and puts it on disk, then changes memory. A frame that could not be written whole is taken off again.
func (s *shelf) write(payload []byte) error {
	if len(payload) > maxFrame {
		return fault.New(fault.TooLarge, "embedded.write", "batch_too_large", "Store fewer chunks at a time.")
	}
	_, err := s.file.WriteAt(frame(payload), s.end)
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		if back := s.file.Truncate(s.end); back != nil {
			s.failed = errors.Join(err, back)
		}
		return err
	}
	base := s.end + frameHead
	s.end = base + int64(len(payload))
	if err := entries(payload, s.space.Dims, func(e entry) { s.apply(base, e) }); err != nil {
		return err
	}
	if old := len(s.docs) - s.live; old >= compactAt && old > s.live {
		return s.compact()
	}
	return nil
}

func (s *shelf) upsert(records []retrieval.Record) error {
	var payload []byte
	for _, r := range records {
		raw, err := json.Marshal(r.Chunk)
		if err != nil {
			return err
		}
		payload = appendPut(payload, raw, quantise(r.Vector))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	return s.write(payload)
}

func (s *shelf) remove(ids []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	var payload []byte
	for _, id := range ids {
		if _, ok := s.ids[id]; ok {
			payload = appendRemove(payload, id)
		}
	}
	if payload == nil {
		return nil
	}
	return s.write(payload)
}

func (s *shelf) count() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.live
}

// read returns the JSON of a living chunk.
func (s *shelf) read(n uint32) ([]byte, error) {
	raw := make([]byte, s.docs[n].size)
	_, err := s.file.ReadAt(raw, s.docs[n].at)
	return raw, err
}

func (s *shelf) chunk(n uint32) (c retrieval.Chunk, err error) {
	raw, err := s.read(n)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(raw, &c)
}

func (s *shelf) each(yield func(retrieval.Chunk) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return err
	}
	for n := range s.docs {
		if s.terms[n] == dead {
			continue
		}
		c, err := s.chunk(uint32(n))
		if err == nil {
			err = yield(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compact writes a log of the living and takes its place. Until the new name is on disk the old log is the valid one.
func (s *shelf) compact() error {
	err := create(s.path, s.space, func(w *bufio.Writer) error {
		var payload []byte
		flush := func() error {
			_, err := w.Write(frame(payload))
			payload = payload[:0]
			return err
		}
		for n, d := range s.docs {
			if s.terms[n] == dead {
				continue
			}
			raw, err := s.read(uint32(n))
			if err != nil {
				return err
			}
			at := n * s.space.Dims
			payload = appendPut(payload, raw, quantised{d.scale, s.bytes[at : at+s.space.Dims]})
			if len(payload) > 1<<20 {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		return flush()
	})
	if err != nil {
		return err
	}
	old := s.file
	if err := errors.Join(syncDir(filepath.Dir(s.path)), s.load()); err != nil {
		s.failed = err
		return err
	}
	return old.Close()
}

// candidates finds what is nearest to the probe's vector and what holds its words.
func (s *shelf) candidates(p retrieval.Probe) (out retrieval.Candidates, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return out, err
	}
	if p.Vector != nil {
		if out.ByVector, err = s.chunks(s.nearest(p.Vector, p.Project, p.Depth)); err != nil {
			return out, err
		}
	}
	out.ByText, err = s.chunks(s.containing(p.Terms, p.Project, p.Depth))
	return out, err
}

func (s *shelf) chunks(of []scored) ([]retrieval.Chunk, error) {
	out := make([]retrieval.Chunk, len(of))
	for i, x := range of {
		var err error
		if out[i], err = s.chunk(x.doc); err != nil {
			return nil, err
		}
	}
	return out, nil
}

type scored struct {
	doc   uint32
	score float32
}

// best sorts by score and keeps the first n.
func best(all []scored, n int) []scored {
	slices.SortFunc(all, func(a, b scored) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.doc, b.doc)) })
	return all[:min(n, len(all))]
}

func (s *shelf) passes(n uint32, project string) bool {
	return s.terms[n] != dead && (project == "" || s.docs[n].project == project)
}

// nearest compares the signs of all vectors with the query's, then the vectors of those that differ least.
func (s *shelf) nearest(v []float32, project string, n int) []scored {
	width := s.rotator.words()
	q := s.rotator.signs(v)
	far := uint16(width * 64)
	apart := make([]uint16, len(s.docs))
	count := make([]int, int(far)+2)
	for i := range s.docs {
		apart[i] = far + 1
		if !s.passes(uint32(i), project) {
			continue
		}
		row := s.signs[i*width:][:len(q)]
		d := 0
		for k, w := range q {
			d += bits.OnesCount64(w ^ row[k])
		}
		apart[i] = uint16(d)
		count[d]++
	}
	want := max(rescored, n)
	limit, sum := uint16(0), 0
	for limit = 0; limit < far; limit++ {
		if sum += count[limit]; sum >= want {
			break
		}
	}
	var norm float64
	for _, x := range v {
		norm += float64(x) * float64(x)
	}
	inv := float32(1 / math.Sqrt(norm))
	hits := make([]scored, 0, max(sum, 1))
	dims := s.space.Dims
	for i, a := range apart {
		if a > limit {
			continue
		}
		row := s.bytes[i*dims : (i+1)*dims]
		var dot float32
		for k, x := range v {
			dot += x * float32(row[k])
		}
		hits = append(hits, scored{uint32(i), dot * s.docs[i].scale * inv})
	}
	return best(hits, n)
}

// containing scores every chunk that holds one of the words.
func (s *shelf) containing(terms []string, project string, n int) []scored {
	bm := retrieval.BM25{Chunks: s.live, AvgLen: float64(s.length) / float64(max(1, s.live))}
	score := make([]float32, len(s.docs))
	size := 0
	for _, t := range terms {
		size += len(s.words[t])
	}
	touched := make([]uint32, 0, min(size, len(s.docs)))
	for _, t := range terms {
		list := s.words[t]
		having := 0
		for _, p := range list {
			if s.terms[p.doc] != dead {
				having++
			}
		}
		idf := bm.IDF(having)
		for _, p := range list {
			if !s.passes(p.doc, project) {
				continue
			}
			if score[p.doc] == 0 {
				touched = append(touched, p.doc)
			}
			score[p.doc] += float32(bm.Score(idf, int(p.tf), int(s.terms[p.doc])))
		}
	}
	// Only what reaches the n-th best is sorted: of a common word there are tens of thousands.
	top := make([]scored, 0, 4*n+1)
	floor := float32(0)
	for _, d := range touched {
		if score[d] < floor {
			continue
		}
		if top = append(top, scored{d, score[d]}); len(top) > 4*n {
			top = best(top, n)
			floor = top[len(top)-1].score
		}
	}
	return best(top, n)
}

// rotator turns vectors, all in the same ways, so that the sign of every number says as much as any other: signs of the vectors as they come would say
// little where most numbers are zero. One way is to flip signs by a fixed pattern and apply the Walsh-Hadamard transform, twice. With one way, the signs of
// numbers that differ little from each other would tell too few of the nearest from the rest.
type rotator struct {
	size  int // a power of two, at least 64
	flips [ways][2][]float32
}

const ways = 2

func newRotator(dims int) rotator {
	r := rotator{size: max(64, 1<<bits.Len(uint(dims-1)))}
	state := uint64(0x9e3779b97f4a7c15) // any constant does, as signs are written to no file
	for w := range r.flips {
		for k := range r.flips[w] {
			r.flips[w][k] = make([]float32, r.size)
			for i := range r.flips[w][k] {
				state ^= state << 13
				state ^= state >> 7
				state ^= state << 17
				r.flips[w][k][i] = 1 - 2*float32(state>>33&1)
			}
		}
	}
	return r
}

func (r *rotator) words() int { return ways * r.size / 64 }

func (r *rotator) signs(v []float32) []uint64 {
	out := make([]uint64, 0, r.words())
	x := make([]float32, r.size)
	for w := range r.flips {
		clear(x)
		copy(x, v)
		for _, flips := range r.flips[w] {
			for i, f := range flips {
				x[i] *= f
			}
			for h := 1; h < len(x); h *= 2 {
				for i := 0; i < len(x); i += 2 * h {
					a, b := x[i:i+h], x[i+h:i+2*h]
					for j := range a {
						a[j], b[j] = a[j]+b[j], a[j]-b[j]
					}
				}
			}
		}
		var word uint64
		for i, f := range x {
			word = word>>1 | uint64(^math.Float32bits(f)>>31)<<63
			if i%64 == 63 {
				out = append(out, word)
			}
		}
	}
	return out
}

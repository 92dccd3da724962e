package demo

import (
	"crypto/sha256"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/chat"
)

// lookback is how many blocks before a mark an earlier entry is searched for, as providers document it.
const lookback = 20

type digest = [sha256.Size]byte

// promptCache simulates a provider's prompt cache: which prefixes each key has written, and until when they live.
type promptCache struct {
	clock func() time.Time
	mu    sync.Mutex
	known *lru.Cache[digest, entry]
}

type entry struct {
	ttl   time.Duration
	until time.Time
}

func newPromptCache(size int, clock func() time.Time) (*promptCache, error) {
	c, err := lru.New[digest, entry](size)
	if err != nil {
		return nil, err
	}
	return &promptCache{clock: clock, known: c}, nil
}

// account counts the prompt's tokens (bytes/4) into disjoint buckets and remembers the marked prefixes for next time.
func (p *promptCache) account(owner digest, prompt []chunk) chat.Usage {
	// ends[i] is the size of the prompt up to and including block i; sums[i] identifies that prefix for this key.
	ends := make([]int64, len(prompt))
	sums := make([]digest, len(prompt))
	at, prev := int64(0), owner
	for i, c := range prompt {
		at += int64(len(c.bytes))
		ends[i] = at
		prev = sha256.Sum256(append(prev[:], c.bytes...))
		sums[i] = prev
	}
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()

	hit := -1 // last block that is read from the cache
	for i, c := range prompt {
		if c.mark == chat.NoCache {
			continue
		}
		for j := i; j >= 0 && j > i-lookback && j > hit; j-- {
			if e, ok := p.known.Get(sums[j]); ok && now.Before(e.until) {
				e.until = now.Add(e.ttl)
				p.known.Add(sums[j], e)
				hit = j
				break
			}
		}
	}
	var u chat.Usage
	from := int64(0)
	if hit >= 0 {
		u.CacheRead = ends[hit] / 4
		from = ends[hit]
	}
	for i := hit + 1; i < len(prompt); i++ {
		ttl := 5 * time.Minute
		// The floors are of cumulative sizes, so that the buckets add up exactly.
		n := ends[i]/4 - from/4
		switch prompt[i].mark {
		case chat.Cache1h:
			u.CacheWrite1h += n
			ttl = time.Hour
		case chat.Cache5m:
			u.CacheWrite5m += n
		default:
			continue
		}
		from = ends[i]
		p.known.Add(sums[i], entry{ttl, now.Add(ttl)})
	}
	u.Input = at/4 - from/4
	return u
}

package main

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// sample is what one or more slices on one target showed.
type sample struct {
	requests int64
	elapsed  time.Duration // until the last answer
	drained  time.Duration // and until the gateway owed its databases nothing any more
	cpu      time.Duration // of the target's process, drain included
	allocs   int64         // heap objects, drain included
	bytes    int64         // heap bytes, drain included
	took     []time.Duration
}

func (s *sample) add(o *sample) {
	s.requests += o.requests
	s.elapsed += o.elapsed
	s.drained += o.drained
	s.cpu += o.cpu
	s.allocs += o.allocs
	s.bytes += o.bytes
	s.took = append(s.took, o.took...)
}

func (s *sample) rate() float64      { return float64(s.requests) / s.elapsed.Seconds() }
func (s *sample) sustained() float64 { return float64(s.requests) / s.drained.Seconds() }
func (s *sample) cpuMS() float64     { return s.cpu.Seconds() * 1000 / float64(s.requests) }
func (s *sample) mallocs() float64   { return float64(s.allocs) / float64(s.requests) }
func (s *sample) kib() float64       { return float64(s.bytes) / 1024 / float64(s.requests) }

// quantile is in milliseconds.
func (s *sample) quantile(q float64) float64 {
	slices.Sort(s.took)
	return s.took[min(len(s.took)-1, int(q*float64(len(s.took))))].Seconds() * 1000
}

// slices sends one request over and over on each of conns connections for a while, one after the other on each. Every answer
// must be a whole 200.
func (b *bench) slices(t *target, request []byte, conns int, length time.Duration) (*sample, error) {
	before, err := t.state(b.ctx)
	if err != nil {
		return nil, err
	}
	clients := make([]*client, conns)
	for i := range clients {
		if clients[i], err = dial(t.addr); err != nil {
			return nil, err
		}
		defer clients[i].close()
	}
	s := &sample{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed atomic.Bool
	begin := time.Now()
	deadline := begin.Add(length)
	for _, c := range clients {
		wg.Go(func() {
			took := make([]time.Duration, 0, 4096)
			var problem error
			for now := time.Now(); now.Before(deadline) && problem == nil && !failed.Load() && b.ctx.Err() == nil; {
				problem = c.do(request)
				end := time.Now()
				took = append(took, end.Sub(now))
				now = end
			}
			mu.Lock()
			defer mu.Unlock()
			s.took = append(s.took, took...)
			s.requests += int64(len(took))
			if problem != nil {
				failed.Store(true)
				err = problem
			}
		})
	}
	wg.Wait()
	s.elapsed = time.Since(begin)
	s.drained = s.elapsed
	if err == nil {
		err = b.ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if t.gw != nil {
		if err := t.gw.settle(b.ctx); err != nil {
			return nil, err
		}
		s.drained = time.Since(begin)
	}
	after, err := t.state(b.ctx)
	if err != nil {
		return nil, err
	}
	s.cpu, s.allocs, s.bytes = after.cpu-before.cpu, after.allocs-before.allocs, after.bytes-before.bytes
	return s, nil
}

// hangUps streams paced answers and lets some clients leave in the middle; it returns how many left.
func (b *bench) hangUps(t *target) (int64, error) {
	request := b.request(t, 10, paced)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	var left, number atomic.Int64
	deadline := time.Now().Add(2 * b.slice)
	for range b.conns {
		wg.Go(func() {
			var c *client
			var err error
			defer func() {
				if c != nil {
					c.close()
				}
				if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}()
			for time.Now().Before(deadline) && b.ctx.Err() == nil {
				if c == nil {
					if c, err = dial(t.addr); err != nil {
						return
					}
				}
				// Every hundred requests the same share leaves, spread evenly.
				n := number.Add(1)
				if int(n*37%100) >= b.hangups {
					if err = c.do(request); err != nil {
						return
					}
					continue
				}
				if err = c.leave(request); err != nil {
					return
				}
				left.Add(1)
				c.close()
				c = nil
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return 0, failed
	}
	return left.Load(), t.gw.settle(b.ctx)
}

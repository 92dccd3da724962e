package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// seats are the clients of a load run: each holds one stream at a time and asks for the next when it has ended. One thread serves them all: a goroutine
// for each client would take the core the gateway is to be measured on.
//
// Some of the clients are timed: they read each event when it comes, and its delay is taken. The others, as most clients on a machine of their own
// would, cost this one as little as they can: they read what has gathered every slack, and check that it is whole. Which ones are timed is no
// matter to the gateway, which cannot tell them apart.
type seats struct {
	addr    *unix.SockaddrInet4
	request []byte
	texts   int // text events of a whole answer
	hangups int // of a hundred streams
	timed   int // of a hundred clients
	poll    int
	all     []*seat
	byFD    map[int32]*seat
	buf     []byte
	rng     *rand.Rand

	measuring atomic.Bool // whether what comes now counts
	running   atomic.Int64
	done      atomic.Int64 // whole streams
	left      atomic.Int64 // streams hung up on
	delay     histogram    // of events, beyond the upstream
	first     histogram    // of first bytes, likewise
}

// seat is one client.
type seat struct {
	fd      int
	timed   bool
	asked   int64  // when the request was written
	leaveAt int    // hang up after so many events; 0: not
	got     int    // text events of the current stream
	head    bool   // the response's head is behind us
	size    int    // bytes left of the current chunk, with its line end
	line    []byte // the beginning of a line of an event
	part    []byte // the beginning of a line around chunks
	last    bool   // the last chunk came, its empty line has not
	ended   bool   // message_stop came
	open    bool   // a stream is under way
}

// newSeats prepares n clients of the server at addr, none of them seated.
func newSeats(addr string, n int, request []byte, texts, hangups, timed int) (*seats, error) {
	tcp, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return nil, err
	}
	s := &seats{addr: &unix.SockaddrInet4{Port: tcp.Port, Addr: [4]byte(tcp.IP.To4())}, request: request, texts: texts, hangups: hangups, timed: timed,
		byFD: map[int32]*seat{}, buf: make([]byte, 64<<10), rng: rand.New(rand.NewPCG(1, uint64(n)))}
	if s.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	for i := range n {
		s.all = append(s.all, &seat{fd: -1, timed: i*37%100 < timed})
	}
	return s, nil
}

func (s *seats) close() {
	for _, c := range s.all {
		s.hangUp(c)
	}
	_ = unix.Close(s.poll)
}

func (s *seats) hangUp(c *seat) {
	if c.fd >= 0 {
		delete(s.byFD, int32(c.fd))
		_ = unix.Close(c.fd)
		c.fd = -1
	}
	if c.open {
		c.open = false
		s.running.Add(-1)
	}
}

// ask begins a seat's next stream, on its connection when it has one.
func (s *seats) ask(c *seat) error {
	if c.fd < 0 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = errors.Join(unix.Connect(fd, s.addr), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.SetNonblock(fd, true))
		if err == nil && c.timed {
			err = unix.EpollCtl(s.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
		}
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		c.fd = fd
		s.byFD[int32(fd)] = c
	}
	*c = seat{fd: c.fd, timed: c.timed, line: c.line[:0], part: c.part[:0], open: true, asked: stamp()}
	if s.rng.IntN(100) < s.hangups {
		c.leaveAt = 1 + s.rng.IntN(s.texts-1)
	}
	s.running.Add(1)
	for rest := s.request; len(rest) > 0; {
		n, err := unix.Write(c.fd, rest)
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// slack is how long clients that are not timed let their answers gather, and nap how long the timed ones wait for company, which is part of the delays
// that are reported.
const (
	slack = 100 * time.Millisecond
	nap   = 500 * time.Microsecond
)

// run seats the clients over ramp, evenly, and keeps them busy until last; from then on a stream that ends is the seat's last. It returns when
// no stream is left.
func (s *seats) run(ramp time.Duration, last <-chan struct{}) error {
	begin := time.Now()
	ready := make([]unix.EpollEvent, 256)
	seated, leaving := 0, false
	next, turned := 0, begin // the seat the round of those that are not timed is at, and when it got there
	for {
		for ; seated < len(s.all) && !leaving && time.Since(begin) >= ramp*time.Duration(seated)/time.Duration(len(s.all)); seated++ {
			if err := s.ask(s.all[seated]); err != nil {
				return err
			}
		}
		select {
		case <-last:
			leaving = true
		default:
		}
		if leaving && s.running.Load() == 0 {
			return nil
		}
		n, err := unix.EpollWait(s.poll, ready, 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for i := range max(n, 0) {
			if err := s.serve(s.byFD[ready[i].Fd], leaving); err != nil {
				return err
			}
		}
		due := int(time.Since(turned) * time.Duration(len(s.all)) / slack)
		turned = turned.Add(time.Duration(due) * slack / time.Duration(len(s.all)))
		for range min(due, len(s.all)) {
			if c := s.all[next]; c.open && !c.timed {
				if err := s.serve(c, leaving); err != nil {
					return err
				}
			}
			next = (next + 1) % len(s.all)
		}
		if n < len(ready) {
			time.Sleep(nap)
		}
	}
}

// serve lets a client read, and ask again when its answer is over.
func (s *seats) serve(c *seat, leaving bool) error {
	if c == nil { // hung up on by an event of this batch
		return nil
	}
	again, err := s.hear(c)
	if err != nil {
		return fmt.Errorf("a stream after %d of %d events: %w", c.got, s.texts, err)
	}
	if again && !leaving {
		return s.ask(c)
	}
	return nil
}

// hear reads what a seat's connection has; again says that its stream is over.
func (s *seats) hear(c *seat) (again bool, err error) {
	n, err := unix.Read(c.fd, s.buf)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false, nil
	case err != nil:
		return false, err
	case n == 0:
		if !c.open {
			s.hangUp(c)
			return false, nil
		}
		return false, errors.New("the connection ended in the middle")
	}
	now := stamp()
	over, err := c.feed(s.buf[:n], s, now)
	switch {
	case err != nil:
		return false, err
	case over && (!c.ended || c.got != s.texts):
		return false, errors.New("the answer ended early")
	case over:
		c.open = false
		s.running.Add(-1)
		s.done.Add(1)
		return true, nil
	case c.leaveAt > 0 && c.got >= c.leaveAt:
		s.hangUp(c)
		s.left.Add(1)
		return true, nil
	}
	return false, nil
}

// feed takes the next bytes of an answer; over says that its last chunk came.
func (c *seat) feed(b []byte, s *seats, now int64) (over bool, err error) {
	for len(b) > 0 {
		if c.size > 2 { // within a chunk
			n := min(len(b), c.size-2)
			if err := c.lines(b[:n], s, now); err != nil {
				return false, err
			}
			b, c.size = b[n:], c.size-n
			continue
		}
		if c.size > 0 { // its line end
			n := min(len(b), c.size)
			b, c.size = b[n:], c.size-n
			continue
		}
		// A line of the head, or the length of a chunk.
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			c.part = append(c.part, b...)
			return false, nil
		}
		line := b[:i]
		if len(c.part) > 0 {
			c.part = append(c.part, line...)
			line, c.part = c.part, c.part[:0]
		}
		line = bytes.TrimRight(line, "\r")
		b = b[i+1:]
		switch {
		case c.last:
			return true, nil
		case !c.head:
			if bytes.HasPrefix(line, []byte("HTTP/1.1 ")) && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
				return false, fmt.Errorf("answered %q %s", line, b)
			}
			c.head = len(line) == 0
			continue
		}
		n, err := strconv.ParseInt(string(line), 16, 32)
		if err != nil {
			return false, err
		}
		if c.last = n == 0; !c.last {
			c.size = int(n) + 2
		}
	}
	return false, nil
}

// lines takes the next bytes within a chunk: lines of events, which may go on in the next.
func (c *seat) lines(b []byte, s *seats, now int64) error {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			c.line = append(c.line, b...)
			return nil
		}
		line := b[:i]
		if len(c.line) > 0 {
			c.line = append(c.line, line...)
			line, c.line = c.line, c.line[:0]
		}
		b = b[i+1:]
		if err := c.heard(line, s, now); err != nil {
			return err
		}
	}
	return nil
}

// heard notes what one line of an event says.
func (c *seat) heard(line []byte, s *seats, now int64) error {
	data, ok := bytes.CutPrefix(line, []byte(`data: {"type":"`))
	if !ok {
		return nil
	}
	switch kind, _, _ := bytes.Cut(data, []byte(`"`)); string(kind) {
	case "content_block_delta":
		c.got++
		at := bytes.LastIndex(data, []byte(stampMark)) + len(stampMark)
		if at < len(stampMark) || at+stampLen > len(data) {
			return fmt.Errorf("an event without its stamp: %s", line)
		}
		sent, err := strconv.ParseInt(string(data[at:at+stampLen]), 10, 64)
		if err != nil {
			return err
		}
		if c.timed && s.measuring.Load() {
			s.delay.add(now - sent)
		}
	case "message_start":
		_, rest, _ := bytes.Cut(data, []byte(`"took":`))
		digits, _, _ := bytes.Cut(rest, []byte(","))
		took, err := strconv.ParseInt(string(digits), 10, 64)
		if err != nil {
			return err
		}
		if c.timed && s.measuring.Load() {
			s.first.add(now - c.asked - took)
		}
	case "message_stop":
		c.ended = true
	case "error":
		return fmt.Errorf("the answer says %s", line)
	}
	return nil
}

// histogram counts times by tenths of a millisecond.
type histogram struct {
	counts [20_001]int64 // the last: two seconds and more
	n      int64
	most   int64
}

func (h *histogram) add(ns int64) {
	h.counts[min(max(ns, 0)/100_000, int64(len(h.counts)-1))]++
	h.n++
	h.most = max(h.most, ns)
}

// quantile is in milliseconds, rounded up to the next tenth.
func (h *histogram) quantile(q float64) float64 {
	left := int64(q * float64(h.n))
	for i, c := range h.counts {
		if left -= c; left < 0 {
			return float64(i+1) / 10
		}
	}
	return float64(h.most) / 1e6
}

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// epoch ties wall time to the monotonic clock once, so that a step of the wall clock moves no figure.
var epoch = time.Now() //nolint:gochecknoglobals // set once, never changed

// stamp is the time in nanoseconds since 1970 by this process's monotonic clock. It has nineteen digits until the year 2286.
func stamp() int64 { return epoch.UnixNano() + int64(time.Since(epoch)) }

// stampLen is how many digits a stamp has, and stampMark what stands before one in an event.
const (
	stampLen  = 19
	stampMark = `"t":`
)

// feeder is an upstream of many slow streams. All of them are written by one goroutine that walks through slots of a millisecond: a goroutine and a
// timer for each would cost the core more than what is measured. Every event carries the time it was written at, in a member no protocol
// knows, which a gateway passes on as it passes on everything else; so the delay of each event is measured on one clock.
//
// Like the real one it bills the input when it begins to answer and the output it has announced so far.
type feeder struct {
	*upstream
	gap   time.Duration
	slots [][]*feed // by the millisecond of a gap in which their events are due
	mu    sync.Mutex
	stop  chan struct{}
	ended chan struct{}

	sent atomic.Int64 // text events written
}

// feed is one stream under way.
type feed struct {
	conn  net.Conn
	read  int64 // when the request had been read
	used  tally
	ours  bool
	next  int // of the texts; -1: the head
	ended chan error
}

// startFeeder answers each request with events text events, one every gap.
func startFeeder(events int, gap time.Duration) (*feeder, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &feeder{upstream: &upstream{ln: ln, conns: map[net.Conn]bool{}}, gap: gap, slots: make([][]*feed, max(1, gap.Milliseconds())),
		stop: make(chan struct{}), ended: make(chan struct{})}
	words := strings.Fields(prose(20 * events))
	for i := range events {
		text := words[3*i%len(words)] + " " + words[(3*i+1)%len(words)] + " " + words[(3*i+2)%len(words)] + " "
		f.texts = append(f.texts, event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+strconv.Quote(text)+`},`+stampMark+strings.Repeat("1", stampLen)+`}`))
	}
	f.serveStream = f.take
	f.done.Go(f.accept)
	go f.pump()
	return f, nil
}

func (f *feeder) close() {
	close(f.stop)
	<-f.ended
	f.upstream.close()
}

// take reads one request, puts its answer on the slot with the least to do and waits for its end.
func (f *feeder) take(c net.Conn, r *bufio.Reader) error {
	length, ours, err := requestHead(r)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, r, int64(length)); err != nil {
		return err
	}
	s := &feed{conn: c, read: stamp(), ours: ours, used: tally{1, int64(length/4 + 1), int64(length % 1000), 7}, next: -1, ended: make(chan error, 1)}
	f.count(ours, s.used)
	f.mu.Lock()
	least := 0
	for i := range f.slots {
		if len(f.slots[i]) < len(f.slots[least]) {
			least = i
		}
	}
	f.slots[least] = append(f.slots[least], s)
	f.mu.Unlock()
	select {
	case err := <-s.ended:
		return err
	case <-f.ended:
		return net.ErrClosed
	}
}

// pump writes what is due, slot after slot. When it falls behind it catches up: events then come late, which is nobody's fault but its own, and their
// stamps say when they really left.
func (f *feeder) pump() {
	defer close(f.ended)
	step := f.gap / time.Duration(len(f.slots))
	due := time.Now()
	buf := make([]byte, 0, 4096)
	for turn := 0; ; turn++ {
		select {
		case <-f.stop:
			return
		default:
		}
		due = due.Add(step)
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		i := turn % len(f.slots)
		f.mu.Lock()
		slot := f.slots[i]
		f.mu.Unlock()
		kept := 0
		for k, s := range slot {
			var err error
			if buf, err = f.write(s, buf[:0]); err == nil && s.next <= len(f.texts) {
				slot[kept] = slot[k]
				kept++
				continue
			}
			s.ended <- err
		}
		f.mu.Lock() // others only append
		f.slots[i] = append(slot[:kept], f.slots[i][len(slot):]...)
		f.mu.Unlock()
	}
}

// write sends a stream's next event.
func (f *feeder) write(s *feed, buf []byte) ([]byte, error) {
	now := stamp()
	switch {
	case s.next < 0:
		buf = append(buf, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nRequest-Id: req_bench\r\nTransfer-Encoding: chunked\r\n\r\n"...)
		buf = append(buf, event("message_start", fmt.Sprintf(`{"type":"message_start","took":%d,"message":{"id":"msg_bench","type":"message","role":"assistant","model":"claude-bench","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d,"output_tokens":%d}}}`,
			now-s.read, s.used.input, s.used.cacheRead, s.used.output))...)
		buf = append(buf, event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)...)
	case s.next < len(f.texts):
		buf = append(buf, f.texts[s.next]...)
		strconv.AppendInt(buf[:len(buf)-len("}\n\n\r\n")-stampLen], now, 10)
		f.sent.Add(1)
	default:
		final := int64(3*len(f.texts)) + s.used.output
		f.count(s.ours, tally{output: final - s.used.output})
		buf = append(buf, event("content_block_stop", `{"type":"content_block_stop","index":0}`)...)
		buf = append(buf, event("message_delta", fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":%d}}`, final))...)
		buf = append(buf, event("message_stop", `{"type":"message_stop"}`)...)
		buf = append(buf, "0\r\n\r\n"...)
	}
	s.next++
	_, err := s.conn.Write(buf)
	return buf, err
}

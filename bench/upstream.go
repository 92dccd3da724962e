package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// orgKey is the provider key of the benchmarked organisation: a request that carries it came through the gateway.
const orgKey = "sk-ant-bench-0000000000000000"

// kind is how an answer comes, told to the upstream in the body's metadata.
type kind string

const (
	whole kind = "whole"
	burst kind = "burst" // a stream without pauses
	paced kind = "paced" // a stream with a pause before every event
)

// tally is what was used, on either side.
type tally struct{ attempts, input, cacheRead, output int64 }

// upstream answers like the Messages API, at once and at the least cost, and counts what it billed the gateway for. Like the
// real one it bills the input when it begins to answer and the output it has announced so far.
type upstream struct {
	ln    net.Listener
	pace  time.Duration
	texts [][]byte // the text events of a stream, framed as chunks
	done  sync.WaitGroup

	serveStream func(net.Conn, *bufio.Reader) error // answers one request; nil: at once, or at the pace

	mu    sync.Mutex
	conns map[net.Conn]bool
	shut  bool

	attempts, input, cacheRead, output atomic.Int64
}

func startUpstream(events int, pace time.Duration) (*upstream, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u := &upstream{ln: ln, pace: pace, conns: map[net.Conn]bool{}}
	words := strings.Fields(prose(20 * events))
	for i := range events {
		text := words[3*i%len(words)] + " " + words[(3*i+1)%len(words)] + " " + words[(3*i+2)%len(words)] + " "
		u.texts = append(u.texts, event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+strconv.Quote(text)+`}}`))
	}
	u.done.Go(u.accept)
	return u, nil
}

func (u *upstream) addr() string { return u.ln.Addr().String() }

func (u *upstream) told() tally {
	return tally{u.attempts.Load(), u.input.Load(), u.cacheRead.Load(), u.output.Load()}
}

// close ends the listener and every connection and waits for them.
func (u *upstream) close() {
	_ = u.ln.Close()
	u.mu.Lock()
	u.shut = true
	for c := range u.conns {
		_ = c.Close()
	}
	u.mu.Unlock()
	u.done.Wait()
}

func (u *upstream) accept() {
	for {
		c, err := u.ln.Accept()
		if err != nil {
			return
		}
		u.mu.Lock()
		if u.shut {
			u.mu.Unlock()
			_ = c.Close()
			return
		}
		u.conns[c] = true
		u.mu.Unlock()
		u.done.Go(func() {
			u.serve(c)
			u.mu.Lock()
			delete(u.conns, c)
			u.mu.Unlock()
			_ = c.Close()
		})
	}
}

// serve answers one connection until it ends.
func (u *upstream) serve(c net.Conn) {
	r := bufio.NewReaderSize(c, 32<<10)
	var body, out []byte
	for {
		if u.serveStream != nil {
			if u.serveStream(c, r) != nil {
				return
			}
			continue
		}
		length, ours, err := requestHead(r)
		if err != nil {
			return
		}
		if cap(body) < length {
			body = make([]byte, length)
		}
		body = body[:length]
		if _, err := io.ReadFull(r, body); err != nil {
			return
		}
		how := kindOf(body)
		used := tally{1, int64(length/4 + 1), int64(length % 1000), 7}
		if how == whole {
			used.output = 260
			out = append(out[:0], "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nRequest-Id: req_bench\r\nContent-Length: "...)
			doc := wholeAnswer(used)
			out = strconv.AppendInt(out, int64(len(doc)), 10)
			out = append(append(out, "\r\n\r\n"...), doc...)
			u.count(ours, used)
			if _, err := c.Write(out); err != nil {
				return
			}
			continue
		}
		u.count(ours, used)
		if err := u.stream(c, how, used, ours); err != nil {
			return
		}
	}
}

func (u *upstream) count(ours bool, t tally) {
	if !ours {
		return
	}
	u.attempts.Add(t.attempts)
	u.input.Add(t.input)
	u.cacheRead.Add(t.cacheRead)
	u.output.Add(t.output)
}

func (u *upstream) stream(c net.Conn, how kind, used tally, ours bool) error {
	// A stream that began in the instant the request was complete would break the yardstick now and then: its server closes the
	// request's body when the answer begins, and its transport takes that for a failed upload if it has not looked for the end yet.
	time.Sleep(u.pace)
	head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nRequest-Id: req_bench\r\nTransfer-Encoding: chunked\r\n\r\n"
	start := event("message_start", fmt.Sprintf(`{"type":"message_start","message":{"id":"msg_bench","type":"message","role":"assistant","model":"claude-bench","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d,"output_tokens":%d}}}`, used.input, used.cacheRead, used.output))
	if _, err := c.Write(append(append([]byte(head), start...), event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)...)); err != nil {
		return err
	}
	for _, t := range u.texts {
		if how == paced {
			time.Sleep(u.pace)
		}
		if _, err := c.Write(t); err != nil {
			return err
		}
	}
	final := int64(3*len(u.texts)) + used.output
	u.count(ours, tally{output: final - used.output})
	var end []byte
	end = append(end, event("content_block_stop", `{"type":"content_block_stop","index":0}`)...)
	end = append(end, event("message_delta", fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":%d}}`, final))...)
	end = append(end, event("message_stop", `{"type":"message_stop"}`)...)
	end = append(end, "0\r\n\r\n"...)
	_, err := c.Write(end)
	return err
}

func wholeAnswer(t tally) string {
	return fmt.Sprintf(`{"id":"msg_bench","type":"message","role":"assistant","model":"claude-bench","content":[{"type":"text","text":%s}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d,"output_tokens":%d}}`, answerText, t.input, t.cacheRead, t.output)
}

// event is one event of a stream, framed as one chunk.
func event(name, data string) []byte {
	e := "event: " + name + "\ndata: " + data + "\n\n"
	return []byte(strconv.FormatInt(int64(len(e)), 16) + "\r\n" + e + "\r\n")
}

// requestHead reads a request's head: the length of its body, and whether the gateway sent it.
func requestHead(r *bufio.Reader) (length int, ours bool, err error) {
	length = -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			if length < 0 {
				return 0, false, errors.New("a request without a length")
			}
			return length, ours, nil
		}
		if first {
			continue
		}
		switch name, value, _ := bytes.Cut(line, []byte(":")); {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil || length < 0 || length > 64<<20 {
				return 0, false, errors.New("a request with a bad length")
			}
		case bytes.EqualFold(name, []byte("X-Api-Key")):
			ours = string(bytes.TrimSpace(value)) == orgKey
		}
	}
}

// kindOf reads the marker that request bodies begin with.
func kindOf(body []byte) kind {
	head := body[:min(len(body), 200)]
	for _, k := range []kind{burst, paced} {
		if bytes.Contains(head, []byte(`"`+string(k)+`"`)) {
			return k
		}
	}
	return whole
}

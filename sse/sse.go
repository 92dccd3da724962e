// Package sse owns the framing of event streams: bytes to events and back, after the WHATWG server-sent events
// specification.
//
// It refuses to know HTTP, JSON and what any event means; a stream that stops early is for its caller to judge.
//
// Invariants: lines are split on ASCII bytes only, so a character cut between two reads is never damaged; how the bytes
// were cut into reads never changes the events; an event is written by one call of Write, so no other bytes can land
// inside it.
package sse

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"time"
)

// MaxEvent is how many bytes one event may have before the Reader gives up.
const MaxEvent = 16 << 20

// ErrTooLong says that an event is larger than the Reader accepts.
var ErrTooLong = errors.New("event is longer than the limit")

// Event is one dispatched event. Data aliases the Reader's buffer until the next call of Next; the strings are safe to
// keep.
type Event struct {
	Name    string // "message" when the stream gave none
	Data    []byte // the data lines joined by LF; may be empty
	ID      string // the last event id seen so far on the stream
	Partial bool   // the stream ended before the blank line; only with DeliverFinal
}

// Option changes a Reader.
type Option func(*Reader)

// DeliverFinal makes the Reader deliver a last event that the stream did not terminate with a blank line, marked
// Partial. The specification discards it; many producers forget the blank line.
func DeliverFinal() Option { return func(r *Reader) { r.deliverFinal = true } }

// WithMaxEvent replaces MaxEvent; n is in bytes.
func WithMaxEvent(n int) Option { return func(r *Reader) { r.max = n } }

// Reader parses an event stream. It is not safe for concurrent use.
type Reader struct {
	src          io.Reader
	max          int
	deliverFinal bool

	buf        []byte
	start, end int // unread bytes that still matter are buf[start:end]
	pos        int // start of the line being looked for
	lf         int // position of a known LF at or after pos, or -1
	lfSeen     int // no LF in buf[pos:lfSeen] when lf is -1
	crSeen     int // no CR in buf[pos:crSeen]
	skipLF     bool
	sawLine    bool // the first line, which may carry a byte order mark, is behind us
	err        error

	id       string
	lastName string
	retry    time.Duration
	hasRetry bool
	joined   []byte // data of events with more than one data line
}

// NewReader returns a Reader of src.
func NewReader(src io.Reader, opts ...Option) *Reader {
	r := &Reader{src: src, max: MaxEvent, lf: -1}
	for _, o := range opts {
		o(r)
	}
	return r
}

// Retry returns the reconnection time the stream last asked for, and whether it asked.
func (r *Reader) Retry() (time.Duration, bool) { return r.retry, r.hasRetry }

// More reports whether a further whole event has been read already, so that Next will not wait for the source. It may miss one
// whose lines do not end in LF alone.
func (r *Reader) More() bool { return bytes.Contains(r.buf[r.pos:r.end], []byte("\n\n")) }

// Next returns the next event. At the end of the stream it returns io.EOF, and any other error of the source as it is;
// ErrTooLong is final.
func (r *Reader) Next() (Event, error) {
	if r.err == ErrTooLong {
		return Event{}, r.err
	}
	name := ""
	lines := 0      // data lines so far
	off, n := 0, 0  // the only data line, relative to start
	r.start = r.pos // what the last event aliased is no longer needed
	data := r.joined[:0]
	finish := func(partial bool) Event {
		d := data
		if lines == 1 {
			d = r.buf[r.start+off : r.start+off+n]
		}
		if name == "" {
			name = "message"
		}
		return Event{Name: name, Data: d, ID: r.id, Partial: partial}
	}
	for {
		from, to, err := r.line()
		if err != nil {
			if err == io.EOF && r.deliverFinal && lines > 0 {
				return finish(true), nil
			}
			return Event{}, err
		}
		line := r.buf[from:to]
		if len(line) == 0 {
			if lines > 0 {
				return finish(false), nil
			}
			name = ""
			r.start = r.pos
			continue
		}
		field, value := cutField(line)
		switch string(field) {
		case "data":
			switch lines {
			case 0:
				off, n = to-len(value)-r.start, len(value)
			case 1:
				data = append(data, r.buf[r.start+off:r.start+off+n]...)
				fallthrough
			default:
				data = append(data, '\n')
				data = append(data, value...)
				r.joined = data
				if len(data) > r.max {
					r.err = ErrTooLong
					return Event{}, r.err
				}
			}
			lines++
		case "event":
			name = r.intern(value)
		case "id":
			if bytes.IndexByte(value, 0) < 0 && string(value) != r.id {
				r.id = string(value)
			}
		case "retry":
			if ms, ok := digits(value); ok {
				r.retry, r.hasRetry = time.Duration(ms)*time.Millisecond, true
			}
		}
		if lines != 1 {
			r.start = r.pos
		}
	}
}

// line finds the next line and moves pos behind it. The range is valid until the next call. At the end of the source an
// unterminated line is returned once when the Reader delivers final events, and dropped otherwise.
func (r *Reader) line() (from, to int, err error) {
	for {
		if r.skipLF && r.pos < r.end {
			r.skipLF = false
			if r.buf[r.pos] == '\n' {
				r.pos++
				r.lf = -1
				if r.start == r.pos-1 {
					r.start = r.pos
				}
			}
		}
		if r.lf < r.pos {
			r.lf = -1
			s := max(r.pos, r.lfSeen)
			if i := bytes.IndexByte(r.buf[s:r.end], '\n'); i >= 0 {
				r.lf, r.lfSeen = s+i, s+i
			} else {
				r.lfSeen = r.end
			}
		}
		limit := r.end
		if r.lf >= 0 {
			limit = r.lf
		}
		s := max(r.pos, r.crSeen)
		from, to = r.pos, limit
		if i := bytes.IndexByte(r.buf[s:max(s, limit)], '\r'); i >= 0 {
			to = s + i
			r.pos = to + 1
			r.skipLF = true
			return r.first(from), to, nil
		}
		r.crSeen = limit
		if r.lf >= 0 {
			r.pos = r.lf + 1
			return r.first(from), to, nil
		}
		if r.err != nil {
			if r.err == io.EOF && r.deliverFinal && r.pos < r.end {
				r.pos = r.end
				return r.first(from), to, nil
			}
			return 0, 0, r.err
		}
		if err := r.fill(); err != nil {
			return 0, 0, err
		}
	}
}

// first steps over a byte order mark at the very start of the stream.
func (r *Reader) first(from int) int {
	if !r.sawLine {
		r.sawLine = true
		if bytes.HasPrefix(r.buf[from:r.end], []byte("\xef\xbb\xbf")) && from+3 <= r.pos {
			return from + 3
		}
	}
	return from
}

// fill reads more bytes behind end, moving or growing the buffer when it is full.
func (r *Reader) fill() error {
	if r.end-r.start > r.max {
		r.err = ErrTooLong
		return r.err
	}
	if r.start > 0 && (r.start == r.end || len(r.buf)-r.end < 512) {
		n := r.start
		copy(r.buf, r.buf[n:r.end])
		r.start, r.end, r.pos = 0, r.end-n, r.pos-n
		r.lfSeen, r.crSeen = max(0, r.lfSeen-n), max(0, r.crSeen-n)
		r.lf = -1
	}
	if len(r.buf)-r.end < 512 {
		size := max(4096, 2*len(r.buf))
		b := make([]byte, size)
		copy(b, r.buf[:r.end])
		r.buf = b
	}
	for range 100 {
		n, err := r.src.Read(r.buf[r.end:])
		r.end += n
		if err != nil {
			r.err = err
		}
		if n > 0 || err != nil {
			return nil
		}
	}
	r.err = io.ErrNoProgress
	return nil
}

// intern returns the event name without allocating for the names providers send all the time.
func (r *Reader) intern(b []byte) string {
	switch string(b) {
	case "content_block_delta":
		return "content_block_delta"
	case "content_block_start":
		return "content_block_start"
	case "content_block_stop":
		return "content_block_stop"
	case "message_start":
		return "message_start"
	case "message_delta":
		return "message_delta"
	case "message_stop":
		return "message_stop"
	case "ping":
		return "ping"
	case "error":
		return "error"
	case "message":
		return "message"
	}
	if string(b) != r.lastName {
		r.lastName = string(b)
	}
	return r.lastName
}

// cutField splits a line at its first colon and drops one space after it. A comment has an empty field.
func cutField(line []byte) (field, value []byte) {
	i := bytes.IndexByte(line, ':')
	if i < 0 {
		return line, line[len(line):]
	}
	value = line[i+1:]
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return line[:i], value
}

// digits reads a number of ASCII digits alone.
func digits(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 12 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// AppendEvent appends one event to dst. Line breaks in data become further data lines and line breaks in name are
// dropped. An event without data is not written at all: several clients fail on an empty data line.
func AppendEvent(dst []byte, name string, data []byte) []byte {
	if len(data) == 0 {
		return dst
	}
	if name != "" {
		dst = append(dst, "event: "...)
		dst = appendOneLine(dst, name)
		dst = append(dst, '\n')
	}
	for {
		i := bytes.IndexByte(data, '\n')
		if j := bytes.IndexByte(data[:max(i, 0)], '\r'); j >= 0 {
			i = j
		} else if i < 0 {
			i = bytes.IndexByte(data, '\r')
		}
		dst = append(dst, "data: "...)
		if i < 0 {
			dst = append(dst, data...)
			return append(dst, "\n\n"...)
		}
		dst = append(append(dst, data[:i]...), '\n')
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
}

// AppendComment appends a comment block, such as a keep-alive, which no client takes for an event. Line breaks in text
// are dropped.
func AppendComment(dst []byte, text string) []byte {
	dst = append(dst, ": "...)
	dst = appendOneLine(dst, text)
	return append(dst, "\n\n"...)
}

func appendOneLine(dst []byte, s string) []byte {
	if !strings.ContainsAny(s, "\r\n") {
		return append(dst, s...)
	}
	for i := range len(s) {
		if s[i] != '\r' && s[i] != '\n' {
			dst = append(dst, s[i])
		}
	}
	return dst
}

// Writer writes events to a sink, one Write and one flush per event. It is not safe for concurrent use.
type Writer struct {
	w     io.Writer
	flush func() error
	buf   []byte
}

// NewWriter returns a Writer on w. flush is called after each write and may be nil.
func NewWriter(w io.Writer, flush func() error) *Writer { return &Writer{w: w, flush: flush} }

// Event writes one event, as AppendEvent does, and returns the sink's error.
func (w *Writer) Event(name string, data []byte) error {
	w.buf = AppendEvent(w.buf[:0], name, data)
	return w.send()
}

// Comment writes a comment block and returns the sink's error.
func (w *Writer) Comment(text string) error {
	w.buf = AppendComment(w.buf[:0], text)
	return w.send()
}

func (w *Writer) send() error {
	if len(w.buf) == 0 {
		return nil
	}
	if _, err := w.w.Write(w.buf); err != nil {
		return err
	}
	if w.flush == nil {
		return nil
	}
	return w.flush()
}

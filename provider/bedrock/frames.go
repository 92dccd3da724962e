package bedrock

import (
	"bufio"
	"encoding/base64"
	"errors"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream/eventstreamapi"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// frames reads the messages of a binary event stream.
type frames struct {
	r   *bufio.Reader
	dec *eventstream.Decoder
	buf []byte
}

func newFrames(r io.Reader) *frames {
	return &frames{r: bufio.NewReader(r), dec: eventstream.NewDecoder(), buf: make([]byte, 0, 4<<10)}
}

// next returns the type and payload of the next event, valid until the next call. Its errors are io.EOF when the stream ends between two
// messages, a *fault.Error for an exception in the stream, for a message that was changed on its way and for what the reader says, and
// io.ErrUnexpectedEOF when the stream breaks within a message.
func (f *frames) next() (event string, payload []byte, err error) {
	if _, err := f.r.Peek(1); err != nil {
		return "", nil, err
	}
	m, err := f.dec.Decode(f.r, f.buf[:0])
	if err != nil {
		var fe *fault.Error
		switch {
		case errors.As(err, &fe):
			return "", nil, fe
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return "", nil, io.ErrUnexpectedEOF
		case isNet(f.r):
			return "", nil, err
		}
		return "", nil, unreadable(err)
	}
	if cap(m.Payload) > cap(f.buf) {
		f.buf = m.Payload
	}
	text := func(name string) string {
		if v, ok := m.Headers.Get(name).(eventstream.StringValue); ok {
			return string(v)
		}
		return ""
	}
	switch text(eventstreamapi.MessageTypeHeader) {
	case eventstreamapi.EventMessageType:
		return text(eventstreamapi.EventTypeHeader), m.Payload, nil
	case eventstreamapi.ExceptionMessageType:
		return "", nil, exceptionFault(text(eventstreamapi.ExceptionTypeHeader), messageOf(m.Payload))
	case eventstreamapi.ErrorMessageType:
		return "", nil, exceptionFault(text(eventstreamapi.ErrorCodeHeader), text(eventstreamapi.ErrorMessageHeader))
	}
	return "", nil, unreadable(errors.New("a message of no known type"))
}

// isNet reports whether the reader itself failed, so that what the decoder says is not about the bytes.
func isNet(r *bufio.Reader) bool {
	_, err := r.Peek(1)
	return err != nil && err != io.EOF && r.Buffered() == 0
}

func messageOf(payload []byte) string {
	s := jsonscan.Scanner{B: payload}
	out := ""
	s.Members(func(name []byte) {
		if string(name) == "message" || string(name) == "Message" {
			out = s.String()
			return
		}
		s.Value()
	})
	if s.Err != nil {
		return ""
	}
	return out
}

func unreadable(cause error) *fault.Error {
	return fault.Wrap(fault.Upstream, "bedrock.Stream", "upstream_error", "The provider sent an event that cannot be read. Try again.", cause)
}

func cut(cause error) *fault.Error {
	return fault.Wrap(fault.Upstream, "bedrock.Stream", "stream_cut", "The provider's answer broke off before its end. What came so far is incomplete; try again.", cause)
}

// chunks turns the stream of InvokeModelWithResponseStream into the server-sent events that are in it.
type chunks struct {
	f    *frames
	out  []byte
	from int
	err  error
}

func newChunks(r io.Reader) *chunks { return &chunks{f: newFrames(r)} }

// Read reads the next events.
func (c *chunks) Read(p []byte) (int, error) {
	for c.from == len(c.out) {
		if c.err != nil {
			return 0, c.err
		}
		c.out, c.from = c.out[:0], 0
		event, payload, err := c.f.next()
		if err != nil {
			c.err = err
			continue
		}
		if event != "chunk" {
			continue
		}
		at := jsonscan.MemberOf(payload, "bytes")
		if at.Len() < 2 || payload[at.Start] != '"' {
			c.err = unreadable(errors.New("a chunk without bytes"))
			continue
		}
		c.out = append(c.out, "data: "...)
		data := len(c.out)
		b64 := payload[at.Start+1 : at.End-1] // base64 has no character that JSON escapes but the slash, which nobody does
		c.out, err = base64.StdEncoding.AppendDecode(c.out, b64)
		if err != nil {
			c.out, c.err = c.out[:0], unreadable(err)
			continue
		}
		if jsonscan.MemberOf(c.out[data:], "type").IsZero() { // the decoder would pass over it
			c.out, c.err = c.out[:0], unreadable(errors.New("a chunk that is no event"))
			continue
		}
		c.out = append(c.out, "\n\n"...)
	}
	n := copy(p, c.out[c.from:])
	c.from += n
	return n, nil
}

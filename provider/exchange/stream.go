package exchange

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/provider"
)

// stream is one accepted answer. Close may be called while Next waits; the other methods belong to one goroutine.
type stream struct {
	p    *Client
	x    *exchange
	res  *http.Response
	dec  Decoder // nil: the answer is not streamed
	read func([]byte) (chat.Event, error)

	whole chat.Usage
	told  bool
	err   error // what Next answers from now on

	complete atomic.Bool // the terminal event is out
	closing  sync.Once
}

var _ provider.Stream = (*stream)(nil)

// Next returns the next event, as provider.Stream says.
func (s *stream) Next() (chat.Event, error) {
	if s.err != nil {
		return chat.Event{}, s.err
	}
	ev, err := s.next()
	if err != nil {
		s.err = s.translate(err)
		return chat.Event{}, s.err
	}
	if ev.Kind == chat.EventEnd || ev.Kind == chat.EventWhole {
		s.complete.Store(true)
		s.err = io.EOF
	}
	return ev, nil
}

func (s *stream) next() (chat.Event, error) {
	if s.dec != nil {
		return s.dec.Next()
	}
	var b bytes.Buffer
	if n := s.res.ContentLength; n > 0 && n <= s.p.maxBody {
		b.Grow(int(n) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(s.x.body, s.p.maxBody+1))
	switch {
	case err != nil:
		return chat.Event{}, fault.Wrap(fault.Upstream, s.p.op, "stream_cut", "The provider's answer broke off before its end. Try again.", err)
	case n > s.p.maxBody:
		return chat.Event{}, fault.New(fault.Upstream, s.p.op, "upstream_error", "The provider's answer is too large. Ask for a shorter one or stream it.")
	}
	ev, err := s.read(b.Bytes())
	if err == nil && ev.Usage != nil {
		s.whole, s.told = *ev.Usage, true
	}
	return ev, err
}

// translate tells a cut apart by what caused it, and puts our name on what the provider said.
func (s *stream) translate(err error) error {
	if f := s.p.ownFault(s.x, s.p.op); f != nil {
		return f
	}
	f := fault.From(err)
	if f.Upstream != nil {
		u := *f.Upstream
		u.Provider, u.Type, u.Message = s.p.name, s.x.scrub(u.Type), s.x.scrub(u.Message)
		u.Code, u.Param = s.x.scrub(u.Code), s.x.scrub(u.Param)
		c := *f
		c.Upstream = &u
		return &c
	}
	if f.Cause != nil {
		c := *f
		c.Cause = s.x.scrubError(f.Cause)
		return &c
	}
	return f
}

// Usage is what the provider has told so far.
func (s *stream) Usage() (chat.Usage, bool) {
	if s.dec != nil {
		return s.dec.Usage()
	}
	return s.whole, s.told
}

// Header is the response's header. A provider, or a proxy before it, that repeats our key in it does not get it any further.
func (s *stream) Header() http.Header {
	for _, values := range s.res.Header {
		for i, v := range values {
			values[i] = s.x.scrub(v)
		}
	}
	return s.res.Header
}

// Close cancels what is left of the request and does not wait. It always returns nil.
func (s *stream) Close() error {
	s.closing.Do(func() {
		if s.complete.Load() {
			s.x.drain(s.res.Body)
			return
		}
		s.x.finish(s.res.Body)
	})
	return nil
}

// ownFault is the fault for a request that was canceled on our side, nil when it was not.
func (p *Client) ownFault(x *exchange, op string) *fault.Error {
	cause := x.sent()
	var f *fault.Error
	switch {
	case cause == nil:
		return nil
	case errors.As(cause, &f):
		return f
	case errors.Is(cause, errHeadTimeout):
		return fault.Wrap(fault.Timeout, op, "upstream_timeout", "The provider did not answer in time. Try again.", cause)
	case errors.Is(cause, errIdle):
		return fault.Wrap(fault.Timeout, op, "upstream_timeout", "The provider stopped sending in the middle of its answer. What came so far is incomplete; try again.", cause)
	}
	return fault.Wrap(fault.Canceled, op, "canceled", "The request was canceled.", cause)
}

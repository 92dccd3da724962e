package httpapi

import (
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
)

// late is a body that says something and then never comes.
type late struct {
	said io.Reader
	err  error
}

func (l *late) Read(p []byte) (int, error) {
	if n, err := l.said.Read(p); err == nil {
		return n, nil
	}
	return 0, l.err
}

func TestReadBody(t *testing.T) {
	for _, tt := range []struct {
		name     string
		body     io.Reader
		declared int64
		bodies   int64 // MaxBodies
		code     string
		kind     fault.Kind
		atMost   int64 // bytes that may be held for it
	}{
		{name: "whole", body: strings.NewReader(`{"a":1}`), declared: 7, bodies: 4 << 20, atMost: 8 << 10},
		{name: "of unknown length", body: strings.NewReader(strings.Repeat("x", 3<<20)), declared: -1, bodies: 64 << 20, atMost: 6 << 20},
		{name: "much announced, little sent", body: &late{strings.NewReader("{"), os.ErrDeadlineExceeded}, declared: 15_000_000, bodies: 64 << 20, code: "body_too_slow", kind: fault.Timeout, atMost: 2 << 20},
		{name: "cut", body: &late{strings.NewReader("{"), io.ErrUnexpectedEOF}, declared: 100, bodies: 4 << 20, code: "canceled", kind: fault.Canceled, atMost: 8 << 10},
		{name: "larger than allowed", body: strings.NewReader("x"), declared: 30 << 20, bodies: 64 << 20, code: "body_too_large", kind: fault.TooLarge},
		{name: "larger than allowed and not announced", body: strings.NewReader(strings.Repeat("x", 21<<20)), declared: -1, bodies: 64 << 20, code: "body_too_large", kind: fault.TooLarge, atMost: 40 << 20},
		{name: "too much at once", body: strings.NewReader(strings.Repeat("x", 3<<20)), declared: 3 << 20, bodies: 2 << 20, code: "busy", kind: fault.Unavailable, atMost: 4 << 20},
		{name: "blank", body: strings.NewReader(" \n"), declared: 2, bodies: 4 << 20, code: "invalid_request", kind: fault.Invalid, atMost: 8 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Server{Config: Config{MaxBody: 20 << 20, MaxBodies: tt.bodies, Clock: time.Now}}
			r := httptest.NewRequest("POST", "/", tt.body)
			r.ContentLength = tt.declared
			c := echo.New().NewContext(r, httptest.NewRecorder())
			got, err := s.readBody(c)
			if tt.code == "" && (err != nil || len(got) == 0) || tt.code != "" && (fault.From(err) == nil || fault.From(err).Code != tt.code || fault.KindOf(err) != tt.kind) {
				t.Errorf("%d bytes, %v; want %q", len(got), err, tt.code)
			}
			if held := s.bodies.Load(); held > tt.atMost {
				t.Errorf("%d bytes were held, at most %d are due", held, tt.atMost)
			}
		})
	}
}

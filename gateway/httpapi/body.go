package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
)

const opBody = "httpapi.body"

// readBody reads a whole request body of at most MaxBody bytes. Reading it fully before answering is also what makes the server notice a
// client that leaves.
func (s *Server) readBody(c echo.Context) ([]byte, error) {
	r := c.Request()
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, fault.Invalidf(opBody, "", "Content-Encoding %q is not accepted here. Send the body uncompressed.", clip(enc))
	}
	if r.ContentLength > s.MaxBody {
		return nil, s.tooLarge()
	}
	buf := make([]byte, 0, min(max(r.ContentLength, 4096), readStep)+1)
	body := http.MaxBytesReader(c.Response(), r.Body, s.MaxBody)
	rc := http.NewResponseController(c.Response().Writer)
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }() // not supported by test recorders; then there is none
	var held int64
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, min(len(buf), readStep))
		}
		if grown := int64(cap(buf)) - held; grown > 0 {
			held += grown
			c.Set(keyBodyBytes, held)
			if s.bodies.Add(grown) > s.MaxBodies {
				return nil, fault.New(fault.Unavailable, opBody, "busy", "Too many large requests are being read at this moment. Try again.")
			}
		}
		_ = rc.SetReadDeadline(s.Clock().Add(readWindow))
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == nil {
			continue
		}
		var over *http.MaxBytesError
		switch {
		case errors.As(err, &over):
			return nil, s.tooLarge()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fault.Wrap(fault.Timeout, opBody, "body_too_slow", "The body came too slowly. Send it again.", err)
		case !errors.Is(err, io.EOF):
			return nil, fault.Wrap(fault.Canceled, opBody, "canceled", "The body was cut.", err)
		case len(bytes.TrimSpace(buf)) == 0:
			return nil, fault.Invalidf(opBody, "", "The body is empty. Send a JSON object.")
		}
		return buf, nil
	}
}

// readStep is how much room for a body is made at a time: a caller who announces much and sends little costs little. readWindow is how long
// a caller may take for the next piece.
const (
	readStep   = 1 << 20
	readWindow = 20 * time.Second
)

func (s *Server) tooLarge() error {
	return fault.New(fault.TooLarge, opBody, "body_too_large", "The body is larger than "+strconv.FormatInt(s.MaxBody>>20, 10)+" MiB. Send less at a time.")
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

// object is a JSON object whose fields are taken one by one; a field nobody takes is unknown and refused.
type object struct {
	at     string // JSON pointer of the object itself
	fields map[string]json.RawMessage
}

// decodeObject reads exactly one JSON object whose keys are all known and occur once.
func decodeObject(raw []byte, at string, known ...string) (object, error) {
	o := object{at: at, fields: map[string]json.RawMessage{}}
	if !utf8.Valid(raw) {
		return o, fault.Invalidf(opBody, at, "The body is not valid UTF-8 (first bad byte at offset %d).", badUTF8(raw))
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		if err != nil {
			return o, syntax(err, at)
		}
		return o, fault.Invalidf(opBody, at, "%s must be a JSON object.", named(at))
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return o, syntax(err, at)
		}
		key, _ := t.(string)
		field := at + "/" + escape(key)
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return o, syntax(err, field)
		}
		if _, dup := o.fields[key]; dup {
			return o, fault.Invalidf(opBody, field, "The field %q stands twice.", clip(key))
		}
		if !slices.Contains(known, key) {
			return o, fault.Invalidf(opBody, field, "There is no field %q here. Known fields: %s.", clip(key), strings.Join(known, ", "))
		}
		o.fields[key] = v
	}
	if _, err := d.Token(); err != nil {
		return o, syntax(err, at)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return o, fault.Invalidf(opBody, at, "There is something after the JSON object. Send one object only.")
	}
	return o, nil
}

func badUTF8(raw []byte) int {
	for i := 0; i < len(raw); {
		r, n := utf8.DecodeRune(raw[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(raw)
}

func syntax(err error, at string) error {
	var se *json.SyntaxError
	if errors.As(err, &se) {
		return fault.Invalidf(opBody, at, "The body is not valid JSON near offset %d.", se.Offset)
	}
	return fault.Invalidf(opBody, at, "The body is not valid JSON: it ends too early.")
}

func escape(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

func named(at string) string {
	if at == "" {
		return "The body"
	}
	return at
}

func (o object) pointer(key string) string { return o.at + "/" + escape(key) }

func (o object) has(key string) bool {
	v, ok := o.fields[key]
	return ok && string(v) != "null"
}

// take decodes a field into its Go type; a missing field or null leaves the zero value.
func take[T any](o object, key, kind string) (v T, err error) {
	if !o.has(key) {
		return v, nil
	}
	if json.Unmarshal(o.fields[key], &v) != nil {
		return v, fault.Invalidf(opBody, o.pointer(key), "%s must be %s.", o.pointer(key), kind)
	}
	return v, nil
}

// text takes a string field of at most max bytes.
func (o object) text(key string, max int, required bool) (string, error) {
	v, err := take[string](o, key, "a string")
	if err != nil {
		return "", err
	}
	if required && strings.TrimSpace(v) == "" {
		return "", fault.Invalidf(opBody, o.pointer(key), "%s is required.", o.pointer(key))
	}
	if len(v) > max {
		return "", fault.Invalidf(opBody, o.pointer(key), "%s is longer than %d bytes.", o.pointer(key), max)
	}
	return v, nil
}

package redaction

import (
	"bytes"
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/tenancy"
)

var testScope = Scope{Org: tenancy.MustOrgID("acme.example"), Thread: "thr_1", User: "u1"}

func testEngine(tb testing.TB) *Engine {
	tb.Helper()
	e, err := New(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func mustProfile(tb testing.TB, name string) *Profile {
	tb.Helper()
	p, err := ParseProfile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func testSession(tb testing.TB) *Session {
	tb.Helper()
	return testEngine(tb).Session(testScope, mustProfile(tb, "balanced"))
}

func mustMask(tb testing.TB, s *Session, body string, edits ...chat.Edit) string {
	tb.Helper()
	m, err := s.Mask(chat.AnthropicMessages, []byte(body), edits...)
	if err != nil {
		tb.Fatal(err)
	}
	return string(m.Bytes())
}

// drawn makes a reproducible random string, so that no value that looks like a secret stands in this repository.
func drawn(seed uint64, chars string, n int) string {
	r := rand.New(rand.NewPCG(seed, 11))
	b := make([]byte, n)
	for i := range b {
		b[i] = chars[r.IntN(len(chars))]
	}
	return string(b)
}

const (
	hexChars    = "0123456789abcdef"
	upperChars  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	base62Chars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	base64Chars = base62Chars + "+/"
)

func testJWT() string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + enc([]byte(`{"sub":"1234567890","iat":1516239022}`)) + "." + drawn(3, base62Chars, 43)
}

func testPEM(newline string) string {
	b := "-----BEGIN " + "RSA PRIVATE" + " KEY-----" + newline
	for i := range 5 {
		b += drawn(uint64(20+i), base64Chars, 64) + newline
	}
	return b + drawn(30, base64Chars, 20) + "==" + newline + "-----END " + "RSA PRIVATE" + " KEY-----"
}

func testKey() string { return "sk-" + "ant-api03-" + drawn(1, base62Chars, 40) }

// sample is a text with one value of every entity.
func sample() string {
	return strings.Join([]string{"Ask jane.doe@example.com", "or +1 415 555 2671,", "card 4111 1111 1111 1111,", "DE89 3704 0044 0532 0130 00", "and", testKey(), testJWT(), testPEM("\n"), "thanks"}, " ")
}

// merged are the spans of the last scan, sorted and without overlaps.
func (sc *scanner) merged() []span {
	var hits []hit
	for _, x := range sc.spans {
		hits = append(hits, hit{x.start, x.end, x.ent, Mask})
	}
	out := make([]span, 0, len(hits))
	for _, x := range settle(compile(balanced("balanced")), hits) {
		out = append(out, span{x.start, x.end, x.ent})
	}
	return out
}

package demo_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/demo"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/sse"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/wire/anthropic"
)

func masked(t *testing.T, body string) (*redaction.Session, redaction.Masked) {
	t.Helper()
	e, err := redaction.New(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	profile, err := redaction.ParseProfile("balanced")
	if err != nil {
		t.Fatal(err)
	}
	s := e.Session(redaction.Scope{Org: tenancy.MustOrgID("acme.example"), Thread: "t", User: "u"}, profile)
	m, err := s.Mask(chat.AnthropicMessages, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return s, m
}

func events(t *testing.T, m redaction.Masked, streamed bool) []chat.Event {
	t.Helper()
	p, err := demo.New(demo.Config{Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Open(t.Context(), provider.Call{Attempt: "a1", Model: demo.ModelDefault, Key: keyring.NewSecret("k"), Body: m, Stream: streamed})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	var out []chat.Event
	for {
		e, err := s.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
}

// TestAnswersReadLikeTheRealProvider: our decoder of the real provider's streams makes the same events of the bytes as the
// demo provider gives beside them.
func TestAnswersReadLikeTheRealProvider(t *testing.T) {
	for name, text := range map[string]string{
		"text":     "hello <b>",
		"thinking": `/demo thinking\nhello`,
		"calls":    `/demo call x {\"a\":\"1\"}\n/demo call y`,
	} {
		_, m := masked(t, `{"model":"demo-1","max_tokens":900,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"`+text+`"}]}`)
		t.Run(name, func(t *testing.T) {
			want := events(t, m, true)
			var raw []byte
			for _, e := range want {
				raw = sse.AppendEvent(raw, e.WireName, e.Wire)
			}
			d := anthropic.NewDecoder(bytes.NewReader(raw))
			var got []chat.Event
			for {
				e, err := d.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				e.Wire, e.More, e.Signature = bytes.Clone(e.Wire), false, "" // how the bytes came and what is opaque in them is not compared
				if e.Usage != nil {
					u := *e.Usage
					e.Usage = &u
				}
				got = append(got, e)
			}
			// A start tells no reasoning, and the parts' own bytes are the decoder's business.
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
		t.Run(name+", whole", func(t *testing.T) {
			want := events(t, m, false)[0]
			got, err := anthropic.DecodeMessage(bytes.Clone(want.Wire))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestHiddenValuesComeBack: what redaction hid is repeated as its placeholder, and restored for the person.
func TestHiddenValuesComeBack(t *testing.T) {
	mail := "ada" + "@" + "lovelace.example"
	s, m := masked(t, `{"model":"demo-1","max_tokens":900,"messages":[{"role":"user","content":"Write to `+mail+` today"}]}`)
	if bytes.Contains(m.Bytes(), []byte(mail)) {
		t.Fatal("the value was not hidden")
	}
	var raw, shown strings.Builder
	st := s.Stream()
	for _, e := range events(t, m, true) {
		switch e.Kind {
		case chat.EventText:
			raw.WriteString(e.Text)
			shown.WriteString(st.Text(e.Index, e.Text))
		case chat.EventBlockStop:
			shown.WriteString(st.Flush(e.Index))
		}
	}
	if strings.Contains(raw.String(), mail) || !strings.Contains(shown.String(), "Write to "+mail+" today") {
		t.Errorf("answer %q, shown %q", raw.String(), shown.String())
	}
}

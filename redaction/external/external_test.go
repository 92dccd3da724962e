package external

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
)

// standIn answers as a detector would: whatever answer says, or every "Jane Doe" and "Pariser Platz" it finds.
type standIn struct {
	asked  atomic.Int64
	texts  atomic.Int64
	answer func(w http.ResponseWriter, r *http.Request) bool
}

type finding struct {
	Start  int     `json:"start"`
	End    int     `json:"end"`
	Entity string  `json:"entity"`
	Score  float64 `json:"score"`
}

func (d *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.asked.Add(1)
	raw, err := io.ReadAll(r.Body) // until it is read a server does not see its client leave
	if err != nil {
		return
	}
	if d.answer != nil && d.answer(w, r) {
		return
	}
	var in question
	if err := json.Unmarshal(raw, &in); err != nil {
		http.Error(w, "unreadable", http.StatusBadRequest)
		return
	}
	d.texts.Add(int64(len(in.Texts)))
	results := make([][]finding, len(in.Texts))
	for i, t := range in.Texts {
		for name, entity := range map[string]string{"Jane Doe": "PERSON", "Pariser Platz": "LOCATION", "Jane": "PERSON", "secretly": "NOT_OFFERED"} {
			for k := strings.Index(t, name); k >= 0; k = -1 {
				results[i] = append(results[i], finding{k, k + len(name), entity, 0.9})
			}
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
}

func says(body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write([]byte(body))
		return true
	}
}

func client(t *testing.T, h http.Handler, timeout time.Duration, clock func() time.Time) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := New(Config{URL: srv.URL + "/detect", Timeout: timeout, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func session(t *testing.T, d redaction.Detector, open bool, doc string) *redaction.Session {
	t.Helper()
	e, err := redaction.New(bytes.Repeat([]byte{7}, 32), redaction.External{Name: "names-ner", Entities: []string{"PERSON", "LOCATION"}, Open: open, Detector: d})
	if err != nil {
		t.Fatal(err)
	}
	return sessionOf(t, e, doc)
}

func sessionOf(t *testing.T, e *redaction.Engine, doc string) *redaction.Session {
	t.Helper()
	p, err := e.Policy([]byte(doc), "", "", "")
	if err != nil {
		t.Fatal(err)
	}
	return e.Session(redaction.Scope{Org: tenancy.MustOrgID("acme.example"), Thread: "t1"}, p)
}

const on = `{"external":["names-ner"]}`

func said(text string) []byte {
	b, err := json.Marshal(map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": text}}})
	if err != nil {
		panic(err)
	}
	return b
}

func TestWhatADetectorFindsIsHiddenAndRestored(t *testing.T) {
	d := &standIn{}
	s := session(t, client(t, d, time.Second, time.Now), false, on)
	m, err := s.MaskContext(t.Context(), chat.OpenAIChat, said("Jane Doe lives at \"Pariser Platz\" with jane@example.com, secretly"))
	if err != nil {
		t.Fatal(err)
	}
	out := string(m.Bytes())
	if !json.Valid(m.Bytes()) || strings.Contains(out, "Jane") || strings.Contains(out, "Pariser") || strings.Contains(out, "jane@") || !strings.Contains(out, "secretly") {
		t.Fatalf("a provider sees %s", out)
	}
	if got := s.Restore(out); !strings.Contains(got, "Jane Doe lives at") || !strings.Contains(got, "Pariser Platz") {
		t.Errorf("restored: %s", got)
	}
	if got := s.Transcribe("it was Jane Doe, not Janet Doe"); strings.Contains(got, "Jane Doe") || !strings.Contains(got, "Janet Doe") {
		t.Errorf("kept: %s", got)
	}
}

func TestEveryPositionIsAsked(t *testing.T) {
	d := &standIn{}
	s := session(t, client(t, d, time.Second, time.Now), false, on)
	body := `{"system":"for Jane Doe","messages":[{"role":"user","content":[{"type":"text","text":"Jane Doe"},{"type":"tool_result","tool_use_id":"x","content":"{\"who\":\"Jane Doe\"}"}]},` +
		`{"role":"assistant","content":[{"type":"tool_use","id":"x","name":"n","input":{"a":["by Jane Doe"]}}]}],"tools":[{"name":"n","description":"ask Jane Doe","input_schema":{"type":"object"}}]}`
	m, err := s.MaskContext(t.Context(), chat.AnthropicMessages, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(m.Bytes()), "Jane") {
		t.Errorf("a provider sees %s", m.Bytes())
	}
	if d.asked.Load() != 1 {
		t.Errorf("%d requests for one body", d.asked.Load())
	}
}

func TestOnlyNewsIsAsked(t *testing.T) {
	d := &standIn{}
	e, err := redaction.New(bytes.Repeat([]byte{7}, 32), redaction.External{Name: "names-ner", Entities: []string{"PERSON"}, Detector: client(t, d, time.Second, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	var last string
	for turn := range 3 {
		s := sessionOf(t, e, on)
		m, err := s.MaskContext(t.Context(), chat.OpenAIChat, said("Jane Doe says hello"))
		if err != nil {
			t.Fatal(err)
		}
		if turn > 0 && string(m.Bytes()) != last {
			t.Errorf("turn %d sends other bytes", turn)
		}
		last = string(m.Bytes())
	}
	if d.asked.Load() != 1 || d.texts.Load() != 1 {
		t.Errorf("asked %d times about %d texts, want once", d.asked.Load(), d.texts.Load())
	}
}

func TestFailures(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a text was sent somewhere else") }))
	t.Cleanup(elsewhere.Close)
	tests := []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request) bool
	}{
		{"slow", func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }},
		{"dead", func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }},
		{"an error", func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "no", http.StatusInternalServerError)
			return true
		}},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return true
		}},
		{"no JSON", says("Jane Doe")},
		{"no results", says("{}")},
		{"too few results", says(`{"results":[]}`)},
		{"an end behind the text", says(`{"results":[[{"start":0,"end":900,"entity":"PERSON","score":0.9}]]}`)},
		{"a negative start", says(`{"results":[[{"start":-1,"end":3,"entity":"PERSON","score":0.9}]]}`)},
		{"an empty span", says(`{"results":[[{"start":3,"end":3,"entity":"PERSON","score":0.9}]]}`)},
		{"no start", says(`{"results":[[{"end":3,"entity":"PERSON","score":0.9}]]}`)},
		{"half a character", says(`{"results":[[{"start":0,"end":3,"entity":"PERSON","score":0.9}]]}`)},
		{"a wild score", says(`{"results":[[{"start":0,"end":3,"entity":"PERSON","score":7}]]}`)},
		{"too much", says(`{"results":[[]],"x":"` + strings.Repeat("x", maxAnswer) + `"}`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := client(t, &standIn{answer: tt.answer}, 300*time.Millisecond, time.Now)
			body := said("Zoë Doe")
			_, err := session(t, c, false, on).MaskContext(t.Context(), chat.OpenAIChat, body)
			if fe := fault.From(err); err == nil || fe.Kind != fault.Unavailable || fe.Code != "redaction_detector_failed" {
				t.Fatalf("closed: %v", err)
			}
			if strings.Contains(errors.Unwrap(err).Error(), "Doe") {
				t.Errorf("the error repeats the text: %v", errors.Unwrap(err))
			}
			open := session(t, c, true, on)
			m, err := open.MaskContext(t.Context(), chat.OpenAIChat, body)
			if err != nil || !bytes.Equal(m.Bytes(), body) {
				t.Fatalf("open: %s, %v", m.Bytes(), err)
			}
			if diff := cmp.Diff([]string{"names-ner"}, open.Unanswered()); diff != "" {
				t.Errorf("unanswered: %s", diff)
			}
		})
	}
}

func TestOverlappingFindingsAreCoveredWhole(t *testing.T) {
	d := &standIn{answer: says(`{"results":[[{"start":4,"end":12,"entity":"PERSON","score":0.9},{"start":9,"end":20,"entity":"LOCATION","score":0.9}]]}`)}
	s := session(t, client(t, d, time.Second, time.Now), false, `{"external":["names-ner"],"entities":{"PERSON":{"request":"mask"},"LOCATION":{"request":"tokenize"}}}`)
	m, err := s.MaskContext(t.Context(), chat.OpenAIChat, said("der Jane Doe Platz-A ist da"))
	if err != nil {
		t.Fatal(err)
	}
	if want := string(said("der [PERSON] ist da")); string(m.Bytes()) != want {
		t.Errorf("got %s, want %s", m.Bytes(), want)
	}
}

func TestABlockedEntityIsRefused(t *testing.T) {
	s := session(t, client(t, &standIn{}, time.Second, time.Now), false, `{"external":["names-ner"],"entities":{"LOCATION":{"request":"block"}}}`)
	_, err := s.MaskContext(t.Context(), chat.OpenAIChat, said("at Pariser Platz"))
	if fe := fault.From(err); err == nil || fe.Code != "content_policy" || fe.Field != "/messages/0/content" {
		t.Errorf("got %v", err)
	}
}

func TestSwitchedOffNobodyIsAsked(t *testing.T) {
	for name, doc := range map[string]string{
		"not named": `{}`, "no requests": `{"external":["names-ner"],"scope":{"request":false,"transcript":false}}`,
		"no such entity": `{"external":["names-ner"],"entities":{"PERSON":{"request":"off"},"LOCATION":{"request":"off"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			d := &standIn{}
			s := session(t, client(t, d, time.Second, time.Now), false, doc)
			if _, err := s.MaskContext(t.Context(), chat.OpenAIChat, said("Jane Doe")); err != nil {
				t.Fatal(err)
			}
			if d.asked.Load() != 0 {
				t.Error("a text was sent")
			}
		})
	}
}

func TestDocumentsThatNameDetectors(t *testing.T) {
	e, err := redaction.New(bytes.Repeat([]byte{7}, 32), redaction.External{Name: "names-ner", Entities: []string{"LOCATION"}, Detector: &Client{}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ doc, field string }{
		"unknown": {`{"external":["other"]}`, "/external/0"}, "twice": {`{"external":["names-ner","names-ner"]}`, "/external/1"}, "no list": {`{"external":"names-ner"}`, "/external"},
		"a name taken": {`{"custom":[{"name":"X_Y","pattern":"abcd"}],"entities":{"LOCATION":{"request":"mask"}}}`, "/entities/LOCATION"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := e.ParsePolicy([]byte(tt.doc), "")
			if fe := fault.From(err); err == nil || fe.Code != "invalid_redaction" || fe.Field != tt.field {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := redaction.ParsePolicy([]byte(on), ""); err == nil {
		t.Error("a detector nobody offers was accepted")
	}
}

func TestMaskWithoutAContextRefuses(t *testing.T) {
	s := session(t, client(t, &standIn{}, time.Second, time.Now), true, on)
	if _, err := s.Mask(chat.OpenAIChat, said("Jane Doe")); fault.From(err).Code != "detectors_not_asked" {
		t.Errorf("got %v", err)
	}
}

func TestBreakerLetsADetectorRest(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	failing := true
	d := &standIn{answer: func(w http.ResponseWriter, _ *http.Request) bool {
		if failing {
			http.Error(w, "no", http.StatusBadGateway)
		}
		return failing
	}}
	c := client(t, d, time.Second, func() time.Time { return now })
	ask := func() error { _, err := c.Detect(t.Context(), []string{"a"}, []string{"PERSON"}); return err }
	for range trip {
		if fault.From(ask()).Kind != fault.Upstream {
			t.Fatal("a failure was not told")
		}
	}
	if err := ask(); fault.From(err).Code != "detector_resting" || d.asked.Load() != trip {
		t.Fatalf("got %v after %d requests", err, d.asked.Load())
	}
	now = now.Add(rest)
	if err := ask(); fault.From(err).Kind != fault.Upstream || d.asked.Load() != trip+1 {
		t.Fatalf("the trial: %v after %d requests", err, d.asked.Load())
	}
	if err := ask(); fault.From(err).Code != "detector_resting" {
		t.Fatalf("after a failed trial: %v", err)
	}
	now, failing = now.Add(rest), false
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
}

func TestACallerWhoLeavesIsNoFailure(t *testing.T) {
	c := client(t, &standIn{answer: func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }}, time.Second, time.Now)
	for range trip + 1 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := c.Detect(ctx, []string{"a"}, nil)
		cancel()
		if fault.From(err).Code != "detector_not_awaited" {
			t.Fatalf("got %v", err)
		}
	}
}

func TestLargeQuestionsAreSplit(t *testing.T) {
	d := &standIn{}
	c := client(t, d, 5*time.Second, time.Now)
	texts := []string{strings.Repeat("a", maxQuestion-1), "Jane Doe", "Jane Doe"}
	got, err := c.Detect(t.Context(), texts, []string{"PERSON"})
	if err != nil || len(got) != 3 || len(got[1]) != 2 || len(got[0]) != 0 || d.asked.Load() != 2 {
		t.Errorf("got %v, %v in %d requests", got, err, d.asked.Load())
	}
	if _, err := c.Detect(t.Context(), []string{strings.Repeat("a", maxText+1)}, nil); fault.From(err).Kind != fault.TooLarge {
		t.Errorf("got %v", err)
	}
}

func TestConfigsThatCannotBeUsed(t *testing.T) {
	for name, c := range map[string]Config{
		"no URL": {Timeout: time.Second, Clock: time.Now}, "a file": {URL: "file:///x", Timeout: time.Second, Clock: time.Now}, "a user": {URL: "http://a:b@h/", Timeout: time.Second, Clock: time.Now},
		"no timeout": {URL: "http://h/", Clock: time.Now}, "long": {URL: "http://h/", Timeout: time.Hour, Clock: time.Now}, "no clock": {URL: "http://h/", Timeout: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(c); err == nil {
				t.Error("accepted")
			}
		})
	}
}

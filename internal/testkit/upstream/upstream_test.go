package upstream

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
)

func post(t *testing.T, url, body string) (*http.Response, string, error) {
	t.Helper()
	res, err := http.Post(url+"/v1/messages", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

func TestScriptsInOrder(t *testing.T) {
	s := Start(t)
	s.Push(Failure(529, "overloaded_error", "Overloaded"), Fixture(t, "anthropic_text"))
	res, body, _ := post(t, s.URL, `{"model":"m"}`)
	if res.StatusCode != 529 || !strings.Contains(body, "overloaded_error") {
		t.Errorf("first %d %s", res.StatusCode, body)
	}
	res, body, _ = post(t, s.URL, `{"model":"m"}`)
	if res.StatusCode != 200 || !strings.Contains(body, "message_stop") || res.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		t.Errorf("second %d %s", res.StatusCode, body)
	}
	_, body, _ = post(t, s.URL, `{"model":"m"}`)
	if !strings.Contains(body, `"text":"Hello."`) || strings.Contains(body, "event:") {
		t.Errorf("default, whole: %s", body)
	}
	_, body, _ = post(t, s.URL, `{"model":"m","stream":true}`)
	if !strings.Contains(body, "event: content_block_delta") {
		t.Errorf("default, streamed: %s", body)
	}
	all := s.Await(t, "four requests", func(all []Request) bool { return len(all) == 4 && all[3].Done })
	if all[1].Path != "/v1/messages" || string(all[1].Body) != `{"model":"m"}` || all[1].Header.Get("Content-Type") != "application/json" || all[1].Canceled {
		t.Errorf("recorded %+v", all[1])
	}
	if all[0].Billed != (chat.Usage{}) || all[1].Billed != (chat.Usage{Input: 14, Output: 9}) {
		t.Errorf("billed %+v and %+v", all[0].Billed, all[1].Billed)
	}
	if sum := s.Billed(); sum.Output != 9+all[2].Billed.Output+all[3].Billed.Output {
		t.Errorf("billed %+v in all", sum)
	}
}

func TestBilledIsTheFixturesUsage(t *testing.T) {
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.Wire != fixtures.AnthropicMessages || f.Failed() {
			continue
		}
		u, want := billed(FromFixture(f), len(f.Body)), f.Expect.Usage
		if u.InputTotal() != *want.InputTotal || u.CacheRead != *want.CacheRead || want.OutputTotal != nil && u.Output != *want.OutputTotal {
			t.Errorf("%s: billed %+v", f.File, u)
		}
	}
}

func TestCut(t *testing.T) {
	s := Start(t)
	script := Stream("m", 3, 9, "a", "b")
	script.CutAfter = bytes.Index(script.Body, []byte("event: message_delta"))
	s.Push(script, Script{CutAfter: -1})
	_, body, err := post(t, s.URL, `{}`)
	if err == nil || body != string(script.Body[:script.CutAfter]) {
		t.Errorf("read %d bytes, %v; want %d and an error", len(body), err, script.CutAfter)
	}
	all := s.Await(t, "the end", func(all []Request) bool { return all[0].Done })
	if all[0].Billed != (chat.Usage{Input: 3, Output: 1}) || all[0].Sent != script.CutAfter {
		t.Errorf("billed %+v after %d bytes", all[0].Billed, all[0].Sent)
	}
	if _, body, err := post(t, s.URL, `{}`); err == nil || body != "" {
		t.Errorf("read %q, %v", body, err)
	}
}

func TestCanceled(t *testing.T) {
	s := Start(t)
	held := Stream("m", 3, 9, "a")
	held.HoldOpen = true
	for name, script := range map[string]Script{"silent": {Silent: true}, "held": held, "waiting": {Wait: time.Minute}} {
		s.Push(script)
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		n := len(s.Requests())
		go func() {
			if res, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		}()
		s.Await(t, "the request", func(all []Request) bool { return len(all) == n+1 })
		cancel()
		all := s.AwaitCanceled(t, n+1)
		if !all[n].Canceled {
			t.Errorf("%s: %+v", name, all[n])
		}
	}
}

func TestCuts(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Script
		want string
	}{
		{"whole", Script{Body: []byte("abcdef")}, "abcdef"},
		{"offsets", Script{Body: []byte("abcdef"), Pieces: []int{4, 0, 2, 2, 9}}, "ab|cd|ef"},
		{"size", Script{Body: []byte("abcdefg"), PieceSize: 3}, "abc|def|g"},
		{"cut", Script{Body: []byte("abcdefg"), PieceSize: 3, CutAfter: 4}, "abc|d"},
		{"empty", Script{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := string(bytes.Join(cuts(c.in), []byte("|"))); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestFast(t *testing.T) {
	srv := httptest.NewServer(Fast(ToolUse("m", "t1", "slide-read", `{"a":`, `1}`)))
	defer srv.Close()
	if _, body, err := post(t, srv.URL, `{}`); err != nil || strings.Count(body, "input_json_delta") != 3 || !strings.Contains(body, "message_stop") {
		t.Errorf("%s, %v", body, err)
	}
}

func TestRefused(t *testing.T) {
	if res, err := http.Get(Refused(t)); err == nil {
		res.Body.Close()
		t.Error("somebody answered")
	}
}

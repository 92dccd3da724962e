package chroma

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
)

var space = retrieval.Space{Name: "test", Dims: 2}

const ownID = "01234567-89ab-4cde-8f01-23456789abcd"

// described1 is what a good server says of the collection.
const described1 = `{"id":"` + ownID + `","name":"client-app-sessions","tenant":"client__acme","database":"default","metadata":{"space":"test/2"}}`

// client is one of acme's, of a server that answers as the handler does.
func client(t *testing.T, timeout time.Duration, clock func() time.Time, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return clientOf(t, srv.URL, timeout, clock)
}

func clientOf(t *testing.T, url string, timeout time.Duration, clock func() time.Time) *Client {
	t.Helper()
	s, err := New(Config{URL: url, Timeout: timeout, Space: space, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.cfg.HTTP.CloseIdleConnections)
	scope, err := retrieval.NewScope(url, "client__acme", "default")
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Client(scope)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var probe = retrieval.Probe{Vector: []float32{1, 0}, Terms: []string{"harvest"}, Depth: 5}

// good answers like a server with one chunk.
func good(w http.ResponseWriter, r *http.Request) {
	switch p := r.URL.Path; {
	case strings.HasSuffix(p, "/version"):
		fmt.Fprint(w, `"1.0.0"`)
	case strings.HasSuffix(p, "/client-app-sessions"), strings.HasSuffix(p, "/by-id/"+ownID):
		fmt.Fprint(w, described1)
	case strings.HasSuffix(p, "/count"):
		fmt.Fprint(w, `1`)
	case strings.HasSuffix(p, "/query"):
		fmt.Fprint(w, `{"ids":[["a"]],"documents":[["The harvest."]],"metadatas":[[{"source":7,"date":"yesterday","tags":"x,y","other":[1]}]]}`)
	case strings.HasSuffix(p, "/get"):
		fmt.Fprint(w, `{"ids":["a"],"documents":["The harvest."],"metadatas":[null]}`)
	default:
		http.NotFound(w, r)
	}
}

func TestWhatOthersStoredIsRead(t *testing.T) {
	got, err := client(t, time.Second, time.Now, good).Candidates(t.Context(), retrieval.AppSessions, probe)
	if err != nil || len(got.ByVector) != 1 || len(got.ByText) != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if c := got.ByVector[0]; c.Text != "The harvest." || c.Source != "" || !c.Date.IsZero() || len(c.Tags) != 2 {
		t.Errorf("got %+v", c)
	}
}

func TestAServerThatCannotBeUsed(t *testing.T) {
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	instead := func(suffix, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, suffix) {
				fmt.Fprint(w, body)
				return
			}
			good(w, r)
		}
	}
	name, byID := "/client-app-sessions", "/by-id/"+ownID
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		code    string
	}{
		{"it fails", answer(500, `{}`), "chroma_refused"},
		{"it is overloaded", answer(503, ``), "chroma_refused"},
		{"it wants credentials", answer(401, `{}`), "chroma_refused"},
		{"it redirects", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, "chroma_refused"},
		{"it is no Chroma", answer(404, `not found`), "chroma_version"},
		{"it speaks the old protocol", answer(410, `{"error":"Unimplemented"}`), "chroma_version"},
		{"it speaks a newer protocol", instead("/version", `"2.0.0"`), "chroma_version"},
		{"it answers with a page", answer(200, `<html>`), "chroma_answer"},
		{"a collection of another tenant", instead(name, strings.Replace(described1, "client__acme", "client__evil", 1)), "chroma_answer"},
		{"a collection of another database", instead(name, strings.Replace(described1, `"default"`, `"other"`, 1)), "chroma_answer"},
		{"another collection", instead(name, strings.Replace(described1, "client-app-sessions", "other", 1)), "chroma_answer"},
		{"an id that is a path", instead(name, strings.Replace(described1, ownID, "../../../client__evil", 1)), "chroma_answer"},
		{"an id that another collection has", instead(byID, strings.Replace(described1, "client-app-sessions", "other", 1)), "chroma_answer"},
		{"an id that another tenant has", instead(byID, strings.Replace(described1, "client__acme", "client__evil", 1)), "chroma_answer"},
		{"a count that is none", instead("/count", `"many"`), "chroma_answer"},
		{"half an answer", instead("/query", `{"ids":[["a"`), "chroma_answer"},
		{"it hangs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "chroma_unreachable"},
		{"it hangs in the middle", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `"1.`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, "chroma_unreachable"},
		{"it hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "chroma_unreachable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := client(t, 300*time.Millisecond, time.Now, tt.handler)
			start := time.Now()
			_, err := c.Candidates(t.Context(), retrieval.AppSessions, probe)
			if !fault.Is(err, fault.Unavailable) || fault.From(err).Code != tt.code {
				t.Errorf("got %v, want %s", err, tt.code)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("it took %s", took)
			}
			if fe := fault.From(err); strings.Contains(fe.Public, "evil") || strings.Contains(fe.Public, "127.0.0.1") {
				t.Errorf("the sentence for people says %q", fe.Public)
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		srv := httptest.NewServer(http.HandlerFunc(good))
		srv.Close()
		if err := clientOf(t, srv.URL, time.Second, time.Now).Provision(t.Context()); !fault.Is(err, fault.Unavailable) || fault.From(err).Code != "chroma_unreachable" {
			t.Errorf("got %v", err)
		}
	})
}

func TestAFailingServerIsLeftAloneAndTriedAgain(t *testing.T) {
	var asked, broken atomic.Int64
	broken.Store(1)
	now := time.Unix(0, 0)
	c := client(t, time.Second, func() time.Time { return now }, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if broken.Load() == 1 {
			w.WriteHeader(500)
			return
		}
		good(w, r)
	})
	ask := func() string {
		_, err := c.Candidates(t.Context(), retrieval.AppSessions, probe)
		if err == nil {
			return ""
		}
		return fault.From(err).Code
	}
	for range trip {
		if code := ask(); code != "chroma_refused" {
			t.Fatalf("got %s", code)
		}
	}
	if code := ask(); code != "chroma_resting" || asked.Load() != trip {
		t.Errorf("got %s after %d questions", code, asked.Load())
	}
	now = now.Add(rest)
	if code := ask(); code != "chroma_refused" || asked.Load() != trip+1 {
		t.Errorf("got %s after %d questions", code, asked.Load())
	}
	broken.Store(0)
	if code := ask(); code != "chroma_resting" {
		t.Errorf("got %s", code)
	}
	now = now.Add(rest)
	if code := ask(); code != "" {
		t.Errorf("got %s", code)
	}
}

func TestAnIdIsRememberedForAWhile(t *testing.T) {
	var looked atomic.Int64
	now := time.Unix(0, 0)
	c := client(t, time.Second, func() time.Time { return now }, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/by-id/"+ownID) {
			looked.Add(1)
		}
		good(w, r)
	})
	for _, want := range []int64{1, 1, 2} {
		if want == 2 {
			now = now.Add(remember)
		}
		if _, err := c.Candidates(t.Context(), retrieval.AppSessions, probe); err != nil || looked.Load() != want {
			t.Errorf("verified %d times, want %d: %v", looked.Load(), want, err)
		}
	}
}

func TestNew(t *testing.T) {
	ok := Config{URL: "http://127.0.0.1:1/", Timeout: time.Second, Space: space, Clock: time.Now}
	for _, tt := range []struct {
		name   string
		change func(*Config)
	}{
		{"no address", func(c *Config) { c.URL = "" }},
		{"not an address of a server", func(c *Config) { c.URL = retrieval.Embedded }},
		{"credentials in the address", func(c *Config) { c.URL = "http://u:p@127.0.0.1" }},
		{"no time", func(c *Config) { c.Timeout = 0 }},
		{"too much time", func(c *Config) { c.Timeout = time.Hour }},
		{"no clock", func(c *Config) { c.Clock = nil }},
		{"no space", func(c *Config) { c.Space.Dims = 0 }},
	} {
		c := ok
		tt.change(&c)
		if _, err := New(c); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	s, err := New(ok)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"http://127.0.0.1:2", retrieval.Embedded} {
		scope, err := retrieval.NewScope(address, "client__acme", "default")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Client(scope); !fault.Is(err, fault.Invalid) {
			t.Errorf("a scope of %s: %v", address, err)
		}
	}
}

//go:build integration

// Package retrieval tests retrieval against a real Chroma server.
package retrieval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
	real "github.com/lossless-group/gateway/internal/testkit/chroma"
	"github.com/lossless-group/gateway/retrieval"
	"github.com/lossless-group/gateway/retrieval/chroma"
	"github.com/lossless-group/gateway/retrieval/embed"
	"github.com/lossless-group/gateway/retrieval/retrievaltest"
)

func engine(t testing.TB, url string) retrievaltest.Engine {
	t.Helper()
	e, err := embed.NewOffline(384)
	if err != nil {
		t.Fatal(err)
	}
	s, err := chroma.New(chroma.Config{URL: url, Timeout: 30 * time.Second, Space: e.Space(), Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return retrievaltest.Engine{Address: url, Embedder: e, Client: func(sc retrieval.Scope) (retrievaltest.Store, error) { return s.Client(sc) }}
}

func TestChroma(t *testing.T) {
	server := real.Start(t)
	t.Run("conformance", func(t *testing.T) { retrievaltest.Conformance(t, engine(t, server.URL)) })
	t.Run("isolation", func(t *testing.T) { retrievaltest.Isolation(t, engine(t, server.URL)) })
	t.Run("an id of another tenant is of no use", func(t *testing.T) { forged(t, server.URL) })
	t.Run("no database of nobody", func(t *testing.T) { ghosts(t, server.URL) })
	t.Run("a deleted collection's id is not believed", func(t *testing.T) { recreated(t, server.URL) })
	t.Run("hybrid finds most", func(t *testing.T) { retrievaltest.HybridIsBest(t, engine(t, server.URL)) })
	t.Run("vectors of another embedder", func(t *testing.T) { otherSpace(t, server.URL) })
}

// ask speaks to the server past the client.
func ask(t testing.TB, method, url string, in, out any) int {
	t.Helper()
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if out != nil && resp.StatusCode < 300 {
		if err := json.Unmarshal(body, out); err != nil {
			t.Fatalf("%s %s: %v: %s", method, url, err, body)
		}
	}
	return resp.StatusCode
}

// forged puts a victim's collection id wherever a caller could put text. The server itself would serve it, which is checked too: else this test would show nothing.
func forged(t *testing.T, url string) {
	e := engine(t, url)
	victim, thief := e.Open(t, "client__victim", "default"), e.Open(t, "client__thief", "default")
	for _, s := range []retrievaltest.Store{victim, thief} {
		if err := s.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	const canary = "canary of the victim's harvest"
	if err := victim.Upsert(t.Context(), retrieval.AppSessions, e.Records(t, retrieval.Chunk{ID: "turn:1", Text: canary})); err != nil {
		t.Fatal(err)
	}
	var c struct {
		ID string `json:"id"`
	}
	ask(t, http.MethodGet, url+"/api/v2/tenants/client__victim/databases/default/collections/client-app-sessions", nil, &c)
	var leak struct {
		IDs []string `json:"ids"`
	}
	status := ask(t, http.MethodPost, url+"/api/v2/tenants/client__thief/databases/default/collections/"+c.ID+"/get", map[string]any{}, &leak)
	t.Logf("the server itself answers a foreign id with %d and %d chunks", status, len(leak.IDs))
	for _, name := range []string{c.ID, "by-id/" + c.ID, "../../../client__victim/databases/default/collections/" + c.ID, "..%2f..%2fclient__victim", "client-app-sessions/" + c.ID, strings.ToUpper(c.ID)} {
		if got, err := thief.Candidates(t.Context(), retrieval.Collection(name), e.Probe(t, canary)); !fault.Is(err, fault.Invalid) {
			t.Errorf("as a collection, %q: %v, %v", name, got, err)
		}
		if err := thief.Upsert(t.Context(), retrieval.Collection(name), e.Records(t, retrieval.Chunk{ID: "turn:1", Text: "overwritten"})); !fault.Is(err, fault.Invalid) {
			t.Errorf("writing to %q: %v", name, err)
		}
		for _, tenant := range []string{name, "client__thief/../client__victim", "client__thief%2f..%2fclient__victim", "..", "client__victim/databases/default/collections/" + c.ID} {
			if _, err := retrieval.NewScope(url, tenant, "default"); err == nil && tenant != c.ID {
				t.Errorf("a scope for tenant %q", tenant)
			}
			if _, err := retrieval.NewScope(url, "client__thief", tenant); err == nil && tenant != c.ID {
				t.Errorf("a scope for database %q", tenant)
			}
		}
	}
	for _, text := range []string{c.ID, canary, "turn:1"} { // ids and filters are values, never paths
		p := e.Probe(t, text)
		for _, p.Project = range []string{"", c.ID, `"}},"$or":[{"own":true`} {
			got, err := thief.Candidates(t.Context(), retrieval.AppSessions, p)
			if err != nil || len(got.ByText)+len(got.ByVector) != 0 {
				t.Errorf("asking for %q in project %q: %v, %v", text, p.Project, got, err)
			}
		}
	}
	if err := thief.Delete(t.Context(), retrieval.AppSessions, []string{"turn:1", c.ID}); err != nil {
		t.Error(err)
	}
	if err := thief.Drop(t.Context()); err != nil {
		t.Error(err)
	}
	if n, err := victim.Count(t.Context(), retrieval.AppSessions); err != nil || n != 1 {
		t.Errorf("the victim has %d chunks: %v", n, err)
	}
	// A tenant may be called like an id; it is a tenant all the same.
	odd := e.Open(t, c.ID, "default")
	if _, err := odd.Candidates(t.Context(), retrieval.AppSessions, e.Probe(t, canary)); !fault.Is(err, fault.NotFound) {
		t.Errorf("a tenant called like an id: %v", err)
	}
}

func ghosts(t *testing.T, url string) {
	e := engine(t, url)
	s := e.Open(t, "client__ghost", "default")
	if _, err := s.Count(t.Context(), retrieval.AppSessions); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	if status := ask(t, http.MethodGet, url+"/api/v2/tenants/client__ghost", nil, nil); status != http.StatusNotFound {
		t.Errorf("reading made the tenant: %d", status)
	}
	for range 2 {
		if err := s.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if status := ask(t, http.MethodGet, url+"/api/v2/tenants/client__ghost", nil, nil); status != http.StatusOK {
		t.Errorf("the tenant was not made: %d", status)
	}
}

func recreated(t *testing.T, url string) {
	one, two := engine(t, url), engine(t, url) // as two replicas
	a, b := one.Open(t, "client__again", "default"), two.Open(t, "client__again", "default")
	if err := a.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Upsert(t.Context(), retrieval.AppSessions, one.Records(t, retrieval.Chunk{ID: "old", Text: "an old harvest"})); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Candidates(t.Context(), retrieval.AppSessions, two.Probe(t, "harvest")); err != nil { // b knows the id now
		t.Fatal(err)
	}
	if err := a.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Candidates(t.Context(), retrieval.AppSessions, two.Probe(t, "harvest")); !fault.Is(err, fault.NotFound) {
		t.Errorf("what another replica deleted: %v", err)
	}
	if err := a.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Upsert(t.Context(), retrieval.AppSessions, one.Records(t, retrieval.Chunk{ID: "new", Text: "a new harvest"})); err != nil {
		t.Fatal(err)
	}
	got, err := b.Candidates(t.Context(), retrieval.AppSessions, two.Probe(t, "harvest"))
	if err != nil || len(got.ByText) != 1 || got.ByText[0].ID != "new" {
		t.Errorf("got %v, %v", got, err)
	}
}

func otherSpace(t *testing.T, url string) {
	e := engine(t, url)
	if err := e.Open(t, "client__space", "default").Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := chroma.New(chroma.Config{URL: url, Timeout: 30 * time.Second, Space: retrieval.Space{Name: "another", Dims: 384}, Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	e.Client = func(sc retrieval.Scope) (retrievaltest.Store, error) { return s.Client(sc) }
	c := e.Open(t, "client__space", "default")
	for what, err := range map[string]error{"provisioning": c.Provision(t.Context()), "storing": c.Upsert(t.Context(), retrieval.AppSessions, e.Records(t, retrieval.Chunk{ID: "a", Text: "a"}))} {
		if !fault.Is(err, fault.Conflict) || fault.From(err).Code != "space_mismatch" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The server is stopped while it is in use: what was an answer is Unavailable, in time, and soon nothing is even tried.
func TestAServerThatGoesAway(t *testing.T) {
	server := real.Start(t)
	e := engine(t, server.URL)
	s := e.Open(t, "client__acme", "default")
	if err := s.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	for i := range 8 {
		start := time.Now()
		if _, err := s.Candidates(t.Context(), retrieval.AppSessions, e.Probe(t, "harvest")); !fault.Is(err, fault.Unavailable) {
			t.Errorf("call %d: %v", i, err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("call %d took %s", i, took)
		}
	}
}

// BenchmarkChroma asks one organisation's sessions in a real server, one question after another.
func BenchmarkChroma(b *testing.B) {
	server := real.Start(b)
	e := engine(b, server.URL)
	s := e.Open(b, "client__acme", "default")
	if err := s.Provision(b.Context()); err != nil {
		b.Fatal(err)
	}
	chunks := retrievaltest.Passages(3000)
	if err := s.Upsert(b.Context(), retrieval.AppSessions, e.Records(b, chunks...)); err != nil {
		b.Fatal(err)
	}
	probes := make([]retrieval.Probe, 64)
	for i := range probes {
		probes[i] = e.Probe(b, fmt.Sprintf("%.60s", chunks[i*len(chunks)/len(probes)].Text))
	}
	retrievaltest.Percentiles(b, func(i int) error {
		_, err := s.Candidates(b.Context(), retrieval.AppSessions, probes[i%len(probes)])
		return err
	})
}

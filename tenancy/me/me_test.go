package me

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

const issuer = "https://id.example"

// service is an identity service that knows persons by token and can be changed while it runs.
type service struct {
	*httptest.Server
	mu       sync.Mutex
	persons  map[string]string // bearer token -> JSON
	status   int               // not 0: what everybody gets
	etags    bool
	location string
	asked    int
	unmoved  int // answers 304
	gate     chan struct{}
}

func newService(t *testing.T) *service {
	s := &service{persons: map[string]string{
		"eve": `{"email":"eve@acme.example","orgs":[{"id":"acme.example","role":"editor"},{"id":"linger.example","role":"viewer"}]}`,
		"bob": `{"email":"bob@linger.example","orgs":[{"id":"linger.example","role":"org_admin"}]}`,
	}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked++
		body, known := s.persons[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
		status, etags, gate := s.status, s.etags, s.gate
		if s.location != "" {
			w.Header().Set("Location", s.location)
		}
		s.mu.Unlock()
		if gate != nil {
			<-gate
		}
		tag := fmt.Sprintf(`"%x"`, len(body))
		switch {
		case status != 0:
			w.WriteHeader(status)
		case !known:
			w.WriteHeader(http.StatusUnauthorized)
		case etags && r.Header.Get("If-None-Match") == tag:
			s.mu.Lock()
			s.unmoved++
			s.mu.Unlock()
			w.WriteHeader(http.StatusNotModified)
		default:
			if etags {
				w.Header().Set("ETag", tag)
			}
			_, _ = w.Write([]byte(body))
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) set(change func()) { s.mu.Lock(); change(); s.mu.Unlock() }

func (s *service) counts() (asked, unmoved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.unmoved
}

func newClient(t *testing.T, url string, change func(*Config)) (*Client, *atomic.Int64) {
	t.Helper()
	var ns atomic.Int64
	c := Config{Endpoints: []Endpoint{{Issuer: issuer, URL: url}}, Clock: func() time.Time { return time.Unix(1_800_000_000, ns.Load()) }}
	if change != nil {
		change(&c)
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m, &ns
}

var (
	acme    = tenancy.MustOrgID("acme.example")
	linger  = tenancy.MustOrgID("linger.example")
	eveOrgs = []tenancy.Membership{{Org: acme, Role: tenancy.Editor}, {Org: linger, Role: tenancy.Viewer}}
	bobOrgs = []tenancy.Membership{{Org: linger, Role: tenancy.OrgAdmin}}
	orgs    = cmp.AllowUnexported(tenancy.OrgID{})
)

func expect(t *testing.T, m *Client, token, email string, want []tenancy.Membership) {
	t.Helper()
	got, mail, err := m.Me(t.Context(), issuer, token)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, orgs); d != "" || mail != email {
		t.Fatalf("email %q, memberships (-want +got):\n%s", mail, d)
	}
}

func TestMeRemembersPerToken(t *testing.T) {
	s := newService(t)
	m, ns := newClient(t, s.URL, nil)
	for range 3 {
		expect(t, m, "eve", "eve@acme.example", eveOrgs)
		expect(t, m, "bob", "bob@linger.example", bobOrgs)
	}
	if n, _ := s.counts(); n != 2 {
		t.Fatalf("asked %d times, want once per token", n)
	}
	s.set(func() { s.persons["eve"] = `{"email":"eve@acme.example","orgs":[]}` })
	ns.Add(int64(time.Minute) - 1)
	expect(t, m, "eve", "eve@acme.example", eveOrgs)
	ns.Add(1)
	expect(t, m, "eve", "eve@acme.example", nil)
}

func TestMeUsesETags(t *testing.T) {
	s := newService(t)
	s.etags = true
	m, ns := newClient(t, s.URL, nil)
	for range 3 {
		expect(t, m, "eve", "eve@acme.example", eveOrgs)
		ns.Add(int64(time.Minute))
	}
	if n, un := s.counts(); n != 3 || un != 2 {
		t.Fatalf("asked %d times, unchanged %d, want 3 and 2", n, un)
	}
	s.set(func() { s.persons["eve"] = s.persons["bob"] })
	expect(t, m, "eve", "bob@linger.example", bobOrgs)
}

func TestMeInAnOutage(t *testing.T) {
	for _, status := range []int{500, 503, 404, 429, 302, 304, 204} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := newService(t)
			m, ns := newClient(t, s.URL, nil)
			expect(t, m, "eve", "eve@acme.example", eveOrgs)
			s.set(func() { s.status = status; s.location = s.URL + "/elsewhere" })
			ns.Add(int64(24 * time.Hour))
			for range 10 {
				expect(t, m, "eve", "eve@acme.example", eveOrgs)
			}
			if n, _ := s.counts(); n != 2 {
				t.Fatalf("asked %d times, want 2: no redirect, and no request of every caller", n)
			}
			if st := m.Stats(); st != (Stats{Asked: 2, Failures: 1, Stale: 1}) {
				t.Fatalf("%+v", st)
			}
			_, _, err := m.Me(t.Context(), issuer, "bob")
			if fe := fault.From(err); fe.Kind != fault.Unavailable || fe.Code != "identity_unavailable" {
				t.Fatalf("a token never seen: %v", err)
			}
			s.set(func() { s.status = 0; s.persons["eve"] = s.persons["bob"] })
			ns.Add(int64(10 * time.Second))
			expect(t, m, "eve", "bob@linger.example", bobOrgs)
		})
	}
}

func TestMeEndsWithTheSession(t *testing.T) {
	for _, status := range []int{401, 403} {
		s := newService(t)
		m, ns := newClient(t, s.URL, nil)
		expect(t, m, "eve", "eve@acme.example", eveOrgs)
		s.set(func() { s.status = status })
		ns.Add(int64(time.Minute))
		if _, _, err := m.Me(t.Context(), issuer, "eve"); !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("%d: %v", status, err)
		}
		s.set(func() { s.status = 500 })
		if _, _, err := m.Me(t.Context(), issuer, "eve"); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("an ended session came back in an outage: %v", err)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       []tenancy.Membership
		bad        bool
	}{
		{"unknown fields", `{"id":"u","email":"e","orgs":[{"id":"acme.example","role":"editor","plan":"x"}],"more":{}}`, eveOrgs[:1], false},
		{"no organisations", `{"email":"e","orgs":[]}`, nil, false},
		{"an unknown role grants nothing", `{"orgs":[{"id":"acme.example","role":"root"},{"id":"linger.example","role":"org_admin"}]}`, bobOrgs, false},
		{"a bad id grants nothing", `{"orgs":[{"id":"../acme","role":"editor"},{"id":"linger.example","role":"org_admin"}]}`, bobOrgs, false},
		{"twice, the first counts", `{"orgs":[{"id":"linger.example","role":"org_admin"},{"id":"linger.example","role":"superuser"}]}`, bobOrgs, false},
		{"another document", `{"error":"x"}`, nil, true},
		{"null list", `{"email":"e","orgs":null}`, nil, true},
		{"not JSON", `<html>`, nil, true},
		{"list of strings", `{"orgs":["acme.example"]}`, nil, true},
		{"too many", `{"orgs":[` + strings.Repeat(`{},`, 1000) + `{}]}`, nil, true},
		{"too long a mail address", `{"email":"` + strings.Repeat("e", 321) + `","orgs":[]}`, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := parse([]byte(c.body))
			if (err != nil) != c.bad {
				t.Fatal(err)
			}
			if err == nil {
				if d := cmp.Diff(c.want, a.memberships, orgs); d != "" {
					t.Fatal(d)
				}
			}
		})
	}
}

func TestMeLimits(t *testing.T) {
	s := newService(t)
	s.persons["big"] = `{"orgs":[]}` + strings.Repeat(" ", 300<<10)
	m, _ := newClient(t, s.URL, nil)
	if _, _, err := m.Me(t.Context(), issuer, "big"); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("a large answer: %v", err)
	}
	if _, _, err := m.Me(t.Context(), "https://other.example", "eve"); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("an issuer without address: %v", err)
	}
	gate := make(chan struct{})
	defer close(gate)
	s.set(func() { s.gate = gate })
	slow, _ := newClient(t, s.URL, func(c *Config) { c.Timeout = 30 * time.Millisecond })
	_, _, err := slow.Me(t.Context(), issuer, "eve")
	if !fault.Is(err, fault.Unavailable) || strings.Contains(err.Error(), "Bearer") || strings.Contains(err.Error(), "eve") {
		t.Fatalf("a silent service: %v", err)
	}
}

func TestMeSharesOneQuestion(t *testing.T) {
	s := newService(t)
	s.gate = make(chan struct{})
	m, _ := newClient(t, s.URL, nil)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, _, err := m.Me(ctx, issuer, "eve"); first <- err }()
	for n := 0; n == 0; n, _ = s.counts() {
		time.Sleep(time.Millisecond)
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, _, err := m.Me(context.Background(), issuer, "eve"); err != nil {
				t.Error(err)
			}
		})
	}
	cancel()
	if err := <-first; !fault.Is(err, fault.Canceled) {
		t.Fatalf("cancelled caller: %v", err)
	}
	close(s.gate)
	wg.Wait()
	if n, _ := s.counts(); n != 1 {
		t.Fatalf("asked %d times, want 1", n)
	}
}

func TestNewRefusesAddresses(t *testing.T) {
	for _, c := range []struct {
		url string
		ok  bool
	}{
		{"https://id.example/api/me", true}, {"http://127.0.0.1:8/me", true}, {"http://id.example/me", false},
		{"https://user:pw@id.example/me", false}, {"ftp://id.example", false}, {"", false},
	} {
		_, err := New(Config{Endpoints: []Endpoint{{Issuer: issuer, URL: c.url}}, Clock: time.Now})
		if (err == nil) != c.ok || err != nil && fault.From(err).Field != "/identity/issuers/0/meUrl" {
			t.Errorf("%q: %v", c.url, err)
		}
	}
}

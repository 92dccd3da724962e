package main

import (
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/egress"
)

// get asks through a link and returns what came, for cases that only differ in the way out.
func get(t *testing.T, l *link, url string) (string, error) {
	t.Helper()
	defer l.transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := l.transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func TestProviderLink(t *testing.T) {
	say := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if auth := r.Header.Get("Proxy-Authorization"); auth != "" {
				text += " with credentials"
			}
			_, _ = io.WriteString(w, text)
		}
	}
	own := httptest.NewServer(say("own"))
	defer own.Close()
	other := httptest.NewServer(say("other"))
	defer other.Close()
	proxy := httptest.NewServer(say("proxy"))
	defer proxy.Close()
	secure := httptest.NewTLSServer(say("secure"))
	defer secure.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_PROXY", strings.Replace(proxy.URL, "http://", "http://someone:x@", 1))

	for _, c := range []struct {
		name      string
		pc        ProviderConfig
		addresses []string
		url       string
		want      string // "" for an error
		refused   bool   // by the guard
	}{
		{"its own address", ProviderConfig{}, []string{own.URL + "/v1"}, own.URL + "/v1/x", "own", false},
		{"another address", ProviderConfig{}, []string{own.URL}, other.URL, "", true},
		{"the address of its tokens", ProviderConfig{}, []string{own.URL, other.URL}, other.URL, "other", false},
		{"before it is confined", ProviderConfig{}, nil, own.URL, "", true},
		{"a proxy", ProviderConfig{Proxy: proxy.URL}, []string{"http://provider.example/v1"}, "http://provider.example/v1", "proxy", false},
		{"a proxy with a password", ProviderConfig{Proxy: "env:TEST_PROXY"}, []string{"http://provider.example/v1"}, "http://provider.example/v1", "proxy with credentials", false},
		{"past the proxy", ProviderConfig{Proxy: "none"}, []string{own.URL}, own.URL, "own", false},
		{"an authority of its own", ProviderConfig{CAFile: ca}, []string{secure.URL}, secure.URL, "secure", false},
		{"an authority nobody trusts", ProviderConfig{}, []string{secure.URL}, secure.URL, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := linkOf(c.pc)
			if err != nil {
				t.Fatal(err)
			}
			if c.addresses != nil {
				if err := l.confine(c.addresses); err != nil {
					t.Fatal(err)
				}
			}
			got, err := get(t, l, c.url)
			if got != c.want || (err == nil) != (c.want != "") || errors.Is(err, egress.ErrRefused) != c.refused {
				t.Errorf("%q, %v", got, err)
			}
			if s := l.pool.Stats(); c.want != "" && s.Opened != 1 {
				t.Errorf("the pool counted %+v", s)
			}
		})
	}
}

func TestProviderLinkRefusesSettings(t *testing.T) {
	for _, c := range []struct {
		name string
		pc   ProviderConfig
		want string
	}{
		{"a proxy that is no URL", ProviderConfig{Proxy: "proxy:3128"}, "proxy:"},
		{"a proxy of another scheme", ProviderConfig{Proxy: "ftp://proxy.example"}, "proxy:"},
		{"a password written out", ProviderConfig{Proxy: "http://a:b@proxy.example"}, "env:NAME"},
		{"a secret that is not there", ProviderConfig{Proxy: "env:TEST_NO_SUCH_PROXY"}, "TEST_NO_SUCH_PROXY"},
		{"connections below nothing", ProviderConfig{Connections: -1}, "connections"},
		{"an authority that is not there", ProviderConfig{CAFile: "/does/not/exist"}, "caFile"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := linkOf(c.pc); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestProvidersConnectToNothingElse makes every kind of provider and asks its transport for a host it has no business with.
func TestProvidersConnectToNothingElse(t *testing.T) {
	cfg := defaults()
	for _, kind := range providerKinds() {
		pc := ProviderConfig{Kind: kind, BaseURL: "https://models.example/v1", Region: "eu-west-1", Project: "p", Location: "global", Publisher: "google"}
		if kind == "demo" {
			continue
		}
		if kind == "bedrock" {
			pc.API = "converse"
		}
		l, err := linkOf(pc)
		if err != nil {
			t.Fatal(err)
		}
		p, err := oneProvider(cfg, kind, pc, l.transport, nil)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		a, ok := p.(interface{ Addresses() []string })
		if !ok || len(a.Addresses()) == 0 || !strings.HasPrefix(a.Addresses()[0], "https://models.example") {
			t.Fatalf("%s does not say where it connects to", kind)
		}
		if err := l.confine(a.Addresses()); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if _, err := get(t, l, "http://169.254.169.254/latest"); !errors.Is(err, egress.ErrRefused) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

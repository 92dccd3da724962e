package vertex

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/oauth2"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/exchange"
	"github.com/lossless-group/gateway/provider/providertest"
)

func open(pub Publisher, change func(*Config)) providertest.Open {
	return func(t *testing.T, url string) provider.Provider {
		t.Helper()
		transport := exchange.NewTransport()
		t.Cleanup(transport.CloseIdleConnections)
		c := Config{Publisher: pub, Project: "acme-1", Location: "europe-west1", BaseURL: url,
			Exchange: exchange.Config{Transport: transport, TTFB: providertest.Patience, Whole: providertest.Patience, IdleTimeout: providertest.Patience}}
		if change != nil {
			change(&c)
		}
		p, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// claude is the dialect of the Messages API with bodies as Vertex AI takes them.
func claude() providertest.Dialect {
	d := providertest.Messages()
	body := d.Body
	d.Model = "claude-sonnet-4-6"
	d.Billed.Terms.Endpoint = endpointRegional // the conformance runs in a region
	d.Body = func(stream bool) string {
		return strings.Replace(body(stream), `"model":"claude-sonnet-4-6"`, `"anthropic_version":"`+Version+`"`, 1)
	}
	return d
}

func TestConformance(t *testing.T) {
	t.Run("claude", func(t *testing.T) { providertest.RunDialect(t, open(Anthropic, nil), nil, claude()) })
	t.Run("gemini", func(t *testing.T) {
		providertest.RunDialect(t, open(Google, nil), func(f fixtures.Fixture) bool { return f.Wire == string(chat.GeminiGenerate) }, providertest.Gemini())
	})
}

// Claude in a region costs more than the same from anywhere, and usage says which it was.
func TestRegionalUsage(t *testing.T) {
	for _, c := range []struct {
		name, location string
		want           bool
	}{{"a region", "europe-west1", true}, {"several regions", "eu", true}, {"global", "global", false}} {
		p, err := New(Config{Publisher: Anthropic, Project: "p", Location: c.location})
		if err != nil || p.regional != c.want {
			t.Errorf("%s: regional %v, %v", c.name, p.regional, err)
		}
	}
	whole := `{"id":"m","type":"message","role":"assistant","model":"claude-sonnet-4-6","content":[],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":5}}`
	ev, err := readRegional.Whole([]byte(whole))
	if err != nil || ev.Usage == nil || ev.Usage.Terms.Endpoint != "regional" || ev.Usage.Output != 5 {
		t.Errorf("whole: %+v, %v", ev.Usage, err)
	}
	dec := readRegional.Decoder(strings.NewReader("event: message_start\ndata: {\"type\":\"message_start\",\"message\":" + whole + "}\n\n"))
	if _, err := dec.Next(); err != nil {
		t.Fatal(err)
	}
	if u, told := dec.Usage(); !told || u.Terms.Endpoint != "regional" || u.Input != 3 {
		t.Errorf("stream: %+v, %v", u, told)
	}
}

func TestRequests(t *testing.T) {
	const path = "/v1/projects/acme-1/locations/europe-west1/publishers/"
	for _, c := range []struct {
		name   string
		pub    Publisher
		model  string
		body   string
		betas  []string
		stream bool
		path   string
		want   string // body
		beta   string
		code   string
	}{
		{name: "claude streamed", pub: Anthropic, model: "claude-sonnet-4-5@20250929", stream: true,
			body: `{"model":"x","max_tokens":1,"stream":true,"cache_control":{"type":"ephemeral"},"messages":[]}`,
			path: path + "anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict",
			want: `{"max_tokens":1,"stream":true,"messages":[],"anthropic_version":"` + Version + `"}`},
		{name: "claude whole, with betas", pub: Anthropic, model: "m", betas: []string{"context-1m-2025-08-07, files-api-2025-04-14", "context-management-2025-06-27"},
			body: `{"anthropic_version":"other","model":"x","context_management":{"edits":[]},"messages":[]}`,
			path: path + "anthropic/models/m:rawPredict", beta: "context-1m-2025-08-07,context-management-2025-06-27",
			want: `{"context_management":{"edits":[]},"messages":[],"anthropic_version":"` + Version + `"}`},
		{name: "a field goes with its beta", pub: Anthropic, model: "m", body: `{"context_management":{},"service_tier":"auto"}`, path: path + "anthropic/models/m:rawPredict",
			want: `{"anthropic_version":"` + Version + `"}`},
		{name: "tool servers", pub: Anthropic, model: "m", body: `{"mcp_servers":[]}`, code: "unsupported_field"},
		{name: "not JSON", pub: Anthropic, model: "m", body: `{"a"`, code: "invalid_request"},
		{name: "gemini streamed", pub: Google, model: "gemini-3-pro", stream: true, body: `{"contents": []}`, path: path + "google/models/gemini-3-pro:streamGenerateContent?alt=sse", want: `{"contents": []}`},
		{name: "gemini whole", pub: Google, model: "gemini-3-pro", body: `{"contents":[]}`, path: path + "google/models/gemini-3-pro:generateContent", want: `{"contents":[]}`},
		{name: "a model that would leave its path", pub: Google, model: "../x", body: `{}`, code: "invalid_request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			p := open(c.pub, nil)(t, up.URL)
			if c.pub == Google {
				up.Push(providertest.Gemini().Whole)
				if c.stream {
					up.Push(upstream.Script{})
				}
			}
			s, err := p.Open(t.Context(), provider.Call{Model: c.model, Key: keyring.NewSecret("token"), Stream: c.stream,
				Body: providertest.MaskedAs(t, p.Protocol(), []byte(c.body)), Forward: http.Header{"Anthropic-Beta": c.betas}})
			if c.code != "" {
				if fault.From(err).Code != c.code || len(up.Requests()) != 0 {
					t.Errorf("got %v", err)
				}
				return
			}
			if err == nil {
				s.Close()
			}
			r := up.Requests()[0]
			if r.Path != c.path || string(r.Body) != c.want || r.Header.Get("Anthropic-Beta") != c.beta || r.Header.Get("Authorization") != "Bearer token" {
				t.Errorf("sent %s %s %v", r.Path, r.Body, r.Header)
			}
		})
	}
}

// serviceAccount is a key as Google writes it, made for this run.
func serviceAccount(t *testing.T, tokenURI string) keyring.Secret {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "gw@acme-1.iam.gserviceaccount.com", "private_key_id": "1", "token_uri": tokenURI,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return keyring.NewSecret(string(b))
}

func TestServiceAccount(t *testing.T) {
	var asked, elsewhere atomic.Int32
	status := http.StatusOK
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if status != http.StatusOK {
			_, _ = w.Write([]byte(`{"error":"invalid_grant","error_description":"account gone"}`))
			return
		}
		_, _ = w.Write([]byte(`{"access_token":"made","token_type":"Bearer","expires_in":3600}`))
	}))
	defer tokens.Close()
	trap := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer trap.Close()
	up := upstream.Start(t)
	p := open(Anthropic, func(c *Config) { c.TokenURL = tokens.URL })(t, up.URL)
	call := func(key keyring.Secret) error {
		s, err := p.Open(t.Context(), provider.Call{Model: "m", Key: key, Body: providertest.Masked(t, []byte(`{"messages":[]}`))})
		if err == nil {
			_ = s.Close()
		}
		return err
	}
	key := serviceAccount(t, trap.URL)
	for range 3 {
		if err := call(key); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range up.Requests() {
		if r.Header.Get("Authorization") != "Bearer made" {
			t.Errorf("authorization %q", r.Header.Get("Authorization"))
		}
	}
	if asked.Load() != 1 || elsewhere.Load() != 0 {
		t.Errorf("%d tokens asked for, %d at the address in the key; want 1 and 0", asked.Load(), elsewhere.Load())
	}
	status = http.StatusBadRequest
	err := call(serviceAccount(t, trap.URL))
	if fe := fault.From(err); fe.Code != "provider_key_rejected" || fe.Upstream == nil || fe.Upstream.Type != "invalid_grant" {
		t.Errorf("an account that is gone: %v", err)
	}
	status = http.StatusInternalServerError
	if err := call(serviceAccount(t, trap.URL)); fault.From(err).Code != "upstream_error" {
		t.Errorf("a token endpoint that fails: %v", err)
	}
	for _, bad := range []string{`{"type":"authorized_user"}`, `{"type":"external_account","token_url":"` + trap.URL + `"}`, `{`} {
		if err := call(keyring.NewSecret(bad)); fault.From(err).Code != "provider_key_rejected" || strings.Contains(err.Error(), trap.URL) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err := call(keyring.Secret{}); fault.From(err).Code != "provider_key_rejected" {
		t.Errorf("no key: %v", err)
	}
	tokens.Close()
	if err := call(serviceAccount(t, trap.URL)); fault.From(err).Code != "upstream_unreachable" {
		t.Errorf("no token endpoint: %v", err)
	}
}

type source func() (*oauth2.Token, error)

func (s source) Token() (*oauth2.Token, error) { return s() }

func TestSourceOfItsOwn(t *testing.T) {
	up := upstream.Start(t)
	fails := false
	p := open(Anthropic, func(c *Config) {
		c.Source = source(func() (*oauth2.Token, error) {
			if fails {
				return nil, errors.New("no")
			}
			return &oauth2.Token{AccessToken: "ambient"}, nil
		})
	})(t, up.URL)
	if p.(provider.NeedsKey).NeedsKey() {
		t.Error("a key is asked for")
	}
	n, err := p.(*Provider).CountTokens(t.Context(), provider.Call{Model: "m", Body: providertest.MaskedAs(t, chat.AnthropicMessages, []byte(`{"model":"m","messages":[]}`))})
	if err == nil {
		t.Errorf("%d tokens from an answer that is no count", n)
	}
	up.Push(upstream.Script{Body: []byte(`{"input_tokens":12}`)})
	if n, err = p.(*Provider).CountTokens(t.Context(), provider.Call{Model: "m", Body: providertest.MaskedAs(t, chat.AnthropicMessages, []byte(`{"model":"m","messages":[]}`))}); err != nil || n != 12 {
		t.Errorf("%d, %v", n, err)
	}
	r := up.Requests()[1]
	if r.Header.Get("Authorization") != "Bearer ambient" || !strings.HasSuffix(r.Path, "/count-tokens:rawPredict") ||
		string(r.Body) != `{"model":"m","messages":[],"anthropic_version":"`+Version+`"}` {
		t.Errorf("%s %s %v", r.Path, r.Body, r.Header)
	}
	fails = true
	if _, err := p.Open(t.Context(), provider.Call{Model: "m", Body: providertest.Body(t, true)}); fault.From(err).Code != "upstream_unreachable" {
		t.Errorf("got %v", err)
	}
}

func TestNew(t *testing.T) {
	for _, c := range []struct {
		name string
		c    Config
		base string // empty: refused
	}{
		{"region", Config{Publisher: Google, Project: "p", Location: "us-east5"}, "https://us-east5-aiplatform.googleapis.com"},
		{"global", Config{Publisher: Anthropic, Project: "p", Location: "global"}, "https://aiplatform.googleapis.com"},
		{"multi-region", Config{Publisher: Anthropic, Project: "example.com:p", Location: "eu"}, "https://aiplatform.eu.rep.googleapis.com"},
		{"no publisher", Config{Project: "p", Location: "us"}, ""},
		{"no project", Config{Publisher: Google, Location: "us"}, ""},
		{"a path for a project", Config{Publisher: Google, Project: "p/../q", Location: "us"}, ""},
		{"a host for a location", Config{Publisher: Google, Project: "p", Location: "evil.example/"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := New(c.c)
			if c.base == "" {
				if !fault.Is(err, fault.Invalid) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || !strings.HasPrefix(p.base.String(), c.base+"/v1/projects/") {
				t.Errorf("%v, %v", p, err)
			}
		})
	}
}

package bedrock

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/exchange"
	"github.com/lossless-group/gateway/provider/providertest"
)

func open(api API, change func(*Config)) providertest.Open {
	return func(t *testing.T, url string) provider.Provider {
		t.Helper()
		transport := exchange.NewTransport()
		t.Cleanup(transport.CloseIdleConnections)
		c := Config{API: api, Region: "eu-central-1", BaseURL: url, Exchange: exchange.Config{Transport: transport, TTFB: providertest.Patience,
			Whole: providertest.Patience, IdleTimeout: providertest.Patience}}
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

func TestConformance(t *testing.T) {
	t.Run("invoke", func(t *testing.T) {
		providertest.RunDialect(t, open(Invoke, nil), func(f fixtures.Fixture) bool { return f.Wire == "bedrock.invoke.anthropic" }, providertest.BedrockInvoke())
	})
	t.Run("converse", func(t *testing.T) {
		providertest.RunDialect(t, open(Converse, nil), func(f fixtures.Fixture) bool { return f.Wire == string(chat.BedrockConverse) }, providertest.BedrockConverse())
	})
}

func TestRequests(t *testing.T) {
	const body = `{"model":"x","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}`
	for _, c := range []struct {
		name, model, key string
		api              API
		stream           bool
		betas            []string
		path, want, auth string
	}{
		{name: "invoke streamed", api: Invoke, stream: true, model: "eu.anthropic.claude-sonnet-4-5-20250929-v1:0", key: "api-key", auth: "Bearer api-key",
			path: "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke-with-response-stream",
			want: `{"max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"anthropic_version":"bedrock-2023-05-31"}`},
		{name: "invoke with betas", api: Invoke, model: "m", key: "api-key", auth: "Bearer api-key", betas: []string{"context-1m-2025-08-07,unknown"}, path: "/model/m/invoke",
			want: `{"max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"anthropic_version":"bedrock-2023-05-31","anthropic_beta":["context-1m-2025-08-07"]}`},
		{name: "a profile's name holds slashes", api: Invoke, model: "arn:aws:bedrock:eu-central-1:1:inference-profile/x", key: "api-key", auth: "Bearer api-key",
			path: "/model/arn%3Aaws%3Abedrock%3Aeu-central-1%3A1%3Ainference-profile%2Fx/invoke",
			want: `{"max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"anthropic_version":"bedrock-2023-05-31"}`},
		{name: "converse", api: Converse, model: "amazon.nova-pro-v1:0", key: "api-key", auth: "Bearer api-key", path: "/model/amazon.nova-pro-v1%3A0/converse",
			want: `{"messages":[{"role":"user","content":[{"text":"Hi"}]}],"inferenceConfig":{"maxTokens":9}}`},
		{name: "converse streamed and signed", api: Converse, stream: true, model: "m", key: "AKIA" + "EXAMPLE:secret:session", path: "/model/m/converse-stream",
			auth: "AWS4-HMAC-SHA256 Credential=AKIA" + "EXAMPLE/20261130/eu-central-1/bedrock/aws4_request, ",
			want: `{"messages":[{"role":"user","content":[{"text":"Hi"}]}],"inferenceConfig":{"maxTokens":9}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			p := open(c.api, func(x *Config) {
				x.Exchange.Now = func() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }
			})(t, up.URL)
			s, err := p.Open(t.Context(), provider.Call{Model: c.model, Key: keyring.NewSecret(c.key), Stream: c.stream,
				Body: providertest.Masked(t, []byte(body)), Forward: http.Header{"Anthropic-Beta": c.betas}})
			if err == nil {
				s.Close()
			}
			r := up.Requests()[0]
			if r.Path != c.path || string(r.Body) != c.want || !strings.HasPrefix(r.Header.Get("Authorization"), c.auth) {
				t.Errorf("sent %s %s %q", r.Path, r.Body, r.Header.Get("Authorization"))
			}
			if signed := strings.HasPrefix(c.auth, "AWS4"); signed {
				if r.Header.Get("X-Amz-Security-Token") != "session" || r.Header.Get("X-Amz-Date") != "20261130T120000Z" || !strings.Contains(r.Header.Get("Authorization"), "content-type") {
					t.Errorf("headers %v", r.Header)
				}
				for name, v := range r.Header {
					if strings.Contains(strings.Join(v, " "), "secret") {
						t.Errorf("the secret stands in %s", name)
					}
				}
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name, body, key string
		api             API
		code            string
	}{
		{"tool servers", `{"model":"m","max_tokens":1,"mcp_servers":[],"messages":[]}`, "k", Invoke, "unsupported_field"},
		{"an image by address", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://x/y.png"}}]}]}`, "k", Converse, "unsupported_field"},
		{"a body that is none", `{"model":"m"}`, "k", Converse, "invalid_request"},
		{"half a key", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, "AKIA" + "EXAMPLE", Converse, "provider_key_rejected"},
		{"no key", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, "", Converse, "provider_key_rejected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			_, err := open(c.api, nil)(t, up.URL).Open(t.Context(), provider.Call{Model: "m", Key: keyring.NewSecret(c.key), Body: providertest.Masked(t, []byte(c.body))})
			if fe := fault.From(err); err == nil || fe.Code != c.code || len(up.Requests()) != 0 {
				t.Errorf("got %v after %d requests, want %s", err, len(up.Requests()), c.code)
			}
		})
	}
}

func TestParseKey(t *testing.T) {
	for _, c := range []struct {
		name, key            string
		ok                   bool
		bearer, id, sec, tok string
	}{
		{"bearer", "abc", true, "abc", "", "", ""},
		{"pair", "AKIA" + "1:s", true, "", "AKIA" + "1", "s", ""},
		{"with session", "ASIA" + "1:s:t:u", true, "", "ASIA" + "1", "s", "t:u"},
		{"of the tools", `{"Version":1,"AccessKeyId":"a","SecretAccessKey":"s","SessionToken":"t"}`, true, "", "a", "s", "t"},
		{"in lower case", `{"aws_access_key_id":"a","aws_secret_access_key":"s"}`, true, "", "a", "s", ""},
		{"half an object", `{"AccessKeyId":"a"}`, false, "", "a", "", ""},
		{"no object", `{`, false, "", "", "", ""},
		{"with a space", "a b", false, "a b", "", "", ""},
		{"empty", "", false, "", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, ok := ParseKey(keyring.NewSecret(c.key))
			if ok != c.ok || k.Bearer != c.bearer || k.AWS.AccessKeyID != c.id || k.AWS.SecretAccessKey != c.sec || k.AWS.SessionToken != c.tok {
				t.Errorf("%+v, %v", k, ok)
			}
		})
	}
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		header string
		body   string
		kind   fault.Kind
		code   string
	}{
		{"throttled with 400", 400, "ThrottlingException", `{"message":"m"}`, fault.RateLimited, "upstream_rate_limited"},
		{"quota", 400, "ServiceQuotaExceededException:x", `{"Message":"m"}`, fault.RateLimited, "upstream_rate_limited"},
		{"model not ready", 429, "ModelNotReadyException", `{"message":"m"}`, fault.Unavailable, "upstream_overloaded"},
		{"model too slow", 408, "ModelTimeoutException", `{"message":"m"}`, fault.Timeout, "upstream_timeout"},
		{"model failed", 424, "ModelErrorException", `{"message":"m"}`, fault.Upstream, "upstream_error"},
		{"signature", 403, "InvalidSignatureException", `{"message":"m"}`, fault.Forbidden, "provider_key_rejected"},
		{"type in the body", 400, "", `{"__type":"com.amazon#ValidationException","message":"m"}`, fault.Invalid, "upstream_rejected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			up.Push(upstream.Script{Status: c.status, Header: http.Header{"X-Amzn-Errortype": {c.header}, "Content-Type": {"application/json"}}, Body: []byte(c.body)})
			_, err := open(Invoke, nil)(t, up.URL).Open(t.Context(), provider.Call{Model: "m", Key: keyring.NewSecret("k"), Body: providertest.Body(t, false)})
			if fe := fault.From(err); err == nil || fe.Kind != c.kind || fe.Code != c.code || fe.Upstream == nil || fe.Upstream.Message != "m" || !strings.HasSuffix(fe.Upstream.Type, "Exception") {
				t.Errorf("got %v, upstream %+v", err, fe.Upstream)
			}
		})
	}
}

type credentials func(context.Context) (aws.Credentials, error)

func (c credentials) Retrieve(ctx context.Context) (aws.Credentials, error) { return c(ctx) }

func TestCredentialsOfItsOwn(t *testing.T) {
	up := upstream.Start(t)
	var fails error
	p := open(Invoke, func(c *Config) {
		c.Credentials = credentials(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "own", SecretAccessKey: "s"}, fails
		})
	})(t, up.URL)
	if p.(provider.NeedsKey).NeedsKey() {
		t.Error("a key is asked for")
	}
	up.Push(upstream.Script{Body: []byte(`{"inputTokens":12}`)}, upstream.Script{Body: []byte(`{}`)})
	n, err := p.(*Provider).CountTokens(t.Context(), provider.Call{Model: "m", Body: providertest.MaskedAs(t, chat.AnthropicMessages, []byte(`{"model":"m","max_tokens":1,"messages":[]}`))})
	r := up.Requests()[0]
	if err != nil || n != 12 || r.Path != "/model/m/count-tokens" || !strings.Contains(r.Header.Get("Authorization"), "Credential=own/") || !strings.HasPrefix(string(r.Body), `{"input":{"invokeModel":{"body":"`) {
		t.Errorf("%d, %v: %s %s", n, err, r.Path, r.Body)
	}
	if _, err := p.(*Provider).CountTokens(t.Context(), provider.Call{Model: "m", Body: providertest.MaskedAs(t, chat.AnthropicMessages, []byte(`{}`))}); fault.From(err).Code != "upstream_error" {
		t.Errorf("an answer without a count: %v", err)
	}
	fails = errors.New("no")
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
		{"region", Config{API: Invoke, Region: "eu-central-1"}, "https://bedrock-runtime.eu-central-1.amazonaws.com"},
		{"China", Config{API: Converse, Region: "cn-north-1"}, "https://bedrock-runtime.cn-north-1.amazonaws.com.cn"},
		{"no API", Config{Region: "eu-central-1"}, ""},
		{"a host for a region", Config{API: Invoke, Region: "evil.example/"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := New(c.c)
			if c.base == "" {
				if !fault.Is(err, fault.Invalid) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || p.base.String() != c.base || p.Name() != "bedrock" {
				t.Errorf("%v, %v", p, err)
			}
		})
	}
}

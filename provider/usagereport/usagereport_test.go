package usagereport

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/reconcile"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
)

var (
	from = time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
	day  = from.Unix() / 86400
)

// standIn answers pages by path and page; what it has no page for is a fault of the test.
func standIn(t *testing.T, pages map[string]string, check func(*http.Request)) Config {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		check(r)
		body, ok := pages[r.URL.Path+"#"+r.URL.Query().Get("page")]
		if !ok {
			t.Errorf("asked for %s", r.URL)
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if status, rest, found := strings.Cut(body, "!"); found {
			var code int
			if _, err := fmt.Sscan(status, &code); err == nil {
				w.WriteHeader(code)
				body = rest
			}
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return Config{BaseURL: s.URL, Key: keyring.NewSecret("admin-" + strings.Repeat("k", 20)), Client: s.Client()}
}

const (
	anthropicUsage = "/v1/organizations/usage_report/messages#"
	anthropicCost  = "/v1/organizations/cost_report#"
	openaiUsage    = "/v1/organization/usage/completions#"
	openaiCosts    = "/v1/organization/costs#"
)

func TestAnthropic(t *testing.T) {
	c := standIn(t, map[string]string{
		anthropicUsage: `{"data":[{"starting_at":"2026-11-02T00:00:00Z","ending_at":"2026-11-03T00:00:00Z","results":[
			{"uncached_input_tokens":1500,"cache_creation":{"ephemeral_1h_input_tokens":1000,"ephemeral_5m_input_tokens":500},"cache_read_input_tokens":200,"output_tokens":500,"server_tool_use":{"web_search_requests":10},
			 "api_key_id":"apikey_01","workspace_id":"wrkspc_01","model":"claude-sonnet-4-5-20250929","service_tier":"standard","context_window":"0-200k"}]}],"has_more":true,"next_page":"page_2"}`,
		anthropicUsage + "page_2": `{"data":[{"starting_at":"2026-11-03T00:00:00Z","ending_at":"2026-11-04T00:00:00Z","results":[
			{"uncached_input_tokens":7,"cache_creation":{"ephemeral_1h_input_tokens":0,"ephemeral_5m_input_tokens":0},"cache_read_input_tokens":0,"output_tokens":1,"server_tool_use":{"web_search_requests":0},
			 "api_key_id":null,"workspace_id":null,"model":"claude-haiku-4-5","service_tier":"standard","context_window":"0-200k"}]}],"has_more":false,"next_page":null}`,
		anthropicCost: `{"data":[{"starting_at":"2026-11-02T00:00:00Z","ending_at":"2026-11-03T00:00:00Z","results":[
			{"currency":"USD","amount":"123.78912","workspace_id":null,"description":null,"cost_type":null,"context_window":null,"model":null,"service_tier":null,"token_type":null}]}],"has_more":true,"next_page":"c2"}`,
		anthropicCost + "c2": `{"data":[{"starting_at":"2026-11-02T00:00:00Z","ending_at":"2026-11-03T00:00:00Z","results":[{"currency":"USD","amount":"0.5"}]}],"has_more":false,"next_page":null}`,
	}, func(r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("X-Api-Key"), "admin-") || r.Header.Get("Anthropic-Version") == "" || r.URL.Query().Get("bucket_width") != "1d" || r.URL.Query().Get("starting_at") != "2026-11-02T00:00:00Z" || r.URL.Query().Get("ending_at") != "2026-11-04T00:00:00Z" {
			t.Errorf("asked with %v %s", r.Header, r.URL)
		}
		if strings.Contains(r.URL.Path, "usage") && cmp.Diff([]string{"api_key_id", "model"}, r.URL.Query()["group_by[]"]) != "" {
			t.Errorf("grouped by %v", r.URL.Query())
		}
	})
	got, err := Read(t.Context(), Anthropic, c, from, from.AddDate(0, 0, 2))
	if err != nil {
		t.Fatal(err)
	}
	want := reconcile.Report{Lines: []reconcile.Line{
		{Day: day, Key: "apikey_01", Model: "claude-sonnet-4-5-20250929", Usage: chat.Usage{Input: 1500, CacheRead: 200, CacheWrite5m: 500, CacheWrite1h: 1000, Output: 500, Searches: 10}},
		{Day: day + 1, Model: "claude-haiku-4-5", Usage: chat.Usage{Input: 7, Output: 1}},
	}, Costs: map[int64]billing.Pico{day: 1_242_891_200_000}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestOpenAI(t *testing.T) {
	c := standIn(t, map[string]string{
		openaiUsage: `{"object":"page","data":[{"object":"bucket","start_time":1793577600,"end_time":1793664000,"results":[
			{"object":"organization.usage.completions.result","input_tokens":1000,"output_tokens":500,"input_cached_tokens":800,"input_audio_tokens":0,"output_audio_tokens":0,"num_model_requests":5,"project_id":null,"user_id":null,"api_key_id":"key_a","model":"gpt-5.4-2026-03-05","batch":null}]}],"has_more":true,"next_page":"page_AAA"}`,
		openaiUsage + "page_AAA": `{"object":"page","data":[],"has_more":false,"next_page":null}`,
		openaiCosts:              `{"object":"page","data":[{"object":"bucket","start_time":1793577600,"end_time":1793664000,"results":[{"object":"organization.costs.result","amount":{"value":0.06,"currency":"usd"},"line_item":null,"project_id":null},{"amount":{"value":1.5e-05,"currency":"usd"}}]}],"has_more":false,"next_page":null}`,
	}, func(r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer admin-") || r.URL.Query().Get("start_time") != "1793577600" || r.URL.Query().Get("bucket_width") != "1d" {
			t.Errorf("asked with %v %s", r.Header, r.URL)
		}
	})
	got, err := Read(t.Context(), OpenAI, c, from, from.AddDate(0, 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	want := reconcile.Report{Lines: []reconcile.Line{{Day: day, Key: "key_a", Model: "gpt-5.4-2026-03-05", Usage: chat.Usage{Input: 200, CacheRead: 800, Output: 500}}}, Costs: map[int64]billing.Pico{day: 60_015_000_000}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A report that cannot be read to its end is no report, and no error tells the key.
func TestFaults(t *testing.T) {
	for _, c := range []struct{ name, usage, code string }{
		{"a key without rights", `401!{"error":"x"}`, "report_key_rejected"},
		{"overloaded", `529!{}`, "report_refused"},
		{"no JSON", `<html>`, "report_unreadable"},
		{"the same page again", `{"data":[],"has_more":true,"next_page":""}`, "report_endless"},
		{"another currency", `{"data":[{"starting_at":"2026-11-02T00:00:00Z","results":[{"currency":"EUR","amount":"1"}]}],"has_more":false}`, "report_unreadable"},
		{"an amount that is none", `{"data":[{"starting_at":"2026-11-02T00:00:00Z","results":[{"currency":"USD","amount":"1,5"}]}],"has_more":false}`, "report_unreadable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pages := map[string]string{anthropicUsage: c.usage, anthropicCost: `{"data":[],"has_more":false}`}
			if strings.Contains(c.usage, "currency") {
				pages = map[string]string{anthropicUsage: `{"data":[],"has_more":false}`, anthropicCost: c.usage}
			}
			cfg := standIn(t, pages, func(*http.Request) {})
			got, err := Read(t.Context(), Anthropic, cfg, from, from.AddDate(0, 0, 1))
			if fault.From(err).Code != c.code || len(got.Lines) != 0 {
				t.Errorf("%v, want %s", err, c.code)
			}
			if err != nil && strings.Contains(err.Error(), cfg.Key.Reveal()) {
				t.Error("the error tells the key")
			}
		})
	}
	if _, err := Read(t.Context(), "mistral", Config{Client: http.DefaultClient, Key: keyring.NewSecret("k")}, from, from.AddDate(0, 0, 1)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a provider without reports: %v", err)
	}
}

func TestMoney(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"0.06", "0.06"}, {"6e-2", "0.06"}, {"1.5e-05", "0.000015"}, {"12378912e-5", "123.78912"}, {"-3", "-3"}, {"1e3", "1000"}, {"0.1234567890129999", "0.123456789012"}, {"123.78912e-2", "1.2378912"},
	} {
		got, err := money(c.in)
		if err != nil || got.USD() != c.want {
			t.Errorf("%s: %s, %v; want %s", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"", "x", "1e99", "1.2.3", "0.0000000000001x", "1e", "--1"} {
		if got, err := money(in); err == nil {
			t.Errorf("%q is %s", in, got)
		}
	}
}

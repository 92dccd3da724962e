package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// notice is one request a receiver got.
type notice struct {
	id, body string
	header   http.Header
	at       time.Time
}

// hookReceiver is an organisation's own system.
func hookReceiver(t *testing.T) (url string, got chan notice) {
	t.Helper()
	got = make(chan notice, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- notice{r.Header.Get("webhook-id"), string(body), r.Header, time.Now()}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/hook", got
}

func await(t *testing.T, got chan notice, within time.Duration) notice {
	t.Helper()
	select {
	case h := <-got:
		return h
	case <-time.After(within):
		t.Fatal("nothing was told in time")
	}
	return notice{}
}

func TestBudgetAlertsReachTheWebhook(t *testing.T) {
	s := startPaying(t, func(c *Config) { c.Webhooks.Allow = []string{"127.0.0.1"} })
	const path = "/api/orgs/acme.example/billing/webhook"
	admin, token := s.token("admin", "acme.example"), s.token("editor", "acme.example")
	url, got := hookReceiver(t)
	status, body, header := s.call("PUT", path, admin, `{"url":"`+url+`"}`)
	var made struct {
		URL, Secret string
		Version     int
	}
	if err := json.Unmarshal([]byte(body), &made); err != nil || status != 201 || made.URL != url || !strings.HasPrefix(made.Secret, "whsec_") || header.Get("ETag") != `"1"` || header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v %s", status, header, body)
	}
	if _, body, _ := s.call("GET", path, admin, ""); strings.Contains(body, "whsec_") || !strings.Contains(body, url) {
		t.Errorf("read again: %s", body)
	}
	hook, err := standardwebhooks.NewWebhook(made.Secret)
	if err != nil {
		t.Fatal(err)
	}

	status, body, _ = s.call("POST", path+"/test", admin, "")
	var test struct{ ID string }
	if err := json.Unmarshal([]byte(body), &test); err != nil || status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	h := await(t, got, 5*time.Second)
	if err := hook.Verify([]byte(h.body), h.header); err != nil || h.id != test.ID || !strings.Contains(h.body, `"webhook.test"`) {
		t.Errorf("the test said %+v: %v", h, err)
	}

	s.putBudget("m", `{"cap":"0.01"}`)
	s.up.Answer(func(upstream.Request) upstream.Script {
		return upstream.Stream("claude-sonnet-4-6", 2000, 200, "Hello.")
	}) // 0.009 USD
	crossed := time.Now()
	if status, body, _ := s.call("POST", "/v1/messages", token, strings.Replace(inputMessage, `{`, `{"stream":true,`, 1)); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	percents := map[int]int{}
	for range 2 {
		h := await(t, got, 5*time.Second)
		if err := hook.Verify([]byte(h.body), h.header); err != nil {
			t.Error(err)
		}
		var n struct {
			Type string
			Data struct {
				Org, Budget, Spent, Cap string
				Percent                 int
			}
		}
		if err := json.Unmarshal([]byte(h.body), &n); err != nil || n.Type != "budget.threshold_reached" || n.Data.Org != "acme.example" || n.Data.Budget != "m" || n.Data.Cap != "0.01" || n.Data.Spent != "0.009" {
			t.Errorf("told %s, %v", h.body, err)
		}
		percents[n.Data.Percent]++
		if took := h.at.Sub(crossed); took > 5*time.Second {
			t.Errorf("told after %v", took)
		}
	}
	if percents[50] != 1 || percents[80] != 1 {
		t.Errorf("told %v", percents)
	}
	s.call("POST", "/v1/messages", token, inputMessage) // crosses nothing anew
	var log struct {
		Deliveries []struct {
			ID, State string
			Status    int
		}
	}
	for range 100 {
		_, body, _ = s.call("GET", path+"/deliveries", admin, "")
		if err := json.Unmarshal([]byte(body), &log); err != nil {
			t.Fatal(err)
		}
		if strings.Count(body, `"delivered"`) == 3 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if len(log.Deliveries) != 3 {
		t.Errorf("deliveries %s", body)
	}
	for _, d := range log.Deliveries {
		if d.State != "delivered" || d.Status != 204 {
			t.Errorf("delivery %+v", d)
		}
	}

	// Nobody else's.
	other := s.token("admin", "linger.example")
	for _, c := range []struct {
		method, path, body string
		want               int
		say                string
	}{
		{"GET", "/api/orgs/linger.example/billing/webhook", "", 200, `"webhook":null`},
		{"GET", "/api/orgs/linger.example/billing/webhook/deliveries", "", 200, `"deliveries":[]`},
		{"POST", "/api/orgs/linger.example/billing/webhook/test", "", 404, "no webhook"},
		{"DELETE", "/api/orgs/linger.example/billing/webhook", "", 404, "no webhook"},
		{"GET", path, "", 403, ""},
		{"GET", path + "/deliveries", "", 403, ""},
	} {
		if status, body, _ := s.call(c.method, c.path, other, c.body); status != c.want || !strings.Contains(body, c.say) || strings.Contains(body, url) {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
		}
	}
	if status, body, _ := s.call("PUT", path, admin, `{"url":"`+url+`","newSecret":true}`, "If-Match", `"1"`); status != 200 || !strings.Contains(body, "whsec_") || strings.Contains(body, made.Secret) {
		t.Errorf("a new secret: %d %s", status, body)
	}
	if status, body, _ := s.call("DELETE", path, admin, "", "If-Match", `"1"`); status != 412 {
		t.Errorf("deleting an old version: %d %s", status, body)
	}
	if status, body, _ := s.call("DELETE", path, admin, "", "If-Match", `"2"`); status != 204 {
		t.Errorf("%d %s", status, body)
	}
	if strings.Contains(s.logs.String(), "whsec_") {
		t.Error("the secret is in the log")
	}
	if _, audit, _ := s.call("GET", "/api/orgs/acme.example/audit", admin, ""); strings.Count(audit, `"billing.webhook_put"`) != 2 || strings.Contains(audit, "whsec_") {
		t.Errorf("audit %s", audit)
	}
}

func TestWebhookAddressesAreJudged(t *testing.T) {
	s := startPaying(t, nil)
	admin := s.token("admin", "acme.example")
	for _, c := range []struct {
		name, url string
		want      int
	}{
		{"this machine", "https://127.0.0.1/h", 403},
		{"this machine by name", "https://localhost/h", 403},
		{"metadata of a cloud", "https://169.254.169.254/latest", 403},
		{"a private network", "https://10.0.0.1/h", 403},
		{"no TLS", "http://hooks.example/h", 422},
		{"another scheme", "ftp://hooks.example/h", 422},
		{"a password", "https://a:b@hooks.example/h", 422},
		{"nothing", "", 422},
		{"fine", "https://hooks.example/h", 201},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body, _ := s.call("PUT", "/api/orgs/acme.example/billing/webhook", admin, `{"url":"`+c.url+`"}`)
			if status != c.want || c.want != 201 && !strings.Contains(body, `"/url"`) {
				t.Errorf("%d %s, want %d", status, body, c.want)
			}
		})
	}
}

func TestBudgetThatIsNearlyUsedIsInTheHeaders(t *testing.T) {
	s := startPaying(t, nil)
	token := s.token("editor", "acme.example")
	s.putBudget("wide", `{"cap":"100"}`)
	s.putBudget("soft", `{"cap":"0.01","mode":"warn"}`)
	s.up.Push(upstream.Stream("claude-sonnet-4-6", 2000, 200, "Hello.")) // 0.009 USD
	first := strings.Replace(inputMessage, `{`, `{"stream":true,`, 1)
	if status, answer, h := s.call("POST", "/v1/messages", token, first); status != 200 || h.Get("X-Budget-Used") != "" {
		t.Fatalf("%d %v %s", status, h, answer)
	}
	s.flush()
	for name, f := range budgetSurfaces {
		var used string
		for range 100 { // how a budget stands that refuses nothing is looked at once a second
			status, answer, h := s.call("POST", f.path, token, f.body)
			if status != 200 {
				t.Fatalf("%s: %d %s", name, status, answer)
			}
			if used = h.Get("X-Budget-Used"); used != "" {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if !strings.HasPrefix(used, `"soft";used=`) {
			t.Errorf("%s: %q", name, used)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/internal/integration/replay"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
)

// made is an access token as its maker sees it once.
type made struct {
	Token    string
	ID       string
	LastFour string
	Role     string
}

// mint makes a token of an organisation by one of its people; body is what it is to be besides its label.
func (s *service) mint(user, org, path, body string) made {
	s.t.Helper()
	if path == "" {
		path = "/api/orgs/" + org + "/tokens"
	}
	status, answer, header := s.call("POST", path, s.token(user, org), `{"label":"test"`+body+`}`)
	var m made
	if status != 201 || json.Unmarshal([]byte(answer), &m) != nil || m.Token == "" || header.Get("Cache-Control") != "no-store" {
		s.t.Fatalf("making a token of %s: %d %v %s", org, status, header, answer)
	}
	return m
}

const allSurfaces = `,"surfaces":["agent","anthropic","openai","gemini","admin"]`

const askCompletion = `{"model":"claude-sonnet-4-6","messages":[{"role":"user","content":"Hello"}]}`

// asked are the same question on each surface and the header its clients send their key in.
var asked = []struct{ surface, path, body, header, prefix, denied, refused string }{
	{"anthropic", "/v1/messages", inputMessage, "X-Api-Key", "", `"permission_error"`, `"authentication_error"`},
	{"openai", "/v1/chat/completions", askCompletion, "Authorization", "Bearer ", `"error":{`, `"error":{`},
	{"gemini", "/v1beta/models/claude-sonnet-4-6:generateContent", `{"contents":[{"role":"user","parts":[{"text":"Hello"}]}]}`, "X-Goog-Api-Key", "", `"PERMISSION_DENIED"`, `"UNAUTHENTICATED"`},
	{"agent", "/api/agent/chat", inputChat, "Authorization", "Bearer ", `"status":403`, `"status":401`},
}

// A token works on the surfaces it was made for, in the header each surface's clients use, and the ledger knows it.
func TestTokenOnEverySurface(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", drawnKey(200, 40))
	tok := s.mint("editor", "acme.example", "/api/me/tokens", allSurfaces)
	for _, q := range asked {
		if status, body, _ := s.call("POST", q.path, "", q.body, q.header, q.prefix+tok.Token); status != 200 {
			t.Errorf("%s: %d %s", q.surface, status, body)
		}
	}
	for _, q := range asked { // each of the others is refused in its own words
		one := s.mint("editor", "acme.example", "/api/me/tokens", `,"surfaces":["`+q.surface+`"]`)
		for _, other := range asked {
			status, body, _ := s.call("POST", other.path, "", other.body, other.header, other.prefix+one.Token)
			if want := map[bool]int{true: 200, false: 403}[other.surface == q.surface]; status != want || want == 403 && (!strings.Contains(body, other.denied) || !strings.Contains(body, "not good for the "+other.surface)) {
				t.Errorf("a token for %s on %s: %d, want %d: %s", q.surface, other.surface, status, want, body)
			}
		}
	}
	s.flush()
	status, body, _ := s.call("GET", "/api/orgs/acme.example/usage?by=token", s.token("admin", "acme.example"), "")
	if status != 200 || !strings.Contains(body, tok.ID) {
		t.Errorf("usage by token: %d %s", status, body)
	}
	if strings.Contains(s.logs.String(), tok.Token) {
		t.Error("a token is in the log")
	}
	// A budget on the token holds for the token alone.
	status, body, _ = s.call("PUT", "/api/orgs/acme.example/budgets/tok", s.token("admin", "acme.example"), `{"scope":{"kind":"token","subject":"`+tok.ID+`"},"cap":"0.000001"}`)
	if status/100 != 2 {
		t.Fatalf("a budget on a token: %d %s", status, body)
	}
	if status, body, _ := s.call("POST", "/v1/messages", tok.Token, inputMessage); status != 402 {
		t.Errorf("over the token's budget: %d %s", status, body)
	}
	if status, body, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), inputMessage); status != 200 {
		t.Errorf("the person without the token: %d %s", status, body)
	}
}

// Whatever is tried with a token that is not good for it is refused, with the right status and code, and reaches no provider.
func TestTokenAttacks(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", drawnKey(201, 40))
	admin := s.token("admin", "acme.example")
	full := s.mint("admin", "acme.example", "", allSurfaces)
	service := s.mint("admin", "acme.example", "", allSurfaces+`,"service":true,"role":"viewer"`)
	other := s.mint("admin", "linger.example", "", allSurfaces)
	model := s.mint("admin", "acme.example", "", allSurfaces+`,"models":["gpt-*"]`)
	away := s.mint("admin", "acme.example", "", allSurfaces+`,"networks":["192.0.2.0/24","2001:db8::/32"]`)
	near := s.mint("admin", "acme.example", "", allSurfaces+`,"networks":["127.0.0.0/8"]`)
	short := s.mint("admin", "acme.example", "", allSurfaces+`,"expiresAt":"`+time.Now().Add(1200*time.Millisecond).UTC().Format(time.RFC3339Nano)+`"`)
	revoked := s.mint("admin", "acme.example", "", allSurfaces)
	if status, body, _ := s.call("DELETE", "/api/orgs/acme.example/tokens/"+revoked.ID, admin, ""); status != 204 {
		t.Fatalf("revoking: %d %s", status, body)
	}
	rotated := s.mint("admin", "acme.example", "", allSurfaces)
	var anew made
	if status, body, _ := s.call("POST", "/api/orgs/acme.example/tokens/"+rotated.ID+"/rotate", admin, ""); status != 200 || json.Unmarshal([]byte(body), &anew) != nil || anew.ID != rotated.ID || anew.Token == rotated.Token {
		t.Fatalf("rotating: %d %s", status, body)
	}
	stranger, _ := tenancy.DrawToken()
	flip := func(tok string, at int) string { // one letter becomes another
		b := []byte(tok)
		b[at] = map[bool]byte{true: 'b', false: 'a'}[b[at] == 'a']
		return string(b)
	}
	time.Sleep(1300 * time.Millisecond) // short has ended
	before := len(s.up.Requests())
	for _, a := range []struct {
		name, token  string
		status       int
		code         string
		headers      []string
		method, path string
		body         string
	}{
		{name: "expired", token: short.Token, status: 401, code: "token_expired"},
		{name: "revoked", token: revoked.Token, status: 401, code: "token_revoked"},
		{name: "rotated away", token: rotated.Token, status: 401, code: "token_unknown"},
		{name: "never made", token: stranger, status: 401, code: "token_unknown"},
		{name: "truncated", token: full.Token[:len(full.Token)-1], status: 401, code: "token_unknown"},
		{name: "longer", token: full.Token + "a", status: 401, code: "token_unknown"},
		{name: "wrong checksum", token: flip(full.Token, len(full.Token)-1), status: 401, code: "token_unknown"},
		{name: "one letter changed", token: flip(full.Token, 10), status: 401, code: "token_unknown"},
		{name: "in capitals", token: "gw_" + strings.ToUpper(full.Token[3:]), status: 401, code: "token_unknown"},
		{name: "its id", token: full.ID, status: 401, code: "token_malformed"},
		{name: "prefix alone", token: "gw_", status: 401, code: "token_unknown"},
		{name: "a megabyte", token: "gw_" + strings.Repeat("a", 1<<20), status: 401, code: "token_unknown"},
		{name: "other organisation named", token: full.Token, status: 403, code: "org_not_member", headers: []string{"X-Org-Id", "linger.example"}},
		{name: "other organisation's path", token: full.Token, status: 403, code: "org_not_member", path: "/api/orgs/linger.example/keys"},
		{name: "other organisation's token on our path", token: other.Token, status: 403, code: "org_not_member", path: "/api/orgs/acme.example/keys"},
		{name: "acting for another", token: full.Token, status: 403, code: "token_act_as", headers: []string{"X-Act-As-Org", "linger.example"}},
		{name: "acting for its own", token: full.Token, status: 403, code: "token_act_as", headers: []string{"X-Act-As-Org", "acme.example"}},
		{name: "other model", token: model.Token, status: 403, code: "token_model", method: "POST", path: "/api/agent/chat", body: inputChat},
		{name: "other address", token: away.Token, status: 403, code: "token_address"},
		{name: "other address, said to be the right one", token: away.Token, status: 403, code: "token_address", headers: []string{"X-Forwarded-For", "192.0.2.7"}},
		{name: "beside another credential", token: full.Token, status: 401, code: "token_conflict", headers: []string{"X-Api-Key", near.Token}},
		{name: "making a token", token: full.Token, status: 403, code: "token_mint", method: "POST", path: "/api/me/tokens", body: `{"label":"x"}`},
		{name: "making one for the organisation", token: full.Token, status: 403, code: "token_mint", method: "POST", path: "/api/orgs/acme.example/tokens", body: `{"label":"x","service":true}`},
		{name: "listing tokens", token: full.Token, status: 403, code: "token_mint", path: "/api/orgs/acme.example/tokens"},
		{name: "a role it has not", token: service.Token, status: 403, code: "role_required", path: "/api/orgs/acme.example/keys"},
		{name: "operators' routes", token: full.Token, status: 403, code: "role_required", path: "/api/operator/apps"},
	} {
		t.Run(a.name, func(t *testing.T) {
			if a.method == "" {
				a.method = "GET"
			}
			if a.path == "" {
				a.path = "/api/agent/threads"
			}
			status, body, header := s.call(a.method, a.path, a.token, a.body, a.headers...)
			if r := readRefusal(t, header, body); status != a.status || r.Code != a.code || len(strings.Fields(r.Text)) < 4 {
				t.Errorf("%d %s, want %d %s: %s", status, r.Code, a.status, a.code, body)
			}
			if len(a.token) > 20 && strings.Contains(body, a.token[:20]) {
				t.Errorf("the refusal repeats the token: %s", body)
			}
			for _, q := range asked { // nor does it work on any surface, in that surface's words
				if a.path != "/api/agent/threads" || a.code == "token_conflict" {
					continue
				}
				status, body, _ := s.call("POST", q.path, "", q.body, append([]string{q.header, q.prefix + a.token}, a.headers...)...)
				if words := map[int]string{401: q.refused, 403: q.denied}[a.status]; status != a.status || !strings.Contains(body, words) {
					t.Errorf("on %s: %d, want %d: %s", q.surface, status, a.status, body)
				}
			}
		})
	}
	for _, q := range asked {
		if status, body, _ := s.call("POST", q.path, "", q.body, q.header, q.prefix+model.Token); status != 403 || !strings.Contains(body, q.denied) {
			t.Errorf("another model on %s: %d %s", q.surface, status, body)
		}
	}
	if n := len(s.up.Requests()) - before; n != 0 {
		t.Errorf("%d requests of bad tokens reached the provider", n)
	}
	for name, tok := range map[string]string{"rotated": anew.Token, "near": near.Token, "full": full.Token, "service": service.Token} {
		if status, body, _ := s.call("GET", "/api/agent/threads", tok, ""); status != 200 {
			t.Errorf("%s: the good one is refused: %d %s", name, status, body)
		}
	}
}

// What may not be made is not made, and nobody sees or ends what is another's.
func TestTokenMaking(t *testing.T) {
	s := startService(t, "", nil)
	const org, own = "/api/orgs/acme.example/tokens", "/api/me/tokens"
	for _, c := range []struct {
		name, user, path, body string
		status                 int
		code                   string
	}{
		{"no label", "admin", org, `{}`, 400, "invalid_request"},
		{"unknown member", "admin", org, `{"label":"x","scope":"all"}`, 400, "invalid_request"},
		{"two objects", "admin", org, `{"label":"x"}{}`, 400, "invalid_request"},
		{"higher role", "admin", org, `{"label":"x","role":"org_owner"}`, 403, "token_role"},
		{"superuser", "superuser", org, `{"label":"x","role":"superuser"}`, 403, "token_role"},
		{"an editor wants to be admin", "editor", own, `{"label":"x","role":"org_admin"}`, 403, "token_role"},
		{"no role", "admin", org, `{"label":"x","role":"emperor"}`, 400, "invalid_request"},
		{"an editor's service", "editor", own, `{"label":"x","service":true}`, 400, "invalid_request"},
		{"ended already", "admin", org, `{"label":"x","expiresAt":"2020-01-01T00:00:00Z"}`, 400, "invalid_request"},
		{"for ever", "admin", org, `{"label":"x","expiresAt":"2199-01-01T00:00:00Z"}`, 400, "invalid_request"},
		{"no surface", "admin", org, `{"label":"x","surfaces":["telnet"]}`, 400, "invalid_request"},
		{"no network", "admin", org, `{"label":"x","networks":["everywhere"]}`, 400, "invalid_request"},
		{"an editor on the organisation's", "editor", org, `{"label":"x"}`, 403, "role_required"},
	} {
		status, body, header := s.call("POST", c.path, s.token(c.user, "acme.example"), c.body)
		if r := readRefusal(t, header, body); status != c.status || r.Code != c.code {
			t.Errorf("%s: %d %s, want %d %s: %s", c.name, status, r.Code, c.status, c.code, body)
		}
	}
	// A superuser acting for an organisation gives its services tokens, and none that acts as them.
	act := []string{"X-Act-As-Org", "linger.example"}
	if status, body, _ := s.call("POST", "/api/orgs/linger.example/tokens", s.token("superuser", "acme.example"), `{"label":"x"}`, act...); status != 403 || !strings.Contains(body, "token_service_only") {
		t.Errorf("acting, as a person: %d %s", status, body)
	}
	if status, body, _ := s.call("POST", "/api/orgs/linger.example/tokens", s.token("superuser", "acme.example"), `{"label":"x","service":true,"role":"viewer"}`, act...); status != 201 {
		t.Errorf("acting, for a service: %d %s", status, body)
	}
	mine := s.mint("editor", "acme.example", own, "")
	lead := s.mint("owner", "acme.example", "", `,"service":true`)
	for _, c := range []struct {
		name, method, path, user, org string
		status                        int
		code                          string
	}{
		{"another person's, as one's own", "DELETE", own + "/" + mine.ID, "viewer", "acme.example", 404, "not_found"},
		{"another person's, rotated as one's own", "POST", own + "/" + mine.ID + "/rotate", "viewer", "acme.example", 404, "not_found"},
		{"a person's, rotated by their admin", "POST", org + "/" + mine.ID + "/rotate", "owner", "acme.example", 403, "token_personal"},
		{"an owner's service, rotated by an admin", "POST", org + "/" + lead.ID + "/rotate", "admin", "acme.example", 403, "token_role"},
		{"ours, under another organisation's path", "DELETE", "/api/orgs/linger.example/tokens/" + mine.ID, "admin", "linger.example", 404, "not_found"},
		{"ours, rotated by another organisation", "POST", "/api/orgs/linger.example/tokens/" + lead.ID + "/rotate", "owner", "linger.example", 404, "not_found"},
	} {
		status, body, header := s.call(c.method, c.path, s.token(c.user, c.org), "")
		if r := readRefusal(t, header, body); status != c.status || r.Code != c.code {
			t.Errorf("%s: %d %s, want %d %s: %s", c.name, status, r.Code, c.status, c.code, body)
		}
	}
	for _, path := range []string{"/api/orgs/linger.example/tokens", own} {
		if _, body, _ := s.call("GET", path, s.token("admin", "linger.example"), ""); strings.Contains(body, mine.ID) || strings.Contains(body, lead.ID) {
			t.Errorf("another organisation sees our tokens: %s", body)
		}
	}
	status, list, _ := s.call("GET", org, s.token("admin", "acme.example"), "")
	if status != 200 || !strings.Contains(list, mine.ID) || !strings.Contains(list, lead.ID) || strings.Contains(list, mine.Token) || strings.Contains(list, "hash") {
		t.Errorf("the list: %d %s", status, list)
	}
	if _, own, _ := s.call("GET", own, s.token("editor", "acme.example"), ""); !strings.Contains(own, mine.ID) || strings.Contains(own, lead.ID) {
		t.Errorf("the editor's own: %s", own)
	}
	_, log, _ := s.call("GET", "/api/orgs/acme.example/audit", s.token("admin", "acme.example"), "")
	if !strings.Contains(log, `"token.add"`) || strings.Contains(log, mine.Token) {
		t.Errorf("the audit: %s", log)
	}
}

// Whatever ends a token on one replica ends it on the other within five seconds.
func TestTokenRevokedEverywhere(t *testing.T) {
	one := startService(t, "", nil)
	two := startWith(t, "", func(c *Config) {
		c.Database.Control, c.Database.Tenant = "file:"+one.data+"/control.db", "file:"+one.data+"/tenants/{slug}.db"
		c.MasterKey = SecretRef("file:" + one.data + "/dev/master.key")
	})
	tokens := "/api/orgs/acme.example/tokens"
	admin := one.token("admin", "acme.example")
	for _, c := range []struct {
		name string
		end  func(made) (int, string)
		code string
	}{
		{"revoked", func(m made) (int, string) { st, b, _ := one.call("DELETE", tokens+"/"+m.ID, admin, ""); return st, b }, "token_revoked"},
		{"rotated", func(m made) (int, string) {
			st, b, _ := one.call("POST", "/api/me/tokens/"+m.ID+"/rotate", one.token("editor", "acme.example"), "")
			return st, b
		}, "token_unknown"},
		{"its creator stopped", func(made) (int, string) {
			st, b, _ := one.call("PUT", tokens+"/creators/dev-editor@acme.example", admin, `{"stopped":true}`)
			return st, b
		}, "token_creator"},
	} {
		m := one.mint("editor", "acme.example", "/api/me/tokens", allSurfaces)
		for i, s := range []*service{one, two} {
			if status, body, _ := s.call("GET", "/api/agent/threads", m.Token, ""); status != 200 {
				t.Fatalf("%s: replica %d does not know a new token: %d %s", c.name, i+1, status, body)
			}
		}
		ended := time.Now()
		if status, body := c.end(m); status/100 != 2 {
			t.Fatalf("%s: %d %s", c.name, status, body)
		}
		for i, s := range []*service{one, two} {
			for {
				status, body, _ := s.call("GET", "/api/agent/threads", m.Token, "")
				if status == 401 && strings.Contains(body, c.code) {
					break
				}
				if status != 200 || time.Since(ended) > 5*time.Second {
					t.Fatalf("%s: replica %d after %v: %d %s", c.name, i+1, time.Since(ended), status, body)
				}
				time.Sleep(20 * time.Millisecond)
			}
			t.Logf("%s: refused by replica %d after %v", c.name, i+1, time.Since(ended).Round(time.Millisecond))
		}
	}
	if status, body, _ := one.call("PUT", tokens+"/creators/dev-editor@acme.example", admin, `{"stopped":false}`); status != 204 {
		t.Errorf("letting on again: %d %s", status, body)
	}
}

// The address of a request is the peer's, or what a proxy of ours says.
func TestTokenBehindAProxy(t *testing.T) {
	s := startService(t, "", func(c *Config) { c.Identity.Proxies = []string{"127.0.0.0/8", "10.0.0.1"} })
	tok := s.mint("editor", "acme.example", "/api/me/tokens", allSurfaces+`,"networks":["192.0.2.0/24"]`)
	for _, c := range []struct {
		forwarded string
		want      int
	}{
		{"192.0.2.7", 200}, {"203.0.113.9, 192.0.2.7", 200}, {"192.0.2.7, 10.0.0.1", 200}, {"::ffff:192.0.2.7", 200},
		{"192.0.2.7, 203.0.113.9", 403}, {"192.0.2.7, nonsense", 403}, {"", 403}, {"10.0.0.1", 403},
	} {
		if status, body, _ := s.call("GET", "/api/agent/threads", tok.Token, "", "X-Forwarded-For", c.forwarded); status != c.want {
			t.Errorf("%q: %d, want %d: %s", c.forwarded, status, c.want, body)
		}
	}
}

// Guessing is bounded for each address, and whoever guesses does not stop those who know.
func TestTokenGuessing(t *testing.T) {
	s := startService(t, "", nil)
	tok := s.mint("editor", "acme.example", "/api/me/tokens", allSurfaces)
	if status, body, _ := s.call("GET", "/api/agent/threads", tok.Token, ""); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	var mu sync.Mutex
	seen := map[int]int{}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			guess, _ := tenancy.DrawToken()
			req, err := http.NewRequestWithContext(context.Background(), "GET", s.url+"/api/agent/threads", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+guess)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			mu.Lock()
			seen[res.StatusCode]++
			mu.Unlock()
			if res.StatusCode == 429 && res.Header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		})
	}
	wg.Wait()
	if seen[401]+seen[429] != 100 || seen[401] > 40 || seen[401] < 20 {
		t.Errorf("a hundred guesses were answered %v", seen)
	}
	if status, body, _ := s.call("GET", "/api/agent/threads", tok.Token, ""); status != 200 {
		t.Errorf("who knows is stopped: %d %s", status, body)
	}
}

// When a token was last used is written in batches, and nothing of the token itself is stored.
func TestTokenAtRest(t *testing.T) {
	s := startService(t, "", nil)
	tok := s.mint("editor", "acme.example", "/api/me/tokens", allSurfaces)
	for range 5 {
		if status, body, _ := s.call("GET", "/api/agent/threads", tok.Token, ""); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	s.stop()
	stores, err := libsql.Open(t.Context(), libsql.Config{Control: "file:" + s.data + "/control.db", Tenant: "file:" + s.data + "/tenants/{slug}.db", Clock: time.Now, Logger: s.app.log})
	if err != nil {
		t.Fatal(err)
	}
	defer stores.Close(context.Background())
	got, err := stores.Tokens.Get(t.Context(), tenancy.MustOrgID("acme.example"), tok.ID)
	if err != nil || got.LastUsedAt == nil || time.Since(*got.LastUsedAt) > time.Minute {
		t.Errorf("last used: %+v %v", got, err)
	}
	if text := fmt.Sprintf("%+v", got); strings.Contains(text, tok.Token[3:20]) {
		t.Error("the token is stored")
	}
}

// The official client of Anthropic works with an access token as its key, and reads the refusals.
func TestTokenAnthropicSDK(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", sdkKey)
	tok := s.mint("editor", "acme.example", "/api/me/tokens", `,"surfaces":["anthropic"]`)
	wrong := s.mint("editor", "acme.example", "/api/me/tokens", `,"surfaces":["openai"]`)
	for _, major := range sdkMajors {
		if got := major.dial(s.url, tok.Token, false, 0, nil).ask(replay.Plain, "Hello."); got.Failure != nil || got.Read.Text != "Hello." {
			t.Errorf("%s: %+v", major.name, got)
		}
		if got := major.dial(s.url, wrong.Token, false, 2, nil).ask(replay.Plain, "Hello."); got.Failure == nil || got.Failure.Status != 403 || got.Failure.Type != "permission_error" || got.Failure.Code != "token_surface" {
			t.Errorf("%s, wrong surface: %+v", major.name, got.Failure)
		}
	}
}

package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// publishRego makes a Rego policy the live one of an organisation and returns its revision.
func publishRego(s *service, store policy.RevisionStore, org, body string) int64 {
	s.t.Helper()
	id := tenancy.MustOrgID(org)
	live, err := s.app.stores.Policies.Active(context.Background(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	source := policy.Source{Settings: live.Source.Settings, Files: []policy.File{{Name: "org.rego", Source: "package org.policy\n\n" + body + "\n"}}}
	r, err := store.Publish(context.Background(), id, live.Number, policy.Revision{Source: source, Author: "dev-admin@acme.example", CreatedAt: time.Now()})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.Number
}

// bookStore publishes through this process's book, so that what was published is served at once.
type bookStore struct {
	policy.RevisionStore
	book *policy.Book
}

func (b bookStore) Publish(ctx context.Context, org tenancy.OrgID, expect int64, r policy.Revision) (policy.Revision, error) {
	return b.book.Publish(ctx, org, expect, r)
}

// personalKey gives the editor of the organisation without a key of its own one of theirs.
func personalKey(s *service) {
	s.t.Helper()
	if status, body, _ := s.call("POST", "/api/agent/keys", s.token("editor", "linger.example"), `{"provider":"anthropic","key":"`+drawnKey(131, 60)+`","label":"test"}`); status != 201 {
		s.t.Fatalf("%d %s", status, body)
	}
}

func atOnce(s *service) policy.RevisionStore { return bookStore{s.app.stores.Policies, s.app.book} }

const decideNative = `{"model":"claude-sonnet-4-6","max_tokens":4000,"stream":true,"tools":[{"name":"slide-read","input_schema":{}},{"name":"mail","input_schema":{}}],"messages":[{"role":"user","content":"Hello, my IBAN is GB82 WEST 1234 5698 7654 32"}]}`

const decideAgent = `{"projectId":"deck_1","model":"claude-sonnet-4-6","maxTokens":4000,"tools":["*"],"messages":[{"role":"user","content":"Hello, my IBAN is GB82 WEST 1234 5698 7654 32"}]}`

func TestDecideRegoOnBothFaces(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	faces := map[string]string{"/api/agent/chat": decideAgent, "/v1/messages": decideNative}
	for _, c := range []struct {
		name, rego string
		status     int
		says       string // in the answer, when it is refused
		sent, not  []string
	}{
		{"no rules", `x := 1`, 200, "", []string{"slide-read"}, nil},
		{"a refusal", `deny contains {"code": "no_sonnet", "message": "Use another model."} if startswith(input.request.model, "claude-sonnet")`, 403, "Use another model.", nil, nil},
		{"a capability off", `disabled_capabilities contains "slide.read"`, 200, "", nil, []string{"slide-read", "slide.read ("}},
		{"a model that is not allowed", `allowed_models := {"claude-opus-*"}`, 403, "model_not_allowed", nil, nil},
		{"a cap", `limits := {"max_tokens": 321}`, 200, "", []string{`"max_tokens":321`}, []string{`"max_tokens":4000`}},
		{"a stricter redaction", `redactions contains {"rule": "IBAN_CODE", "action": "mask", "applies_to": ["prompt"]}`, 200, "", []string{"[IBAN]"}, []string{"GB82"}},
		{"a redaction that refuses", `redactions contains {"rule": "iban", "action": "block", "applies_to": ["prompt"]}`, 0, "IBAN", nil, nil},
		{"a redaction nobody knows", `redactions contains {"rule": "SHOE_SIZE", "action": "block", "applies_to": ["prompt"]}`, 403, "policy_error", nil, nil},
		{"an entry point that is undefined", `limits := {"max_tokens": 5} if input.request.model == "other"`, 403, "policy_undefined", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			number := publishRego(s, atOnce(s), "acme.example", c.rego)
			for path, body := range faces {
				before := len(s.up.Requests())
				status, answer, h := s.call("POST", path, editor, body)
				if rev := h.Get("X-Policy-Revision"); !strings.HasSuffix(rev, fmt.Sprint(".o", number)) {
					t.Errorf("%s: revision %q, want %d: %s", path, rev, number, answer)
				}
				refused := c.status != 200
				if c.status != 0 && status != c.status || refused && !strings.Contains(answer, c.says) || refused && h.Get("X-Policy-Decision-Id") == "" {
					t.Errorf("%s: %d %s", path, status, answer)
				}
				if strings.Contains(answer, "org.rego") {
					t.Errorf("%s tells the caller of the policy's text: %s", path, answer)
				}
				if reached := len(s.up.Requests()) - before; reached > 0 == refused {
					t.Errorf("%s: %d requests reached the provider", path, reached)
				}
				if refused {
					continue
				}
				sent := lastSent(s)
				for _, want := range c.sent {
					if !strings.Contains(sent, want) {
						t.Errorf("%s: no %s in %s", path, want, sent)
					}
				}
				for _, not := range c.not {
					if strings.Contains(sent, not) {
						t.Errorf("%s: %s in %s", path, not, sent)
					}
				}
			}
		})
	}
}

func TestDecideTools(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	call := func(id, tool, input string) (code string, evs []event) {
		t.Helper()
		s.up.Push(upstream.ToolUse("claude-sonnet-4-6", id, tool, input))
		evs = chatTurn(s, editor, map[string]any{"said": "Do it", "tools": []string{"slide.*"}})
		if e := find(evs, "capability.error"); e != nil {
			info, _ := e.Data["error"].(map[string]any)
			code, _ = info["code"].(string)
			if !strings.Contains(lastSent(s), code) {
				t.Errorf("the model is not told of %s", code)
			}
		}
		return code, evs
	}
	publishRego(s, atOnce(s), "acme.example", `tool_deny contains {"code": "late_slides", "message": "Slides above 5 are closed."} if input.capability.args.slide > 5
tool_require_approval contains input.capability.name if input.capability.args.slide == 4`)
	if code, _ := call("toolu_a", "slide-read", `{"slide":3}`); code != "" {
		t.Errorf("slide 3: %s", code)
	}
	if code, _ := call("toolu_b", "slide-read", `{"slide":6}`); code != "disabled_by_policy" {
		t.Errorf("slide 6: %s", code)
	}
	if code, _ := call("toolu_c", "slide-read", `{"slide":4}`); code != "approval_required" {
		t.Errorf("slide 4: %s", code)
	}
	if code, evs := call("toolu_d", "slide-edit", `{"slide":4,"title":"x"}`); code != "" || find(evs, "preview") == nil {
		t.Errorf("editing slide 4, which shows a preview anyway: %s %s", code, names(evs))
	}

	p := proposeEdit(s, editor, 2, "Before")
	publishRego(s, atOnce(s), "acme.example", `disabled_capabilities contains "slide.edit"`)
	if _, body, _ := s.call("GET", "/api/agent/capabilities", editor, ""); strings.Count(body, `"available":false,"why":"disabled_by_policy"`) != 1 {
		t.Errorf("capabilities: %s", body)
	}
	status, body, header := confirm(s, editor, p, "accept")
	if r := readRefusal(t, header, body); status != 403 || r.Code != "disabled_by_policy" {
		t.Errorf("accepting what was switched off meanwhile: %d %s", status, body)
	}
}

// TestDecideOneRevisionPerRequest publishes while the model is thinking.
func TestDecideOneRevisionPerRequest(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	old := publishRego(s, atOnce(s), "acme.example", `labels contains "old"`)
	var published int64
	s.up.Answer(func(r upstream.Request) upstream.Script {
		if published > 0 {
			return upstream.Answer(r, "Done.")
		}
		published = publishRego(s, atOnce(s), "acme.example", `tool_deny contains {"code": "closed", "message": "Closed."}`)
		return upstream.ToolUse("claude-sonnet-4-6", "toolu_in_flight", "slide-read", `{"slide":3}`)
	})
	status, body, h := s.call("POST", "/api/agent/chat", editor, decideAgent)
	evs := parseEvents(t, body)
	if status != 200 || find(evs, "capability.done") == nil || find(evs, "capability.error") != nil || !strings.HasSuffix(h.Get("X-Policy-Revision"), fmt.Sprint(".o", old)) {
		t.Errorf("in flight: %d %v %s", status, h, names(evs))
	}
	if published != old+1 {
		t.Fatalf("published %d during revision %d", published, old)
	}
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_after", "slide-read", `{"slide":3}`))
	_, body, h = s.call("POST", "/api/agent/chat", editor, decideAgent)
	if evs := parseEvents(t, body); find(evs, "capability.error") == nil || !strings.HasSuffix(h.Get("X-Policy-Revision"), fmt.Sprint(".o", published)) {
		t.Errorf("after: %v %s", h, names(evs))
	}
}

func TestDecideBrokenRevisionKeepsTheLastGood(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	good := publishRego(s, atOnce(s), "acme.example", `deny contains {"code": "images", "message": "No."} if input.request.hasImages`)
	ask := func() (int, string, string) {
		status, body, h := s.call("POST", "/v1/messages", editor, decideNative)
		return status, body, h.Get("X-Policy-Revision")
	}
	if status, body, _ := ask(); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	publishRego(s, atOnce(s), "acme.example", `deny contains`)
	if status, body, rev := ask(); status != 200 || !strings.HasSuffix(rev, fmt.Sprint(".o", good)) {
		t.Errorf("%d %s %s", status, rev, body)
	}
	if logs := s.logs.String(); !strings.Contains(logs, "an organisation's policy cannot be used") || !strings.Contains(logs, fmt.Sprintf(`"serving":%d`, good)) {
		t.Error("operators are not told")
	}

	// An organisation nothing good is known of is refused, as something that may pass.
	personalKey(s)
	publishRego(s, atOnce(s), "linger.example", `deny contains`)
	status, body, h := s.call("POST", "/api/agent/chat", s.token("editor", "linger.example"), decideAgent)
	if status != 503 || !strings.Contains(body, "policy_unavailable") || strings.Contains(body, "org.rego") || h.Get("X-Policy-Decision-Id") == "" {
		t.Errorf("%d %v %s", status, h, body)
	}
}

// TestDecideTwoOrgs has two organisations with opposite policies ask at once.
func TestDecideTwoOrgs(t *testing.T) {
	s := startPaying(t, nil)
	publishRego(s, atOnce(s), "acme.example", `labels contains "open"`)
	publishRego(s, atOnce(s), "linger.example", `deny contains {"code": "closed", "message": "Closed at Linger."}`)
	personalKey(s)
	body := `{"projectId":"p","model":"claude-sonnet-4-6","stream":false,"messages":[{"role":"user","content":"Hello"}]}`
	var wg sync.WaitGroup
	for i := range 4 {
		org, want := "acme.example", 200
		if i%2 == 1 {
			org, want = "linger.example", 403
		}
		token := s.token("editor", org)
		wg.Go(func() {
			for range 5 {
				status, answer, _ := s.call("POST", "/api/agent/chat", token, body)
				if status != want || strings.Contains(answer, "Closed at Linger.") != (want == 403) {
					t.Errorf("%s: %d %s", org, status, answer)
				}
			}
		})
	}
	wg.Wait()
	http.DefaultClient.CloseIdleConnections() // of those that were dialled and never used, so that the service need not wait for them
}

// TestDecidePublishReachesOtherReplicas publishes past this process's book, as another replica does.
func TestDecidePublishReachesOtherReplicas(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	number := int64(0)
	for i := range 3 {
		number = publishRego(s, s.app.stores.Policies, "acme.example", fmt.Sprintf(`labels contains "n%d"`, i))
		began := time.Now()
		for {
			_, body, h := s.call("POST", "/v1/messages", editor, decideNative)
			if strings.HasSuffix(h.Get("X-Policy-Revision"), fmt.Sprint(".o", number)) {
				break
			}
			if time.Since(began) > 5*time.Second {
				t.Fatalf("not live after %v: %s", time.Since(began), body)
			}
		}
		t.Logf("live after %v", time.Since(began))
	}
}

func TestDecideLog(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	acme := tenancy.MustOrgID("acme.example")
	publishRego(s, atOnce(s), "acme.example", `deny contains {"code": "haiku", "message": "No haiku."} if input.request.model == "claude-haiku-4-5"`)
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_log", "slide-read", `{"slide":3}`))
	chatTurn(s, editor, map[string]any{"said": "Secretly read slide 3", "tools": []string{"slide.*"}})
	for range 5 { // more than one a second are sampled
		s.call("POST", "/v1/messages", editor, decideNative)
	}
	if status, body, _ := s.call("POST", "/v1/messages", editor, strings.Replace(decideNative, "sonnet-4-6", "haiku-4-5", 1)); status != 403 {
		t.Fatalf("%d %s", status, body)
	}
	var lines []policy.LoggedDecision
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(20 * time.Millisecond) {
		var err error
		if lines, _, err = s.app.decided.Decisions(t.Context(), acme, policy.DecisionQuery{Limit: 100}); err != nil {
			t.Fatal(err)
		}
		if len(lines) > 2 && strings.Contains(fmt.Sprint(lines), "haiku") {
			break
		}
	}
	tools, refused, allowed := 0, 0, 0
	for _, l := range lines {
		if l.User == "" || l.Role != "editor" || !strings.HasPrefix(l.ID, "dec_") || !strings.HasPrefix(l.RunID, "run_") || !strings.Contains(l.Revision, ".o1") || l.Weight < 1 || l.Failed {
			t.Errorf("line %+v", l)
		}
		if !strings.Contains(string(l.Input), `"action":"`+l.Action+`"`) || strings.Contains(string(l.Input), "Secretly") {
			t.Errorf("input %s", l.Input)
		}
		switch {
		case l.Action == "tool":
			tools++
			if l.Capability != "slide.read" || !l.Allow || strings.Contains(string(l.Input), `"slide":3`) {
				t.Errorf("line %+v: %s", l, l.Input)
			}
		case !l.Allow:
			refused++
			if fmt.Sprint(l.Codes) != "[haiku]" || l.Model != "claude-haiku-4-5" {
				t.Errorf("line %+v", l)
			}
		default:
			allowed++
		}
	}
	if tools != 1 || refused != 1 || allowed < 1 || allowed > 3 {
		t.Errorf("%d tools, %d refused, %d allowed", tools, refused, allowed)
	}
}

func TestDecisionsAreRetired(t *testing.T) {
	s := startService(t, "", nil)
	org := tenancy.MustOrgID("acme.example")
	count := func() int {
		t.Helper()
		lines, _, err := s.app.decided.Decisions(t.Context(), org, policy.DecisionQuery{})
		if err != nil {
			t.Fatal(err)
		}
		return len(lines)
	}
	if status, body, _ := s.call("POST", "/api/agent/chat", s.token("editor", "acme.example"), `{"projectId":"p","model":"demo-mini","stream":false,"messages":[{"role":"user","content":"hi"}]}`); status != 200 {
		t.Fatal(status, body)
	}
	for deadline := time.Now().Add(5 * time.Second); count() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no decision was logged")
		}
	}
	s.app.prune(t.Context(), time.Now().Add(-time.Hour))
	if count() == 0 {
		t.Error("a decision that is still to be kept was deleted")
	}
	s.app.prune(t.Context(), time.Now().Add(time.Hour))
	if n := count(); n != 0 {
		t.Errorf("%d decisions outlived their time", n)
	}
}

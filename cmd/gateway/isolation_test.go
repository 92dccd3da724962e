package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/tenancy"
)

// party is one of two organisations that use the gateway at once, with what must not leave it.
type party struct {
	org, slug, canary               string
	email, card, iban, phone, token string            // the values people write; token is a secret, never restored
	keys                            map[string]string // whose provider key: "" the organisation's, else the person's
	operator                        string            // an e-mail address only the app's own text holds
}

// drawnKey makes something that looks like a provider's key, so that none stands in this repository.
func drawnKey(seed uint64, n int) string {
	const letters = "ABCDEFGHJKMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789"
	r := rand.New(rand.NewPCG(seed, 23))
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	return "sk-" + "ant-api03-" + string(b)
}

func parties() []*party {
	return []*party{
		{org: "acme.example", slug: "acme", canary: "kestrelacme", email: "jane.kestrelacme@mail-acme.com", card: "4111111111111111", iban: "DE89370400440532013000", phone: "+14155552671",
			token: drawnKey(1, 40), operator: "ops.kestrelacme@mail-acme.com", keys: map[string]string{"": drawnKey(2, 60)}},
		{org: "linger.example", slug: "linger", canary: "ploverlinger", email: "john.ploverlinger@mail-linger.com", card: "5555555555554444", iban: "GB82WEST12345698765432", phone: "+442071838750",
			token: drawnKey(3, 40), operator: "ops.ploverlinger@mail-linger.com", keys: map[string]string{"viewer": drawnKey(4, 60), "editor": drawnKey(5, 60), "admin": drawnKey(6, 60)}},
	}
}

// restorable are the values a person may write and gets back; all of them must be hidden from the provider.
func (p *party) restorable() []string { return []string{p.email, p.card, p.iban, p.phone} }

func (p *party) sensitive() []string { return append(p.restorable(), p.token, p.operator) }

func (p *party) owns(key string) bool {
	for _, k := range p.keys {
		if k == key {
			return true
		}
	}
	return false
}

// setUp gives the parties keys, labels and settings with their canaries in them.
func (p *party) setUp(s *service) {
	s.t.Helper()
	must := func(want int, method, path, user, body string) {
		s.t.Helper()
		if status, answer, _ := s.call(method, path, s.token(user, p.org), body); status != want {
			s.t.Fatalf("%s %s: %d %s", method, path, status, answer)
		}
	}
	for user, key := range p.keys {
		body := `{"provider":"anthropic","key":"` + key + `","label":"label ` + p.canary + `"}`
		if user == "" {
			must(201, "POST", "/api/orgs/"+p.org+"/keys", "admin", body)
		} else {
			must(201, "POST", "/api/agent/keys", user, body)
		}
	}
	must(200, "PATCH", "/api/orgs/"+p.org+"/settings", "owner", `{"allowed_models":["claude-*","`+p.canary+`-*"],"disabled_capabilities":["`+p.canary+`.off"]}`)
}

var tokenForm = regexp.MustCompile(`(?:EMAIL|CARD|IBAN|PHONE)_[B-DF-HJ-NP-TV-XZ]{10,14}`)

// repeatTokens is the provider's part: it repeats every token it was shown, in deltas of five bytes and writes of seven, or whole.
func repeatTokens(ps []*party) func(upstream.Request) upstream.Script {
	return func(r upstream.Request) upstream.Script {
		who := "nobody"
		for _, p := range ps {
			if p.owns(r.Header.Get("X-Api-Key")) {
				who = p.canary
			}
		}
		var ask struct {
			Stream   bool
			Tools    []struct{ Name string }
			Messages []struct{ Content json.RawMessage }
		}
		_ = json.Unmarshal(r.Body, &ask) // what cannot be read has no tools
		last := string(ask.Messages[len(ask.Messages)-1].Content)
		if ask.Stream && strings.Contains(last, "use the tools") && slices.ContainsFunc(ask.Tools, func(t struct{ Name string }) bool { return t.Name == "slide-read" }) {
			return upstream.ToolUse("claude-sonnet-4-6", "toolu_read", "slide-read", `{"sli`, `de":3}`)
		}
		if ask.Stream && strings.Contains(last, "change the slide") {
			tok := tokenForm.FindString(last)
			return upstream.ToolUse("claude-sonnet-4-6", "toolu_edit", "slide-edit", `{"slide":2,"title":"Write to `+tok[:8], tok[8:]+` of `+who+`"}`)
		}
		text := "Answer for " + who + ": " + strings.Join(tokenForm.FindAllString(string(r.Body), -1), " and ") + " end."
		if !ask.Stream {
			return upstream.Answer(r, text)
		}
		var deltas []string
		for i := 0; i < len(text); i += 5 {
			deltas = append(deltas, text[i:min(i+5, len(text))])
		}
		script := upstream.Stream("claude-sonnet-4-6", 50, 20, deltas...)
		script.Pieces, script.PieceSize = nil, 7
		return script
	}
}

// anthropicText joins the text of an answer of /v1/messages, streamed or whole.
func anthropicText(body string) string {
	var whole struct{ Content []struct{ Text string } }
	var b strings.Builder
	if json.Unmarshal([]byte(body), &whole) == nil {
		for _, c := range whole.Content {
			b.WriteString(c.Text)
		}
		return b.String()
	}
	for line := range strings.SplitSeq(body, "\n") {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			var ev struct{ Delta struct{ Text string } }
			if json.Unmarshal([]byte(data), &ev) == nil {
				b.WriteString(ev.Delta.Text)
			}
		}
	}
	return b.String()
}

func quoted(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// heard is everything a party was ever answered.
type heard struct {
	mu  sync.Mutex
	all map[*party][]string
}

func (h *heard) note(p *party, status int, body string, header http.Header) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[p] = append(h.all[p], fmt.Sprint(status, header, body))
}

func TestIsolationTwoOrganisationsAtOnce(t *testing.T) {
	s := startService(t, "", nil)
	ps := parties()
	s.up.Answer(repeatTokens(ps))
	h := &heard{all: map[*party][]string{}}
	for _, p := range ps {
		p.setUp(s)
	}
	var wg sync.WaitGroup
	for _, p := range ps {
		for _, user := range []string{"viewer", "editor", "admin"} {
			wg.Go(func() { converseAs(s, h, p, user) })
		}
		wg.Go(func() { lookAround(s, h, p, ps) })
	}
	wg.Wait()
	// While the journal may still hold what was said, and after it has drained.
	checkFiles(t, s, ps)
	s.flush()
	checkFiles(t, s, ps)
	for _, p := range ps {
		lookAround(s, h, p, ps)
		faultyProvider(s, h, p)
	}
	s.flush()
	checkFiles(t, s, ps)
	checkUpstream(t, s, ps)
	checkAnswers(t, s, h, ps)
	checkTranscripts(t, s, ps)

	_, metrics, _ := s.call("GET", "/metrics", "", "")
	for _, p := range ps {
		for _, text := range []struct{ what, text string }{{"log", s.logs.String()}, {"metrics", metrics}} {
			for _, secret := range append(p.sensitive(), p.canary) {
				if strings.Contains(text.text, secret) {
					t.Errorf("%q is in the %s", secret, text.what)
				}
			}
		}
	}
	checkSecrets(t, s, ps, "log", s.logs.String())
	checkSecrets(t, s, ps, "metrics", metrics)
	if !strings.Contains(metrics, `client__acme`) || !strings.Contains(metrics, `client__linger`) || !strings.Contains(s.logs.String(), `"org"`) && !strings.Contains(s.logs.String(), "requestId") {
		t.Error("the probes saw no metrics or log")
	}
}

// converseAs has turns on both faces, streamed and not, with the party's values in them.
func converseAs(s *service, h *heard, p *party, user string) {
	tok := s.token(user, p.org)
	said := fmt.Sprintf("I am %s. Write to %s, card %s, IBAN %s, phone %s, key %s, token %s.", p.canary, p.email, p.card, p.iban, p.phone, p.token, tok)
	expect := func(what string, status int, text string) {
		if status != 200 {
			s.t.Errorf("%s %s: %d %s", what, user, status, text)
			return
		}
		for _, v := range p.restorable() {
			if !strings.Contains(text, v) {
				s.t.Errorf("%s: %q did not come back restored: %s", what, v, text)
			}
		}
		if tokenForm.MatchString(text) {
			s.t.Errorf("%s: a placeholder was shown: %s", what, text)
		}
	}
	for i := range 3 {
		for _, streamed := range []bool{true, false} {
			body := quoted(map[string]any{"projectId": "deck-" + p.canary, "threadId": "t-shared", "clientTurnId": fmt.Sprint("c-", p.canary, i, streamed), "model": "claude-sonnet-4-6",
				"stream": streamed, "tools": []string{"slide.read"}, "context": map[string]any{"activeClientId": p.canary, "activeView": map[string]any{"kind": "deck", "deckId": p.operator}},
				"messages": []any{map[string]any{"role": "user", "content": said + " Please use the tools."}}})
			status, answer, header := s.call("POST", "/api/agent/chat", tok, body)
			h.note(p, status, answer, header)
			shown := answer
			if streamed && status == 200 {
				shown = text(parseEvents(s.t, answer))
			}
			// The address in the context is the app's, not the person's: its token stays one.
			expect("agent", status, strings.TrimPrefix(tokenForm.ReplaceAllStringFunc(shown, func(string) string { return "" }), ""))

			body = quoted(map[string]any{"model": "claude-sonnet-4-6", "max_tokens": 100, "stream": streamed, "metadata": map[string]any{"user_id": "u-" + p.canary},
				"system": []any{map[string]any{"type": "text", "text": "You work for " + p.canary + "."}},
				"tools":  []any{map[string]any{"name": "mail", "description": "Sends mail for " + p.canary, "input_schema": map[string]any{"type": "object"}}},
				"messages": []any{map[string]any{"role": "user", "content": said},
					map[string]any{"role": "assistant", "content": []any{map[string]any{"type": "tool_use", "id": "toolu_1", "name": "mail", "input": map[string]any{"to": p.email, "why": p.canary}}}},
					map[string]any{"role": "user", "content": []any{map[string]any{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sent to " + p.email + " of " + p.canary + ", paid with " + p.card + "."}}}}})
			status, answer, header = s.call("POST", "/v1/messages", tok, body, "X-Project-Id", "deck-"+p.canary)
			h.note(p, status, answer, header)
			shown = answer
			if status == 200 {
				shown = anthropicText(answer)
			}
			expect("messages", status, shown)
		}
	}
	if user != "viewer" {
		body := quoted(map[string]any{"projectId": "deck-" + p.canary, "threadId": "t-preview-" + p.canary, "model": "claude-sonnet-4-6", "tools": []string{"slide.*"},
			"messages": []any{map[string]any{"role": "user", "content": "For " + p.email + ", change the slide. " + p.canary}}})
		status, answer, header := s.call("POST", "/api/agent/chat", tok, body)
		h.note(p, status, answer, header)
		if status != 200 || !strings.Contains(answer, "awaiting_confirmation") || !strings.Contains(answer, "Write to "+p.email) {
			s.t.Errorf("the preview does not show the restored change: %d %s", status, answer)
		}
	}
}

// lookAround reads everything a party may read, and tries what belongs to the other.
func lookAround(s *service, h *heard, p *party, ps []*party) {
	get := func(path, user string, headers ...string) {
		status, body, header := s.call("GET", path, s.token(user, p.org), "", headers...)
		h.note(p, status, body, header)
	}
	for _, user := range []string{"viewer", "editor", "admin", "owner"} {
		for _, path := range []string{"/api/me", "/api/agent/keys", "/api/agent/threads", "/api/agent/threads/t-shared", "/api/agent/models", "/api/agent/capabilities", "/api/agent/org-state"} {
			get(path, user)
		}
		for _, q := range ps {
			for _, path := range []string{"settings", "keys", "audit", "usage?groupBy=day,model,user,project"} {
				get("/api/orgs/"+q.org+"/"+path, user)
				if q != p {
					get("/api/orgs/"+q.org+"/"+path, user, "X-Org-Id", q.org)
					get("/api/orgs/"+q.org+"/"+path, user, "X-Act-As-Org", q.org)
				}
			}
			if q != p {
				get("/api/agent/threads/t-preview-"+q.canary, user)
				get("/api/agent/threads/t-shared", user, "X-Org-Id", q.org)
			}
		}
	}
}

// faultyProvider repeats our key in whatever it answers.
func faultyProvider(s *service, h *heard, p *party) {
	user := "editor"
	key := p.keys[user]
	if key == "" {
		key = p.keys[""]
	}
	leaks := []upstream.Script{
		upstream.Failure(400, "invalid_request_error", "your key "+key+" is fine but the request is not"),
		upstream.Failure(401, "authentication_error", "invalid x-api-key: "+key),
		upstream.Failure(500, key, "failed for "+key),
		upstream.Events(`{"type":"message_start","message":{"id":"msg_test","type":"message","role":"assistant","model":"claude-sonnet-4-6","content":[],"usage":{"input_tokens":3,"output_tokens":1}}}`,
			`{"type":"error","error":{"type":"api_error","message":"lost `+key+`"}}`),
		upstream.Stream("claude-sonnet-4-6", 3, 3, "your key is "+key[:20], key[20:]+" as it seems"),
	}
	leaks[4].Header.Set("Anthropic-Ratelimit-Requests-Remaining", key)
	leaks[4].Header.Set("Set-Cookie", key)
	for _, script := range leaks {
		for _, face := range []struct{ path, body string }{
			{"/api/agent/chat", `{"projectId":"p","model":"claude-sonnet-4-6","messages":[{"role":"user","content":"Hello"}]}`},
			{"/v1/messages", `{"model":"claude-sonnet-4-6","max_tokens":10,"stream":true,"messages":[{"role":"user","content":"Hello"}]}`},
		} {
			s.up.Push(script)
			status, body, header := s.call("POST", face.path, s.token(user, p.org), face.body)
			h.note(p, status, body, header)
		}
	}
}

func otherOf(p *party, ps []*party) *party {
	if ps[0] == p {
		return ps[1]
	}
	return ps[0]
}

// checkUpstream holds what the provider was sent against what it must not see: the other's anything, and anyone's values in any spelling.
func checkUpstream(t *testing.T, s *service, ps []*party) {
	seen := map[*party]int{}
	for _, r := range s.up.Requests() {
		var p *party
		for _, q := range ps {
			if q.owns(r.Header.Get("X-Api-Key")) {
				p = q
			}
		}
		if p == nil {
			t.Fatalf("a request with nobody's key: %v", r.Header)
		}
		seen[p]++
		headers := r.Header.Clone()
		headers.Del("X-Api-Key")
		other := otherOf(p, ps)
		if whole := string(r.Body) + fmt.Sprint(headers, r.Path); strings.Contains(whole, other.canary) || strings.Contains(whole, other.org) {
			t.Errorf("what was sent for %s holds something of %s: %s", p.org, other.org, whole)
		}
		checkSecrets(t, s, ps, "request to the provider", string(r.Body)+fmt.Sprint(headers))
		hidden(t, r.Body, append(p.sensitive(), other.sensitive()...))
	}
	for _, p := range ps {
		if seen[p] < 40 {
			t.Errorf("only %d requests were sent for %s", seen[p], p.org)
		}
	}
}

// hidden fails when a value is in the body as written or in any of its decoded strings, with or without separators.
func hidden(t *testing.T, body []byte, values []string) {
	t.Helper()
	var doc any
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatalf("the provider was sent broken JSON: %v", err)
	}
	var all []string
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			all = append(all, v)
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			for k, x := range v {
				all = append(all, k)
				walk(x)
			}
		}
	}
	walk(doc)
	for _, text := range append(all, string(body)) {
		squeezed := strings.Map(func(r rune) rune {
			if unicode.IsSpace(r) || r == '-' || r == '.' {
				return -1
			}
			return unicode.ToLower(r)
		}, text)
		for _, v := range values {
			w := strings.ToLower(strings.NewReplacer(".", "", "-", "", " ", "").Replace(v))
			if strings.Contains(text, v) || strings.Contains(squeezed, w) {
				t.Errorf("%q was sent to the provider in %q", v, text)
			}
		}
	}
}

// checkSecrets looks for any provider key or signed token.
func checkSecrets(t *testing.T, s *service, ps []*party, where, text string) {
	t.Helper()
	for _, p := range ps {
		for who, key := range p.keys {
			// The end of a key is as good as the whole of it, but for the four characters that may be shown.
			if strings.Contains(text, key[len(key)-16:]) || strings.Contains(text, key[13:29]) {
				at := max(strings.Index(text, key[13:29]), strings.Index(text, key[len(key)-16:]))
				t.Errorf("the key of %s %q is in %s: %q", p.org, who, where, text[max(0, at-200):min(len(text), at+40)])
			}
		}
	}
	if m := signedToken.FindString(text); m != "" {
		t.Errorf("a token is in %s: %s", where, m)
	}
}

// signedToken is any JWT: header and claims begin as every JSON object in base64url does.
var signedToken = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}`)

func checkAnswers(t *testing.T, s *service, h *heard, ps []*party) {
	for _, p := range ps {
		other := otherOf(p, ps)
		if len(h.all[p]) < 60 {
			t.Errorf("%s got only %d answers", p.org, len(h.all[p]))
		}
		for _, answer := range h.all[p] {
			if strings.Contains(answer, other.canary) {
				t.Errorf("%s was shown something of %s: %s", p.org, other.org, answer)
			}
			for _, v := range other.sensitive() {
				if strings.Contains(answer, v) {
					t.Errorf("%s was shown %q", p.org, v)
				}
			}
			if strings.Contains(answer, p.token) {
				t.Errorf("a secret was restored: %s", answer)
			}
			checkSecrets(t, s, ps, "an answer", answer)
		}
	}
}

// checkFiles reads every file below the data directory but the dev issuer's own: no value, key or token is in any, and nothing of one
// organisation is in the other's database.
func checkFiles(t *testing.T, s *service, ps []*party) {
	t.Helper()
	kinds := map[string]int{}
	err := filepath.WalkDir(s.data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.IsDir() && path == filepath.Join(s.data, "dev") {
				return filepath.SkipDir
			}
			return nil // a journal segment may be gone by now
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		rel, _ := filepath.Rel(s.data, path)
		kinds[strings.SplitN(rel, string(filepath.Separator), 2)[0]]++
		for _, p := range ps {
			if strings.HasPrefix(rel, filepath.Join("tenants", otherOf(p, ps).slug)) && (bytes.Contains(raw, []byte(p.canary)) || bytes.Contains(raw, []byte(p.org))) {
				t.Errorf("%s holds something of %s", rel, p.org)
			}
			for _, v := range p.sensitive() {
				if bytes.Contains(raw, []byte(v)) {
					t.Errorf("%s holds %q", rel, v)
				}
			}
		}
		checkSecrets(t, s, ps, rel, string(raw))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if kinds["control.db"] != 1 || kinds["journal"] == 0 || kinds["tenants"] < 2 {
		t.Errorf("the probe saw only %v", kinds)
	}
}

// checkTranscripts reads the stored turns: they hold tokens and masks where values were.
func checkTranscripts(t *testing.T, s *service, ps []*party) {
	for _, p := range ps {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(s.data, "tenants", p.slug+".db")+"?mode=ro&_pragma=busy_timeout(5000)")
		if err != nil {
			t.Fatal(err)
		}
		rows, err := db.Query("SELECT user_message || coalesce(messages, '') || coalesce(tool_results, '') || model_message FROM agent_transcripts WHERE status = 'completed' AND project_id = ?", "deck-"+p.canary)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for rows.Next() {
			var said string
			if err := rows.Scan(&said); err != nil {
				t.Fatal(err)
			}
			n++
			for _, want := range []string{"EMAIL_", "CARD_", "IBAN_", "PHONE_", "[SECRET]", "[JWT]", p.canary} {
				if !strings.Contains(said, want) {
					t.Errorf("a stored turn of %s has no %s: %s", p.org, want, said)
				}
			}
		}
		if rows.Err() != nil || rows.Close() != nil || db.Close() != nil || n < 24 {
			t.Errorf("%d stored turns of %s: %v", n, p.org, rows.Err())
		}
	}
}

// ask sends one agent message and returns the shown text and what the provider was sent for it.
func ask(s *service, token, thread, said string) (shown string, sent string) {
	s.t.Helper()
	before := len(s.up.Requests())
	status, body, _ := s.call("POST", "/api/agent/chat", token, quoted(map[string]any{"projectId": "p", "threadId": thread, "model": "claude-sonnet-4-6", "messages": []any{map[string]any{"role": "user", "content": said}}}))
	if status != 200 {
		s.t.Fatalf("chat: %d %s", status, body)
	}
	return text(parseEvents(s.t, body)), string(s.up.Requests()[before].Body)
}

// ofPerson is the first token in the messages of a request; our own system text has one as an example.
func ofPerson(sent string) string {
	_, messages, _ := strings.Cut(sent, `"messages":`)
	return tokenForm.FindString(messages)
}

func TestIsolationSameThreadIDNeverMeets(t *testing.T) {
	s := startService(t, "", nil)
	ps := parties()
	for _, p := range ps {
		p.setUp(s)
	}
	const thread = "t_everyone"
	first := s.token("editor", "acme.example")
	s.up.Answer(func(r upstream.Request) upstream.Script {
		return upstream.Answer(r, "Noted "+ofPerson(string(r.Body)))
	})
	shown, sent := ask(s, first, thread, "The heron nests at "+ps[0].email+".")
	tok := ofPerson(sent)
	if tok == "" || !strings.Contains(shown, ps[0].email) {
		t.Fatalf("the first turn: %s %s", shown, sent)
	}
	for _, flushed := range []bool{false, true} { // from memory, and from the database
		if flushed {
			s.flush()
		}
		for _, other := range []struct{ user, org string }{{"admin", "acme.example"}, {"viewer", "acme.example"}, {"editor", "linger.example"}, {"superuser", "acme.example"}} {
			name := other.user + " of " + other.org
			who := s.token(other.user, other.org)
			if !flushed {
				if status, body, _ := s.call("GET", "/api/agent/threads/"+thread, who, ""); status != 404 {
					t.Errorf("%s reads the thread: %d %s", name, status, body)
				}
			}
			// The model is made to say the first person's token, as if by guessing it.
			s.up.Push(upstream.Stream("claude-sonnet-4-6", 5, 5, "It was "+tok[:9], tok[9:]+"."))
			shown, sent := ask(s, who, thread, "What nests where?")
			if strings.Contains(sent, "heron") || !flushed && strings.Contains(sent, tok) || strings.Contains(shown, ps[0].email) || strings.Contains(shown, "kestrel") {
				t.Errorf("%s got at the first person's thread: shown %q", name, shown)
			}
			if !strings.Contains(shown, tok) {
				t.Errorf("%s: the probe's token was not shown as it was said: %q", name, shown)
			}
			if _, body, _ := s.call("GET", "/api/agent/threads/"+thread, who, ""); strings.Contains(body, "heron") || strings.Contains(body, ps[0].email) {
				t.Errorf("%s reads the first person's turns: %s", name, body)
			}
		}
		// A superuser who acts for the other organisation has no thread of theirs either.
		if status, body, _ := s.call("GET", "/api/agent/threads/"+thread, s.token("superuser", "acme.example"), "", "X-Act-As-Org", "linger.example"); status != 404 {
			t.Errorf("acting: %d %s", status, body)
		}
		if status, body, _ := s.call("GET", "/api/agent/threads/"+thread, first, ""); status != 200 || !strings.Contains(body, ps[0].email) || !strings.Contains(body, "heron") || strings.Contains(body, tok) {
			t.Errorf("the first person's own thread: %d %s", status, body)
		}
		_, sent := ask(s, first, thread, "And again?")
		if !strings.Contains(sent, "heron") || !strings.Contains(sent, tok) {
			t.Errorf("the first person's history is gone: %s", sent)
		}
	}
}

func TestIsolationTokensDifferByScope(t *testing.T) {
	s := startService(t, "", nil)
	for _, p := range parties() {
		p.setUp(s)
	}
	const said = "Write to shared.person@mail-both.com."
	tokenOf := func(user, org, thread string) string {
		t.Helper()
		who := s.token(user, org)
		var sent string
		if thread != "" {
			_, sent = ask(s, who, thread, said)
		} else {
			status, body, _ := s.call("POST", "/v1/messages", who, `{"model":"claude-sonnet-4-6","max_tokens":9,"messages":[{"role":"user","content":"`+said+`"}]}`)
			if status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			all := s.up.Requests()
			sent = string(all[len(all)-1].Body)
		}
		tok := ofPerson(sent)
		if tok == "" {
			t.Fatalf("no token was sent: %s", sent)
		}
		return tok
	}
	scopes := []struct{ user, org, thread string }{
		{"editor", "acme.example", "t_1"}, {"editor", "acme.example", "t_2"}, {"admin", "acme.example", "t_1"}, {"editor", "linger.example", "t_1"},
		{"editor", "acme.example", ""}, {"admin", "acme.example", ""}, {"editor", "linger.example", ""},
	}
	tokens := map[string]int{}
	for i, sc := range scopes {
		tok := tokenOf(sc.user, sc.org, sc.thread)
		if j, dup := tokens[tok]; dup {
			t.Errorf("%v and %v share the token %s", scopes[j], sc, tok)
		}
		tokens[tok] = i
		if again := tokenOf(sc.user, sc.org, sc.thread); again != tok {
			t.Errorf("%v: %s became %s", sc, tok, again)
		}
	}
}

// everywhere has one place for a value in each position a request has; %[1]s is the app's own value, %[2]s the person's.
const everywhere = `{"model":"claude-sonnet-4-6","max_tokens":100,"stream":%[3]t,
 "system":[{"type":"text","text":"Our desk is %[1]s."}],
 "tools":[{"name":"mail","description":"Mails %[1]s","input_schema":{"type":"object","properties":{"to":{"type":"string","description":"such as %[1]s","default":"%[1]s"}}}}],
 "messages":[{"role":"user","content":"Mine is %[2]s."},
  {"role":"assistant","content":[{"type":"text","text":"You said %[2]s."},{"type":"tool_use","id":"toolu_1","name":"mail","input":{"to":"%[2]s","list":[{"x":"%[2]s"}]}}]},
  {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"Sent to %[2]s"}]},{"type":"text","text":"Again %[2]s"},
   {"type":"document","source":{"type":"text","media_type":"text/plain","data":"File of %[2]s"},"title":"%[2]s"}]}]}`

func TestIsolationEveryPositionAndSpelling(t *testing.T) {
	s := startService(t, "", nil)
	ps := parties()
	p := ps[0]
	p.setUp(s)
	s.up.Answer(repeatTokens(ps))
	escaped := func(v string) string {
		var b strings.Builder
		for _, c := range []byte(v) {
			fmt.Fprintf(&b, `\u%04x`, c)
		}
		return b.String()
	}
	for _, sp := range []struct {
		name  string
		spell func(string) string
	}{
		{"plain", func(v string) string { return v }},
		{"escaped at sign", func(v string) string { return strings.ReplaceAll(v, "@", `\u0040`) }},
		{"escaped through and through", escaped},
		{"between escapes", func(v string) string { return `\n\t\"` + v + `\"\ud83d\ude00` }},
	} {
		for _, v := range []struct{ name, value string }{{"e-mail", p.email}, {"card", p.card}, {"IBAN", p.iban}, {"phone", p.phone}} {
			for _, streamed := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/streamed %t", sp.name, v.name, streamed), func(t *testing.T) {
					before := len(s.up.Requests())
					body := fmt.Sprintf(everywhere, sp.spell(p.operator), sp.spell(v.value), streamed)
					status, answer, _ := s.call("POST", "/v1/messages", s.token("editor", p.org), body)
					if status != 200 {
						t.Fatalf("%d %s", status, answer)
					}
					sent := s.up.Requests()[before].Body
					hidden(t, sent, []string{v.value, p.operator})
					if n := len(tokenForm.FindAllString(string(sent), -1)); n != 12 {
						t.Errorf("%d tokens in 12 places: %s", n, sent)
					}
					shown := anthropicText(answer)
					if strings.Count(shown, v.value) != 8 {
						t.Errorf("the person's value came back %d times: %s", strings.Count(shown, v.value), shown)
					}
					// What only the app's text holds must not be had by making the model repeat it.
					if strings.Contains(shown, p.operator) || len(tokenForm.FindAllString(shown, -1)) != 4 {
						t.Errorf("the app's own value: %s", shown)
					}
				})
			}
		}
		t.Run(sp.name+"/secret", func(t *testing.T) {
			before := len(s.up.Requests())
			s.up.Push(upstream.Stream("claude-sonnet-4-6", 5, 5, "It was [SEC", "RET], as you know."))
			status, answer, _ := s.call("POST", "/v1/messages", s.token("editor", p.org), fmt.Sprintf(everywhere, sp.spell(p.operator), sp.spell(p.token), true))
			sent := s.up.Requests()[before].Body
			hidden(t, sent, []string{p.token})
			if status != 200 || strings.Contains(answer, p.token) || anthropicText(answer) != "It was [SECRET], as you know." || bytes.Count(sent, []byte("[SECRET]")) != 8 {
				t.Errorf("%d %s; sent %s", status, answer, sent)
			}
		})
	}
	// A key the model makes up or has seen elsewhere does not reach the person either, however it is cut.
	for cut := 1; cut < len(p.token); cut += 5 {
		s.up.Push(upstream.Stream("claude-sonnet-4-6", 5, 5, "Use "+p.token[:cut], p.token[cut:]+" then."))
		if _, answer, _ := s.call("POST", "/v1/messages", s.token("editor", p.org), fmt.Sprintf(everywhere, "a", "b", true)); anthropicText(answer) != "Use [SECRET] then." {
			t.Errorf("cut at %d: %s", cut, anthropicText(answer))
		}
	}
}

func TestIsolationRedactionOffIsTheOrganisationsOwn(t *testing.T) {
	s := startService(t, "", nil)
	ps := parties()
	for _, p := range ps {
		p.setUp(s)
	}
	if status, body, _ := s.call("PATCH", "/api/orgs/acme.example/settings", s.token("admin", "acme.example"), `{"redaction_profile":"off"}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	_, sent := ask(s, s.token("editor", "acme.example"), "t_1", "Write to "+ps[0].email)
	if !strings.Contains(sent, ps[0].email) {
		t.Errorf("off hides all the same: %s", sent)
	}
	_, sent = ask(s, s.token("editor", "linger.example"), "t_1", "Write to "+ps[1].email)
	if strings.Contains(sent, ps[1].email) {
		t.Errorf("one organisation's off is another's: %s", sent)
	}
}

func TestIsolationSuspendedStaysSuspended(t *testing.T) {
	s := startService(t, "", nil)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.app.stores.Orgs.SetBilling(ctx, tenancy.MustOrgID("linger.example"), tenancy.Suspended); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ method, path, user, org, body, act string }{
		{"POST", "/api/agent/chat", "editor", "linger.example", inputChat, ""}, {"POST", "/v1/messages", "editor", "linger.example", inputMessage, ""},
		{"GET", "/api/agent/threads", "owner", "linger.example", "", ""}, {"GET", "/api/orgs/linger.example/usage", "owner", "linger.example", "", ""},
		{"POST", "/api/agent/keys", "editor", "linger.example", `{"provider":"anthropic","key":"` + drawnKey(9, 40) + `"}`, ""},
		{"POST", "/api/agent/chat", "superuser", "acme.example", inputChat, "linger.example"},
	} {
		status, body, header := s.call(c.method, c.path, s.token(c.user, c.org), c.body, "X-Act-As-Org", c.act)
		if r := readRefusal(t, header, body); status != 403 || r.Code != "org_suspended" || !strings.Contains(r.Text, "suspended") {
			t.Errorf("%s %s by %s: %d %s", c.method, c.path, c.user, status, body)
		}
	}
	if len(s.up.Requests()) != 0 {
		t.Error("a suspended organisation reached the provider")
	}
	if status, body, _ := s.call("GET", "/api/agent/threads", s.token("editor", "acme.example"), ""); status != 200 {
		t.Errorf("the other organisation: %d %s", status, body)
	}
}

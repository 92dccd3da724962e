//go:build integration

package integration

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

var hostAppDir = filepath.Join(root, "examples", "host-app")

// npmHostApp installs what the example's lock file says and runs one of its scripts.
func npmHostApp(t *testing.T, script string) string {
	t.Helper()
	want, have := versions(t, filepath.Join(hostAppDir, "package-lock.json")), versions(t, filepath.Join(hostAppDir, "node_modules", ".package-lock.json"))
	missing := len(want) == 0
	for name, v := range want {
		missing = missing || have[name] != v
	}
	steps := [][]string{{"run", script}}
	if missing {
		steps = append([][]string{{"ci"}}, steps...)
	}
	var out []byte
	for _, args := range steps {
		cmd := exec.CommandContext(t.Context(), "npm", args...)
		cmd.Dir = hostAppDir
		var err error
		if out, err = cmd.CombinedOutput(); err != nil {
			t.Fatalf("npm %s in examples/host-app: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return string(out)
}

// The example's own tests: what its verifier lets in and what it refuses.
func TestHostAppRefusesWhatIsNotTheGateways(t *testing.T) {
	out := npmHostApp(t, "test")
	if !strings.Contains(out, "# fail 0") || strings.Contains(out, "# pass 0") || !strings.Contains(out, "# skipped 0") {
		t.Errorf("%s", out)
	}
}

// studio is the example app running beside a gateway whose provider is scripted.
type studio struct {
	*process
	up     *upstream.Server
	app    string // the app's origin
	secret string
	config string            // of the gateway
	tokens map[string]string // by user and organisation
}

// as is a token of a seeded user, asked for once.
func (s studio) as(user, org string) string {
	s.t.Helper()
	who := user + " " + org
	if s.tokens[who] == "" {
		s.tokens[who] = s.token(user, org)
	}
	return s.tokens[who]
}

func startStudio(t *testing.T) studio {
	t.Helper()
	return startStudioWith(t, "")
}

// startStudioWith is startStudio with more limits, as they stand in the configuration: ", name: value".
func startStudioWith(t *testing.T, limits string) studio {
	t.Helper()
	npmHostApp(t, "build")
	s := studio{up: upstream.Start(t), tokens: map[string]string{}}
	s.up.Answer(func(r upstream.Request) upstream.Script { return upstream.Answer(r, "Done.") })
	const issuer = "http://gateway.example"
	s.config = "publicUrl: " + issuer + "\nproviders:\n  anthropic: {kind: anthropic, baseUrl: \"" + s.up.URL + "\"}\nplans:\n  paying: {requestsPerMinute: 100000, concurrent: 100}\n  lingering: {requestsPerMinute: 100000, concurrent: 100}\nlimits: {attempts: 1" + limits + "}\n"
	s.process = startDev(t, s.config).ready()
	s.saveKey("acme.example", payingKey)
	s.bringKey("viewer", "linger.example")
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails, see crypto/rand
	s.secret = "whsec_" + base64.StdEncoding.EncodeToString(raw)

	cmd := exec.Command("node", "dist/main.js")
	cmd.Dir = hostAppDir
	cmd.Env = append(os.Environ(), "GATEWAY_URL="+s.url, "GATEWAY_ISSUER="+issuer, "WEBHOOK_SECRET="+s.secret, "PORT=0", "OPERATOR_TOKEN="+s.token("superuser", "acme.example"))
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		if err := cmd.Wait(); err != nil || complaints.Len() > 0 {
			t.Errorf("the app ended with %v:\n%s", err, &complaints)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	_, origin, ok := strings.Cut(strings.TrimSpace(line), "ready at ")
	if err != nil || !ok {
		t.Fatalf("the app said %q, %v\n%s", line, err, &complaints)
	}
	s.app = origin
	return s
}

// bringKey stores a person's own key, as those of lingering organisations must.
func (s studio) bringKey(user, org string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/api/agent/keys", strings.NewReader(`{"provider":"anthropic","label":"mine","key":"`+payingKey+`"}`))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.as(user, org))
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		s.t.Fatalf("saving a key of one's own: %s", res.Status)
	}
}

// event is one event of the gateway's stream.
type event struct {
	Type, RunID, PreviewID, Capability, Summary, Status, Message, Decision string
	OK                                                                     bool
	Output                                                                 json.RawMessage
	Fraction                                                               float64
	Artifacts                                                              []struct{ Kind, Path, Diff string }
}

// post sends what the app's page sends, through the app, and reads the stream that comes back.
func (s studio) post(path, user, org string, body map[string]any) (events []event) {
	s.t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.app+path, bytes.NewReader(raw))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.as(user, org))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s %s %v", path, res.Status, said, err)
	}
	for line := range strings.SplitSeq(string(said), "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			s.t.Fatalf("%s: %v", data, err)
		}
		events = append(events, e)
	}
	return events
}

// call has the model call one capability and then end its turn.
func (s studio) call(user, org, capability, input string) []event {
	s.t.Helper()
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", strings.ReplaceAll(capability, ".", "-"), input))
	return s.post("/chat", user, org, map[string]any{"projectId": "deck_abc", "model": "claude-sonnet-4-6", "tools": []string{"studio.*"}, "messages": []any{map[string]string{"role": "user", "content": capability + " " + input}}})
}

func (s studio) decide(user, org, decision string, preview event) []event {
	s.t.Helper()
	return s.post("/confirm", user, org, map[string]any{"runId": preview.RunID, "previewId": preview.PreviewID, "decision": decision})
}

func find(events []event, kind string) event {
	i := slices.IndexFunc(events, func(e event) bool { return e.Type == kind })
	if i < 0 {
		return event{}
	}
	return events[i]
}

// slide reads a slide's body as the model would.
func (s studio) slide(org, n string) string {
	s.t.Helper()
	done := find(s.call("viewer", org, "studio.slide.read", `{"slide":`+n+`}`), "capability.done")
	var out struct{ Body string }
	if err := json.Unmarshal(done.Output, &out); err != nil || !done.OK {
		s.t.Fatalf("reading a slide: %+v, %v", done, err)
	}
	return out.Body
}

// The example from registering to accepting: nothing changes before a person accepts, and then once.
func TestHostApp(t *testing.T) {
	s := startStudio(t)
	const problem, warm = "Fresh food worth 12 cents of every euro is thrown away.", "Together: Fresh food worth 12 cents of every euro is thrown away."
	if got := s.slide("acme.example", "2"); got != problem {
		t.Fatalf("slide 2 says %q", got)
	}

	events := s.call("editor", "acme.example", "studio.slide.variant", `{"slide":2,"tone":"warmer"}`)
	preview := find(events, "preview")
	if preview.Capability != "studio.slide.variant" || preview.Summary != `A warmer slide 2, "The problem"` || len(preview.Artifacts) != 1 || !strings.Contains(preview.Artifacts[0].Diff, "\n-"+problem+"\n+"+warm+"\n") {
		t.Fatalf("the preview is %+v in %+v", preview, events)
	}
	if done := find(events, "run.done"); done.Status != "awaiting_confirmation" {
		t.Errorf("the run is %q", done.Status)
	}
	if got := s.slide("acme.example", "2"); got != problem {
		t.Errorf("before anybody accepted slide 2 says %q", got)
	}
	events = s.decide("editor", "acme.example", "accept", preview)
	if done := find(events, "capability.done"); !done.OK || !strings.Contains(string(done.Output), `"applied":true`) || find(events, "confirmation").Decision != "accept" || find(events, "run.done").Status != "completed" {
		t.Errorf("accepting gave %+v", events)
	}
	if got := s.slide("acme.example", "2"); got != warm {
		t.Errorf("slide 2 says %q", got)
	}
	if again := find(s.decide("editor", "acme.example", "accept", preview), "run.done"); again.Status != "completed" {
		t.Errorf("accepting twice: %+v", again)
	}
	if got := s.slide("acme.example", "2"); got != warm { // twice would say Together twice
		t.Errorf("after a second click slide 2 says %q", got)
	}
	if got := s.slide("linger.example", "2"); got != problem {
		t.Errorf("the other organisation's slide 2 says %q", got)
	}

	// Declined, overtaken, out of range.
	preview = find(s.call("editor", "acme.example", "studio.slide.edit", `{"slide":3,"title":"Ours"}`), "preview")
	s.decide("editor", "acme.example", "discard", preview)
	stale := find(s.call("editor", "acme.example", "studio.slide.edit", `{"slide":3,"title":"First"}`), "preview")
	fresh := find(s.call("editor", "acme.example", "studio.slide.edit", `{"slide":3,"title":"Second"}`), "preview")
	s.decide("editor", "acme.example", "accept", fresh)
	events = s.decide("editor", "acme.example", "accept", stale)
	if done := find(events, "capability.done"); done.OK || !strings.Contains(string(done.Output), "Slide 3 has changed since the preview") {
		t.Errorf("an overtaken preview gave %+v", events)
	}
	events = s.call("editor", "acme.example", "studio.slide.read", `{"slide":30}`)
	if done := find(events, "capability.done"); done.OK || !strings.Contains(string(done.Output), "There is no slide 30; the deck has slides 1 to 3.") {
		t.Errorf("a slide that is not there gave %+v", events)
	}
	events = s.call("editor", "acme.example", "studio.slide.edit", `{"slide":30,"title":"x"}`)
	if e := find(events, "capability.error"); e.Capability != "studio.slide.edit" || !strings.Contains(sent(s), "There is no slide 30") {
		t.Errorf("a preview of a slide that is not there gave %+v", events)
	}

	// What takes a while is heard of.
	events = s.call("editor", "acme.example", "studio.deck.export", `{}`)
	var exported struct{ Markdown string }
	done := find(events, "capability.done")
	if err := json.Unmarshal(done.Output, &exported); err != nil || !done.OK || !strings.HasPrefix(exported.Markdown, "# Northwind, in one sentence\n") || !strings.Contains(exported.Markdown, "# Second\n") {
		t.Errorf("exporting gave %+v, %v", events, err)
	}
	if find(events, "capability.progress").Message == "" {
		t.Errorf("no progress in %+v", events)
	}
	// A viewer may read and no more.
	events = s.call("viewer", "acme.example", "studio.deck.export", `{}`)
	if find(events, "capability.error").Capability != "studio.deck.export" {
		t.Errorf("a viewer exports: %+v", events)
	}
}

// sent is the last request the provider got.
func sent(s studio) string {
	all := s.up.Requests()
	return string(all[len(all)-1].Body)
}

// Who knows the app's webhook secret and even a key of their own is still not the gateway.
func TestHostAppHooksAreClosed(t *testing.T) {
	s := startStudio(t)
	body := `{"phase":"run","capability":"studio.slide.read","callId":"c","runId":"r","idempotencyKey":"k","input":{"slide":1},"project":"deck_abc","org":{"id":"acme.example","slug":"acme"},"user":{"id":"u"}}`
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"iss": "http://gateway.example", "aud": s.app, "sub": "u", "org": "acme.example", "run": "r", "call": "c", "capability": "studio.slide.read",
		"phase": "run", "project": "deck_abc", "jti": "j", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix()})
	forged.Header["typ"], forged.Header["kid"] = "delegation+jwt", publishedKid(t, s.url)
	token, err := forged.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	wh, err := standardwebhooks.NewWebhook(s.secret)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := wh.Sign("m", time.Now(), []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{"no token": "", "a person's token": s.token("editor", "acme.example"), "a forged one": token} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.app+"/hooks/studio.slide.read", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("webhook-id", "m")
		req.Header.Set("webhook-timestamp", strconv.FormatInt(time.Now().Unix(), 10))
		req.Header.Set("webhook-signature", signature)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized || !strings.Contains(string(said), "not signed by the gateway") {
			t.Errorf("%s: %s %s", name, res.Status, said)
		}
	}
}

// publishedKid is the name of a key that the gateway publishes. It must publish no private half.
func publishedKid(t *testing.T, gateway string) string {
	t.Helper()
	res, err := http.Get(gateway + "/.well-known/jwks.json")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var doc struct{ Keys []map[string]string }
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil || len(doc.Keys) != 3 || res.Header.Get("Cache-Control") != "public, max-age=3600" || res.Header.Get("Etag") == "" {
		t.Fatalf("%+v, %v, %v", doc, res.Header, err)
	}
	for _, k := range doc.Keys {
		if k["d"] != "" || k["kty"] != "OKP" || k["crv"] != "Ed25519" || k["use"] != "sig" || k["alg"] != "EdDSA" {
			t.Errorf("it publishes %v", k)
		}
	}
	return doc.Keys[1]["kid"]
}

package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// whsec is a secret as Standard Webhooks spells it; it opens nothing.
var whsec = "whsec_" + strings.Repeat("QUJD", 8)

func document(change func(map[string]any)) []byte {
	capability := map[string]any{
		"name": "slide.variant", "title": "Variant", "description": "Make a variant.", "adminDescription": "Makes another version of a slide.", "inputSchema": map[string]any{"type": "object"},
		"kind": "preview", "requiredTier": "viewer", "requiresConfirmation": true, "confirmBy": "admin", "gating": "mutate", "timeout": "5s",
		"annotations": map[string]any{"idempotent": true}, "chat": map[string]any{"recognitionHints": []string{"another version"}, "contextRequired": []string{"activeView.deckId"}},
		"postconditions": []any{map[string]any{"kind": "exit_code"}}, "handler": map[string]any{"kind": "webhook", "path": "/variant"},
	}
	doc := map[string]any{
		"version": 1, "app": "slides", "orgs": []string{"acme.example"}, "webhook": map[string]any{"url": "https://slides.example/hooks", "secret": whsec},
		"mcp": map[string]any{"files": map[string]any{"url": "https://mcp.example"}}, "skills": map[string]any{"tone": "# Tone"}, "capabilities": []any{capability},
	}
	if change != nil {
		change(doc)
	}
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return b
}

func firstCapability(doc map[string]any) map[string]any {
	return doc["capabilities"].([]any)[0].(map[string]any)
}

func TestParseDocumentNamesTheFault(t *testing.T) {
	set := func(key string, v any) func(map[string]any) { return func(d map[string]any) { d[key] = v } }
	inCap := func(key string, v any) func(map[string]any) {
		return func(d map[string]any) { firstCapability(d)[key] = v }
	}
	for _, tt := range []struct {
		name    string
		raw     []byte
		trusted bool
		want    string // "" is fine
	}{
		{"whole", document(nil), false, ""},
		{"two secrets", document(set("webhook", map[string]any{"url": "https://s.example", "secret": []string{whsec, whsec}})), false, ""},
		{"not JSON", []byte(`{"version":1,`), false, "not one JSON object"},
		{"a list", []byte(`[]`), false, "must be object"},
		{"a key twice", []byte(`{"version":1,"app":"a","app":"b","capabilities":[]}`), false, `"app" is given twice`},
		{"a key twice, inside", []byte(`{"version":1,"app":"slides","capabilities":[{"name":"a","name":"b"}]}`), false, `"name" is given twice`},
		{"two documents", append(document(nil), document(nil)...), false, "not one JSON object"},
		{"unknown field", document(set("webhok", 1)), false, "/webhok: there is no such field"},
		{"other version", document(set("version", 2)), false, "/version"},
		{"bad app", document(set("app", "Slides!")), false, "/app"},
		{"another app", document(set("app", "other")), false, `/app: the document is for the app "other"`},
		{"no organisation", document(set("orgs", []string{"not a domain"})), false, "/orgs/0"},
		{"no capabilities", document(set("capabilities", []any{})), false, "/capabilities"},
		{"unknown kind", document(inCap("kind", "write")), false, "/capabilities/0/kind"},
		{"unknown tier", document(inCap("requiredTier", "king")), false, "/capabilities/0/requiredTier"},
		{"bad timeout", document(inCap("timeout", "soon")), false, "/capabilities/0/timeout: it must be a duration"},
		{"mutating and free", document(inCap("requiresConfirmation", false)), false, "/capabilities/0/gating"},
		{"no handler", document(func(d map[string]any) { delete(firstCapability(d), "handler") }), false, "/capabilities/0/handler: a required field is missing"},
		{"unknown server", document(inCap("handler", map[string]any{"kind": "mcp", "server": "x", "tool": "t"})), false, "/capabilities/0/handler/server"},
		{"unknown skill", document(inCap("handler", map[string]any{"kind": "skill", "skill": "x"})), false, "/capabilities/0/handler/skill"},
		{"tool without server", document(inCap("handler", map[string]any{"kind": "mcp", "tool": "t"})), false, "/capabilities/0/handler"},
		{"webhook without address", document(func(d map[string]any) { delete(d, "webhook") }), false, "/capabilities/0/handler: the document has no webhook"},
		{"plain secret", document(set("webhook", map[string]any{"url": "https://s.example", "secret": "hunter2"})), false, "/webhook/secret"},
		{"secret of this machine", document(set("webhook", map[string]any{"url": "https://s.example", "secret": "file:/etc/passwd"})), false, "/webhook/secret: a secret that lies on the gateway's machine"},
		{"secret of this machine, trusted", document(set("webhook", map[string]any{"url": "https://s.example", "secret": "env:HOOK"})), true, ""},
		{"program", document(set("mcp", map[string]any{"files": map[string]any{"command": []string{"sh"}}})), false, "/mcp/files/command: programs are the operator's"},
		{"environment", document(set("mcp", map[string]any{"files": map[string]any{"url": "https://m.example", "env": map[string]string{"KEY": "file:/etc/passwd"}}})), false, "/mcp/files/env"},
		{"program, trusted", document(set("mcp", map[string]any{"files": map[string]any{"command": []string{"sh"}}})), true, ""},
		{"private webhook", document(set("webhook", map[string]any{"url": "https://s.example", "secret": whsec, "allowPrivate": true})), false, "/webhook/allowPrivate"},
		{"private server", document(set("mcp", map[string]any{"files": map[string]any{"url": "https://m.example", "allowPrivate": true}})), false, "/mcp/files/allowPrivate"},
		{"server without address", document(set("mcp", map[string]any{"files": map[string]any{}})), false, "/mcp/files"},
		{"too large", []byte(strings.Repeat(" ", maxDocument+1)), false, "larger than 4 MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := ParseDocument(tt.raw, "slides", tt.trusted)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if d.App != "slides" || len(d.Capabilities) != 1 {
					t.Errorf("read %+v", d)
				}
				return
			}
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Kind != fault.Invalid || fe.Code != "invalid_registry" || !strings.Contains(fe.Public, tt.want) {
				t.Errorf("got %v, want one that says %q", err, tt.want)
			}
		})
	}
}

// fakeHandlers answer every capability with one handler.
type fakeHandlers struct{ h Handler }

func (f fakeHandlers) Handler(Document, CapabilityDocument) (Handler, error) { return f.h, nil }

// hostDouble is a host app that always answers the same.
type hostDouble struct{ out string }

func (f hostDouble) Run(context.Context, Call) (Result, error) {
	return Result{Output: json.RawMessage(f.out)}, nil
}
func (f hostDouble) Preview(context.Context, Call) (Proposal, error) { return Proposal{}, nil }
func (f hostDouble) Apply(context.Context, Call, json.RawMessage) (Result, error) {
	return Result{Output: json.RawMessage(f.out)}, nil
}
func (f hostDouble) Discard(context.Context, Call, json.RawMessage) error { return nil }

func TestDocumentBuildsWhatItSays(t *testing.T) {
	d, err := ParseDocument(document(nil), "", false)
	if err != nil {
		t.Fatal(err)
	}
	caps, err := d.Build(fakeHandlers{hostDouble{}})
	if err != nil {
		t.Fatal(err)
	}
	c := caps[0]
	if c.App != "slides" || c.RequiredTier != tenancy.TierViewer || !c.RequiresConfirmation || c.ConfirmBy != ByAdmin || c.Timeout != 5*time.Second || !c.Annotations.Idempotent ||
		c.AdminDescription == "" || len(c.Hints.Recognition) != 1 || len(c.Postconditions) != 1 {
		t.Errorf("built %+v", c)
	}
	if _, err := NewRegistry(caps); err != nil {
		t.Error(err)
	}
	shown, err := json.Marshal(d.Shown())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(shown), whsec) {
		t.Error("the shown document holds its secret")
	}
	if d.Webhook.Secrets[0] != whsec {
		t.Error("showing a document changed it")
	}
}

func TestLibraryGivesEachOrganisationItsApps(t *testing.T) {
	id := func(s string) tenancy.OrgID {
		o, err := tenancy.ParseOrgID(s)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	acme, linger := id("acme.example"), id("linger.example")
	verb := func(app, name string) Capability {
		return Capability{Name: name, App: app, Description: "d", InputSchema: json.RawMessage(`{"type":"object"}`), Kind: Read, RequiredTier: tenancy.TierViewer, Handler: hostDouble{}}
	}
	l, err := NewLibrary(Offer{App: "base", Capabilities: []Capability{verb("base", "deck.read")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Put(Offer{App: "private", Orgs: []tenancy.OrgID{acme}, Capabilities: []Capability{verb("private", "acme.only")}}); err != nil {
		t.Fatal(err)
	}
	names := func(r *Registry) []string { n, _ := r.Match([]string{"*"}); return n }
	if got := names(l.For(acme)); !cmp.Equal(got, []string{"acme.only", "deck.read"}) {
		t.Errorf("acme has %q", got)
	}
	if got := names(l.For(linger)); !cmp.Equal(got, []string{"deck.read"}) {
		t.Errorf("linger has %q", got)
	}
	if got := names(l.Common()); !cmp.Equal(got, []string{"deck.read"}) {
		t.Errorf("all have %q", got)
	}
	if l.For(linger) != l.Common() {
		t.Error("equal sets are not one registry")
	}
	before := l.For(acme)

	err = l.Put(Offer{App: "thief", Orgs: []tenancy.OrgID{linger}, Capabilities: []Capability{verb("thief", "acme.only")}})
	if fault.KindOf(err) != fault.Conflict {
		t.Errorf("a taken name: %v", err)
	}
	if err := l.Put(Offer{App: "private", Orgs: []tenancy.OrgID{acme}, Capabilities: []Capability{verb("private", "acme.new")}}); err != nil {
		t.Fatal(err)
	}
	if got := names(l.For(acme)); !cmp.Equal(got, []string{"acme.new", "deck.read"}) {
		t.Errorf("after registering anew acme has %q", got)
	}
	if old, ok := l.At(before.Version()); !ok || old != before {
		t.Error("the registry that a running turn began with is gone")
	}
	l.Remove("private")
	if got := names(l.For(acme)); !cmp.Equal(got, []string{"deck.read"}) {
		t.Errorf("after removal acme has %q", got)
	}
}

func TestPostconditions(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for _, tt := range []struct {
		name   string
		p      Postcondition
		output string
		took   time.Duration
		want   Violation // zero: it holds
	}{
		{"exit code zero", Postcondition{Kind: ExitCode}, `{"exitCode":0}`, 0, Violation{}},
		{"exit code one", Postcondition{Kind: ExitCode}, `{"exitCode":1}`, 0, Violation{"exit_code", "0", "1"}},
		{"exit code elsewhere", Postcondition{Kind: ExitCode, Pointer: "/a~1b/0", Equals: n(3)}, `{"a/b":[3]}`, 0, Violation{}},
		{"no exit code", Postcondition{Kind: ExitCode}, `{}`, 0, Violation{"exit_code", "0", "nothing"}},
		{"exit code as text", Postcondition{Kind: ExitCode}, `{"exitCode":"0"}`, 0, Violation{"exit_code", "0", "a text of 1 bytes"}},
		{"one row more", Postcondition{Kind: RowCountChange, Before: "/b", After: "/a", Min: n(1), Max: json.RawMessage("1")}, `{"b":4,"a":5}`, 0, Violation{}},
		{"no row more", Postcondition{Kind: RowCountChange, Before: "/b", After: "/a", Min: n(1)}, `{"b":4,"a":4}`, 0, Violation{"row_count_change /a", "at least 1", "0"}},
		{"too many rows", Postcondition{Kind: RowCountChange, Before: "/b", After: "/a", Min: n(0), Max: json.RawMessage("1")}, `{"b":4,"a":9}`, 0, Violation{"row_count_change /a", "at least 0 and at most 1", "5"}},
		{"rows not told", Postcondition{Kind: RowCountChange, Before: "/b", After: "/a", Min: n(0)}, `{"b":4}`, 0, Violation{"row_count_change /a", "at least 0", "no number at /a"}},
		{"a file", Postcondition{Kind: FileCreated, Pointer: "/path"}, `{"path":"out/deck.pdf"}`, 0, Violation{}},
		{"no file", Postcondition{Kind: FileCreated, Pointer: "/path"}, `{"path":" "}`, 0, Violation{"file_created /path", "the path of a file", "a text of 1 bytes"}},
		{"fits the schema", Postcondition{Kind: OutputMatches, Schema: json.RawMessage(`{"required":["a"]}`)}, `{"a":1}`, 0, Violation{}},
		{"misses the schema", Postcondition{Kind: OutputMatches, Schema: json.RawMessage(`{"required":["a"]}`)}, `{}`, 0, Violation{"output_matches", "a value that fits the schema", "At /a: a required field is missing."}},
		{"fits the pattern", Postcondition{Kind: OutputMatches, Pointer: "/s", Pattern: "^ok"}, `{"s":"ok then"}`, 0, Violation{}},
		{"misses the pattern", Postcondition{Kind: OutputMatches, Pointer: "/s", Pattern: "^ok"}, `{"s":"secret"}`, 0, Violation{"output_matches /s", "a text that matches ^ok", "a text of 6 bytes"}},
		{"in time", Postcondition{Kind: Duration, Max: json.RawMessage(`"5s"`)}, `{}`, 5 * time.Second, Violation{}},
		{"late", Postcondition{Kind: Duration, Max: json.RawMessage(`"5s"`)}, `{}`, 6 * time.Second, Violation{"duration", "at most 5s", "6s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := tt.p.compile()
			if err != nil {
				t.Fatal(err)
			}
			e := &entry{conditions: []condition{c}}
			var want []Violation
			if tt.want != (Violation{}) {
				want = []Violation{tt.want}
			}
			if diff := cmp.Diff(want, e.violations(Result{Output: json.RawMessage(tt.output)}, tt.took)); diff != "" {
				t.Error(diff)
			}
			if got := e.violations(Result{Output: json.RawMessage(tt.output), Failed: true}, tt.took); got != nil {
				t.Errorf("a capability that says it failed is held to %v", got)
			}
		})
	}
	for _, p := range []Postcondition{{Kind: "magic"}, {Kind: FileCreated}, {Kind: RowCountChange, Before: "/a"}, {Kind: RowCountChange, Before: "/a", After: "/b"}, {Kind: OutputMatches},
		{Kind: OutputMatches, Pattern: "("}, {Kind: OutputMatches, Schema: json.RawMessage(`{"type":7}`)}, {Kind: Duration, Max: json.RawMessage(`5`)}, {Kind: ExitCode, Pointer: "exit"}} {
		if _, err := p.compile(); err == nil {
			t.Errorf("%+v is taken", p)
		}
	}
}

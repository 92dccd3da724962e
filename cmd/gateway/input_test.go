package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// rowsOf counts the rows of every table of every database below a data directory. Tables of the schema itself are left out.
func rowsOf(t testing.TB, data string) map[string]int {
	t.Helper()
	files := []string{filepath.Join(data, "control.db")}
	tenants, err := filepath.Glob(filepath.Join(data, "tenants", "*.db"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, file := range append(files, tenants...) {
		db, err := sql.Open("sqlite", "file:"+file+"?mode=ro&_pragma=busy_timeout(5000)")
		if err != nil {
			t.Fatal(err)
		}
		var tables []string
		rows, err := db.Query("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT IN ('word', 'owner', 'schema_migration', 'goose_db_version')")
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				t.Fatal(err)
			}
			tables = append(tables, name)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
		for _, name := range tables {
			var n int
			if err := db.QueryRow("SELECT count(*) FROM " + name).Scan(&n); err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				out[filepath.Base(file)+"/"+name] = n
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// written is everything a refused request must leave as it was.
type written struct {
	Upstream, Backlog int
	Rows              map[string]int
}

// writtenBy reads it after all that was said has reached the databases.
func writtenBy(s *service) written {
	s.t.Helper()
	s.flush()
	return written{Upstream: len(s.up.Requests()), Backlog: s.app.journal.Stats().Backlog, Rows: rowsOf(s.t, s.data)}
}

// refusal is an error body of any face.
type refusal struct {
	Code, Field, Text string
}

func readRefusal(t testing.TB, header http.Header, body string) refusal {
	t.Helper()
	var doc struct {
		Detail, Code, Field, RequestID, Title string
		Type                                  string
		Status                                int
		Error                                 struct {
			Type, Message string
			Details       struct {
				Code  string `json:"error_code"`
				Field string
			}
		}
		Anthropic string `json:"request_id"`
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatalf("the refusal is not JSON: %q", body)
	}
	rid := header.Get("X-Request-Id")
	if doc.Type == "error" {
		if doc.Anthropic != rid || rid == "" || header.Get("Content-Type") != "application/json" || doc.Error.Type == "" {
			t.Errorf("not an error of this face: %v %s", header, body)
		}
		return refusal{doc.Error.Details.Code, doc.Error.Details.Field, doc.Error.Message}
	}
	if doc.RequestID != rid || rid == "" || header.Get("Content-Type") != "application/problem+json" || doc.Title == "" {
		t.Errorf("not a problem document: %v %s", header, body)
	}
	return refusal{doc.Code, doc.Field, doc.Detail}
}

const (
	inputChat    = `{"projectId":"p","model":"claude-sonnet-4-6","messages":[{"role":"user","content":"Hello"}]}`
	inputMessage = `{"model":"claude-sonnet-4-6","max_tokens":100,"messages":[{"role":"user","content":"Hello"}]}`
)

// with replaces one member of a JSON object, or adds it.
func with(object, name, value string) string {
	dec := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(object), &dec); err != nil {
		panic(err)
	}
	var b strings.Builder
	b.WriteString("{")
	for k, v := range dec {
		if k != name {
			fmt.Fprintf(&b, "%q:%s,", k, v)
		}
	}
	fmt.Fprintf(&b, "%q:%s}", name, value)
	return b.String()
}

func without(object, name string) string {
	dec := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(object), &dec); err != nil {
		panic(err)
	}
	delete(dec, name)
	out, _ := json.Marshal(dec) // raw members of a document that was just read
	return string(out)
}

type badInput struct {
	name, method, path, user, body string
	headers                        []string
	status                         int
	field                          string // JSON pointer; "": the body as a whole
	says                           string
}

// badInputs is every way we know to send something wrong, on each route that takes a body.
func badInputs() []badInput {
	long := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	_, _ = zw.Write([]byte(inputChat))
	_ = zw.Close()

	var list []badInput
	for _, r := range []struct{ label, method, path, user, good string }{
		{"chat", "POST", "/api/agent/chat", "editor", inputChat},
		{"confirm", "POST", "/api/agent/confirm", "editor", `{"runId":"run_1","previewId":"pv_1","decision":"accept"}`},
		{"own key", "POST", "/api/agent/keys", "editor", `{"provider":"anthropic","key":"` + strings.Repeat("k", 30) + `"}`},
		{"rotate", "POST", "/api/agent/keys/key_1/rotate", "editor", `{"key":"` + strings.Repeat("k", 30) + `"}`},
		{"settings", "PATCH", "/api/orgs/acme.example/settings", "admin", `{"redaction_profile":"strict"}`},
		{"org key", "POST", "/api/orgs/acme.example/keys", "admin", `{"provider":"anthropic","key":"` + strings.Repeat("k", 30) + `"}`},
		{"messages", "POST", "/v1/messages", "editor", inputMessage},
		{"messages without v1", "POST", "/anthropic/messages", "editor", inputMessage},
	} {
		add := func(name, body string, status int, field, says string, headers ...string) {
			list = append(list, badInput{r.label + "/" + name, r.method, r.path, r.user, body, headers, status, field, says})
		}
		add("empty", "", 400, "", "empty")
		add("white space", " \r\n\t ", 400, "", "empty")
		add("not JSON", `{"projectId":`, 400, "?", "")
		add("text", `hello`, 400, "", "")
		add("array", `[`+r.good+`]`, 0, "", "object")
		add("string", `"x"`, 0, "", "object")
		add("null", `null`, 0, "", "object")
		add("two objects", r.good+r.good, 400, "", "")
		add("invalid UTF-8", strings.Replace(r.good, `":"`, "\":\"\xff", 1), 0, "?", "")
		add("control character", strings.Replace(r.good, `":"`, "\":\"\x01", 1), 400, "?", "")
		add("compressed", gz.String(), 400, "", "Content-Encoding", "Content-Encoding", "gzip")
		if !strings.HasPrefix(r.label, "messages") { // that protocol grows by fields we do not know, so they pass
			add("unknown field", with(r.good, "colour", `"red"`), 0, "/colour", "colour")
			add("unknown field with a slash", with(r.good, "a/b~c", `1`), 0, "/a~1b~0c", "")
			add("prototype", with(r.good, "__proto__", `{}`), 0, "/__proto__", "")
		}
		var first string
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(r.good), &members); err != nil {
			panic(err)
		}
		for k, v := range members {
			first = k
			add("twice "+k, r.good[:len(r.good)-1]+`,"`+k+`":`+string(v)+"}", 0, "/"+k, "twice")
		}
		add("deep nesting", with(r.good, first, deep), 0, "?", "")
	}

	chat := func(name, body string, status int, field, says string) {
		list = append(list, badInput{"chat/" + name, "POST", "/api/agent/chat", "editor", body, nil, status, field, says})
	}
	for _, f := range []struct{ name, kinds string }{
		{"projectId", "number"}, {"projectKind", "number"}, {"threadId", "object"}, {"clientTurnId", "array"}, {"model", "number"}, {"messages", "string"},
		{"tools", "string"}, {"context", "array"}, {"alignment", "bool"}, {"stream", "string"}, {"maxTokens", "string"},
	} {
		chat("wrong type of "+f.name, with(inputChat, f.name, map[string]string{"number": "1", "object": "{}", "array": "[1]", "string": `"x"`, "bool": "true"}[f.kinds]), 400, "/"+f.name, "/"+f.name+" must be")
	}
	for _, f := range []string{"projectId", "model", "messages"} {
		chat("missing "+f, without(inputChat, f), 400, "/"+f, "required")
		chat("null "+f, with(inputChat, f, "null"), 400, "/"+f, "required")
	}
	chat("blank projectId", with(inputChat, "projectId", `"  "`), 400, "/projectId", "required")
	for _, f := range []string{"projectId", "projectKind", "threadId", "clientTurnId", "model", "alignment"} {
		chat("huge "+f, with(inputChat, f, long(100_000)), 400, "/"+f, "longer than")
	}
	chat("fraction of maxTokens", with(inputChat, "maxTokens", "1.5"), 400, "/maxTokens", "whole number")
	chat("absurd maxTokens", with(inputChat, "maxTokens", "1000001"), 400, "/maxTokens", "between")
	chat("maxTokens beyond int64", with(inputChat, "maxTokens", "1e30"), 400, "/maxTokens", "whole number")
	chat("negative maxTokens", with(inputChat, "maxTokens", "-1"), 400, "/maxTokens", "between")
	chat("alignment of its own", with(inputChat, "alignment", `"chaotic"`), 400, "/alignment", "strict or loose")
	chat("unknown model", with(inputChat, "model", `"gpt-99"`), 404, "/model", "gpt-99")
	chat("unknown tool", with(inputChat, "tools", `["slide.*","rocket.launch"]`), 400, "/tools", "rocket.launch")
	chat("unknown tool glob", with(inputChat, "tools", `["rocket.*"]`), 400, "/tools", "rocket.*")
	chat("tool of no string", with(inputChat, "tools", `["slide.*",1]`), 400, "/tools", "strings")
	chat("too many tools", with(inputChat, "tools", "["+strings.Repeat(`"slide.*",`, 200)+`"slide.*"]`), 400, "/tools", "200")
	chat("huge context", with(inputChat, "context", `{"activeView":`+long(70_000)+`}`), 400, "/context", "64 KiB")
	chat("no messages", with(inputChat, "messages", "[]"), 400, "/messages", "required")
	chat("last message of the assistant", with(inputChat, "messages", `[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`), 400, "/messages/1/role", "newest")
	chat("first message of the assistant", with(inputChat, "messages", `[{"role":"assistant","content":"a"},{"role":"user","content":"b"}]`), 400, "/messages/0/role", "first")
	chat("system message", with(inputChat, "messages", `[{"role":"system","content":"a"},{"role":"user","content":"b"}]`), 400, "/messages/0/role", "system prompt is ours")
	chat("role of no string", with(inputChat, "messages", `[{"role":1,"content":"a"}]`), 400, "/messages/0/role", "string")
	chat("message without role", with(inputChat, "messages", `[{"content":"a"}]`), 400, "/messages/0/role", "required")
	chat("message without content", with(inputChat, "messages", `[{"role":"user"}]`), 400, "/messages/0/content", "required")
	chat("blank content", with(inputChat, "messages", `[{"role":"user","content":" "}]`), 400, "/messages/0/content", "empty")
	chat("no parts", with(inputChat, "messages", `[{"role":"user","content":[]}]`), 400, "/messages/0/content", "required")
	chat("content of no string", with(inputChat, "messages", `[{"role":"user","content":7}]`), 400, "/messages/0/content", "array of text parts")
	chat("image part", with(inputChat, "messages", `[{"role":"user","content":[{"type":"image","text":"x"}]}]`), 400, "/messages/0/content/0/type", "text")
	chat("tool result part", with(inputChat, "messages", `[{"role":"user","content":[{"type":"text","text":"x"},{"type":"tool_result","tool_use_id":"t"}]}]`), 400, "/messages/0/content/1/tool_use_id", "")
	chat("unknown field of a message", with(inputChat, "messages", `[{"role":"user","content":"a","name":"x"}]`), 400, "/messages/0/name", "name")
	chat("role twice", with(inputChat, "messages", `[{"role":"assistant","role":"user","content":"a"}]`), 400, "/messages/0/role", "twice")
	chat("message of no object", with(inputChat, "messages", `["a"]`), 400, "/messages/0", "object")
	chat("a key of the caller's", with(inputChat, "apiKey", `"x"`), 400, "/apiKey", "")
	chat("a system prompt of the caller's", with(inputChat, "system", `"x"`), 400, "/system", "")

	confirm := func(name, body string, status int, field string) {
		list = append(list, badInput{"confirm/" + name, "POST", "/api/agent/confirm", "editor", body, nil, status, field, ""})
	}
	good := `{"runId":"run_1","previewId":"pv_1","decision":"accept"}`
	for _, f := range []string{"runId", "previewId", "decision"} {
		confirm("missing "+f, without(good, f), 400, "/"+f)
		confirm("wrong type of "+f, with(good, f, "[]"), 400, "/"+f)
		confirm("huge "+f, with(good, f, long(5000)), 400, "/"+f)
	}
	confirm("other decision", with(good, "decision", `"maybe"`), 400, "/decision")
	confirm("decision of ours", with(good, "decision", `"expired"`), 400, "/decision")
	confirm("huge note", with(good, "note", long(5000)), 400, "/note")
	confirm("stream of no bool", with(good, "stream", `"yes"`), 400, "/stream")
	confirm("nothing to confirm", good, 404, "")

	key := func(name, body string, status int, field string) {
		list = append(list, badInput{"own key/" + name, "POST", "/api/agent/keys", "editor", body, nil, status, field, ""})
	}
	goodKey := `{"provider":"anthropic","key":"sk-` + `ant-` + strings.Repeat("k", 30) + `","label":"mine"}`
	for _, f := range []string{"provider", "key"} {
		key("missing "+f, without(goodKey, f), 400, "/"+f)
	}
	for _, f := range []string{"provider", "key", "label"} {
		key("wrong type of "+f, with(goodKey, f, "7"), 400, "/"+f)
		key("huge "+f, with(goodKey, f, long(20_000)), 400, "/"+f)
	}
	key("unknown provider", with(goodKey, "provider", `"acme-ai"`), 400, "/provider")
	key("key of another provider", with(goodKey, "key", `"AIza`+strings.Repeat("k", 30)+`"`), 422, "/key")
	key("key with a line break", with(goodKey, "key", `"sk-`+`ant-abc\ndef`+strings.Repeat("k", 30)+`"`), 422, "/key")
	key("label with the key in it", with(goodKey, "label", `"my sk-`+`ant-`+strings.Repeat("k", 30)+`"`), 422, "/label")
	list = append(list, badInput{"rotate/no such key", "POST", "/api/agent/keys/key_1/rotate", "editor", `{"key":"sk-` + `ant-` + strings.Repeat("k", 30) + `"}`, nil, 404, "", ""})

	settings := func(name, body string, status int, field string, headers ...string) {
		list = append(list, badInput{"settings/" + name, "PATCH", "/api/orgs/acme.example/settings", "admin", body, headers, status, field, ""})
	}
	settings("wrong type of disabled_capabilities", `{"disabled_capabilities":"slide.edit"}`, 422, "/disabled_capabilities")
	settings("entry of no string", `{"disabled_capabilities":["slide.edit",null]}`, 422, "/disabled_capabilities/1")
	settings("entry outside the grammar", `{"disabled_capabilities":["slide edit"]}`, 422, "/disabled_capabilities/0")
	settings("empty entry", `{"allowed_models":["claude-*",""]}`, 422, "/allowed_models/1")
	settings("wrong type of allowed_models", `{"allowed_models":{}}`, 422, "/allowed_models")
	settings("wrong type of redaction_profile", `{"redaction_profile":1}`, 422, "/redaction_profile")
	settings("unknown profile", `{"redaction_profile":"paranoid"}`, 422, "/redaction_profile")
	settings("too many entries", `{"disabled_capabilities":[`+strings.Repeat(`"a.b",`, 500)+`"a.b"]}`, 422, "/disabled_capabilities")
	settings("good and bad together", `{"redaction_profile":"off","allowed_models":[1]}`, 422, "/allowed_models/0")
	settings("stale revision", `{"redaction_profile":"off"}`, 409, "", "If-Match", `"77"`)
	settings("revision of no number", `{"redaction_profile":"off"}`, 400, "", "If-Match", `"abc"`)

	msg := func(name, body string, status int, field, says string) {
		list = append(list, badInput{"messages/" + name, "POST", "/v1/messages", "editor", body, nil, status, field, says})
	}
	for _, f := range []string{"model", "max_tokens", "messages"} {
		msg("missing "+f, without(inputMessage, f), 400, "/"+f, "missing")
		msg("null "+f, with(inputMessage, f, "null"), 400, "/"+f, "")
		msg("wrong type of "+f, with(inputMessage, f, `{}`), 400, "/"+f, "wrong type")
	}
	msg("stream of no bool", with(inputMessage, "stream", `"yes"`), 400, "/stream", "wrong type")
	msg("tools of no array", with(inputMessage, "tools", `{}`), 400, "/tools", "wrong type")
	msg("tool of no object", with(inputMessage, "tools", `[1]`), 400, "/tools/0", "not an object")
	msg("tool name of no string", with(inputMessage, "tools", `[{"name":1}]`), 400, "/tools/0/name", "wrong type")
	msg("tool with two names", with(inputMessage, "tools", `[{"name":"a","name":"b"}]`), 400, "/tools/0/name", "twice")
	msg("no messages", with(inputMessage, "messages", "[]"), 400, "/messages", "empty")
	msg("message of no object", with(inputMessage, "messages", `[1]`), 400, "/messages/0", "not an object")
	msg("content twice", with(inputMessage, "messages", `[{"role":"user","content":"a","content":"b"}]`), 400, "/messages/0/content", "twice")
	msg("role twice", with(inputMessage, "messages", `[{"role":"user","role":"assistant","content":"b"}]`), 400, "/messages/0/role", "twice")
	msg("empty model", with(inputMessage, "model", `""`), 400, "/model", "empty")
	msg("unknown model", with(inputMessage, "model", `"gpt-99"`), 404, "/model", "gpt-99")
	msg("fewer than no tokens", with(inputMessage, "max_tokens", "-1"), 400, "/max_tokens", "whole number")
	msg("absurd max_tokens", with(inputMessage, "max_tokens", "99999999999999999999"), 400, "/max_tokens", "whole number")
	msg("fraction of max_tokens", with(inputMessage, "max_tokens", "1.5"), 400, "/max_tokens", "whole number")
	msg("unknown field twice", `{"x":1,"x":2,`+inputMessage[1:], 400, "/x", "twice")
	// Within what the parser takes, but deeper than anything is scanned: it must not go out unscanned.
	msg("deeper than is scanned", with(inputMessage, "metadata", strings.Repeat(`{"a":`, 300)+"1"+strings.Repeat("}", 300)), 400, "?", "nest")
	return list
}

func TestInputBadBodiesAreRefusedAndNothingIsWritten(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", "sk-"+"ant-test-"+strings.Repeat("k", 30))
	before := writtenBy(s)
	for _, c := range badInputs() {
		t.Run(c.name, func(t *testing.T) {
			status, body, header := s.call(c.method, c.path, s.token(c.user, "acme.example"), c.body, c.headers...)
			if c.status == 0 && status != 400 && status != 422 || c.status != 0 && status != c.status {
				t.Fatalf("status %d, want %d: %s", status, c.status, body)
			}
			r := readRefusal(t, header, body)
			if c.field != "?" && r.Field != c.field {
				t.Errorf("field %q, want %q: %s", r.Field, c.field, r.Text)
			}
			if !strings.Contains(r.Text, c.says) || r.Text == "" || r.Code == "" {
				t.Errorf("it says %q (%s), want %q in it", r.Text, r.Code, c.says)
			}
			if strings.HasPrefix(c.path, "/v1/") && r.Field != "" && !strings.Contains(r.Text, r.Field) {
				t.Errorf("the message does not name the field: %q", r.Text)
			}
			if len(body) > 4096 {
				t.Errorf("the refusal repeats what was sent: %d bytes", len(body))
			}
			if strings.Contains(body, "kkkkkkkkkkkk") {
				t.Errorf("the refusal repeats a key: %s", body)
			}
		})
	}
	if d := cmp.Diff(before, writtenBy(s)); d != "" {
		t.Errorf("refused requests wrote something: %s", d)
	}
	if strings.Contains(s.logs.String(), "kkkkkkkkkkkk") {
		t.Error("a refused key is in the log")
	}
	status, body, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), inputMessage)
	if after := writtenBy(s); status != 200 || after.Upstream != before.Upstream+1 || after.Rows["control.db/usage_event"] != 1 || after.Rows["acme.db/agent_transcripts"] != 1 {
		t.Errorf("the probe cannot tell: a good request gave %d %s and %+v", status, body, after)
	}
}

// sendRaw writes a request by hand, in the background, and reads the answer: a client of net/http may give up on its own when the
// server answers before it has read everything.
func sendRaw(t *testing.T, s *service, head string, body io.Reader) (int, http.Header, string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	go func() {
		if _, err := io.WriteString(conn, head); err == nil {
			_, _ = io.Copy(conn, body)
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(answer)
}

// zeros is an endless body without newlines.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestInputThirtyMegabytes(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", "sk-"+"ant-test-"+strings.Repeat("k", 30))
	before := writtenBy(s)
	const size = 30 << 20
	for _, path := range []string{"POST /api/agent/chat", "POST /api/agent/confirm", "POST /api/agent/keys", "POST /v1/messages", "PATCH /api/orgs/acme.example/settings", "POST /api/orgs/acme.example/keys"} {
		head := path + " HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer " + s.token("admin", "acme.example") + "\r\nContent-Type: application/json\r\n"
		t.Run(path+" declared", func(t *testing.T) {
			status, header, body := sendRaw(t, s, head+fmt.Sprintf("Content-Length: %d\r\n\r\n", size), io.LimitReader(zeros{}, size))
			if r := readRefusal(t, header, body); status != 413 || r.Code != "body_too_large" || !strings.Contains(r.Text, "MiB") {
				t.Errorf("%d %s", status, body)
			}
		})
		t.Run(path+" chunked", func(t *testing.T) {
			chunk := fmt.Sprintf("%x\r\n", 1<<20)
			var parts []io.Reader
			for range size >> 20 {
				parts = append(parts, strings.NewReader(chunk), io.LimitReader(zeros{}, 1<<20), strings.NewReader("\r\n"))
			}
			status, header, body := sendRaw(t, s, head+"Transfer-Encoding: chunked\r\n\r\n", io.MultiReader(append(parts, strings.NewReader("0\r\n\r\n"))...))
			if r := readRefusal(t, header, body); status != 413 || r.Code != "body_too_large" {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	if d := cmp.Diff(before, writtenBy(s)); d != "" {
		t.Errorf("refused requests wrote something: %s", d)
	}
}

func TestInputRoutesAndMethods(t *testing.T) {
	s := startService(t, "", nil)
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/api/agent/nothing", 404, "route_not_found"}, {"GET", "/v1/nothing", 404, "route_not_found"}, {"GET", "/api/agent/chat", 405, "method_not_allowed"},
		{"GET", "/v1/messages", 405, "method_not_allowed"}, {"DELETE", "/api/me", 405, "method_not_allowed"}, {"GET", "/", 404, "route_not_found"},
		{"GET", "/api/agent/threads?limit=0", 400, "invalid_request"}, {"GET", "/api/agent/threads?limit=many", 400, "invalid_request"},
		{"GET", "/api/agent/threads/t_none", 404, "thread_not_found"}, {"DELETE", "/api/agent/keys/key_none", 404, "key_unknown"},
		{"GET", "/api/orgs/acme.example/usage?from=yesterday", 400, "invalid_request"}, {"GET", "/api/orgs/acme.example/usage?from=2026-02-02&to=2026-01-01", 400, "invalid_request"},
		{"GET", "/api/orgs/acme.example/usage?groupBy=colour", 400, ""}, {"GET", "/api/orgs/NOT%20AN%20ORG/usage", 404, "org_unknown"},
		{"GET", "/api/orgs/..%2f..%2fetc/settings", 404, "org_unknown"}, {"DELETE", "/api/orgs/acme.example/keys/key_none", 404, "key_unknown"},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			status, body, header := s.call(c.method, c.path, s.token("admin", "acme.example"), "")
			r := readRefusal(t, header, body)
			if status != c.status || c.code != "" && r.Code != c.code {
				t.Errorf("%d %s, want %d %s", status, body, c.status, c.code)
			}
		})
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// framed is a text as reapedBlocks finds it.
func framed(text string) string { return "begin 1\n" + text + "\nend 1" }

// TestRedactionMatrixAgent has a canary of every entity in each position an agent's turn has: messages, history it brings and history we keep,
// what the app says it shows, arguments of calls, results of capabilities.
func TestRedactionMatrixAgent(t *testing.T) {
	s := startPaying(t, nil)
	a := newAviary(t, 6)
	n := newNest(a.person...)
	editor := s.token("editor", "acme.example")
	plain := block(a.person)
	clean := func(name string) (person []string) {
		t.Helper()
		body := []byte(lastSent(s))
		if found := n.findJSON(body); len(found) > 0 {
			t.Errorf("%s: the provider was sent %s", name, some(found))
		}
		person, _ = reapedBlocks(body)
		for _, p := range person {
			if d := firstDifference([]string{pemToken.ReplaceAllString(person[0], ""), pemToken.ReplaceAllString(p, "")}); d != "" {
				t.Errorf("%s: a position was treated otherwise than another:\n%s", name, d)
			}
		}
		return person
	}
	checks := 0
	for _, action := range []string{"tokenize", "hash", "mask"} {
		patch(s, "acme.example", `{"redaction":`+a.document(action)+`}`)
		for _, stream := range []bool{true, false} {
			name := fmt.Sprintf("%s/stream %v", action, stream)
			thread := strings.NewReplacer("/", "_", " ", "_").Replace("t_" + name)
			said := func(fields map[string]any) string {
				t.Helper()
				body := map[string]any{"projectId": "deck_1", "model": "claude-sonnet-4-6", "stream": stream}
				for k, v := range fields {
					body[k] = v
				}
				status, answer, _ := s.call("POST", "/api/agent/chat", editor, quoted(body))
				if status != 200 {
					t.Fatalf("%s: %d %s", name, status, answer)
				}
				if stream {
					return text(checkedEvents(t, answer))
				}
				var doc struct{ Text string }
				if err := json.Unmarshal([]byte(answer), &doc); err != nil {
					t.Fatal(err)
				}
				return doc.Text
			}
			first := ""
			s.up.Answer(func(r upstream.Request) upstream.Script {
				person, _ := reapedBlocks(r.Body)
				if len(person) == 0 {
					return upstream.Answer(r, "Nothing.")
				}
				first = person[0]
				return upstream.Answer(r, framed(person[0]))
			})
			user := func(content any) any { return map[string]any{"role": "user", "content": content} }
			expect := func(where, got string, positions int) {
				t.Helper()
				want := framed(first)
				if action == "tokenize" {
					want = framed(plain)
				}
				if got != want {
					t.Errorf("%s, %s: what came back:\n%s", name, where, firstDifference([]string{want, got}))
				}
				if person := clean(name + ", " + where); len(person) != positions {
					t.Errorf("%s, %s: the provider got %d positions of %d", name, where, len(person), positions)
				}
				checks += positions * len(a.person)
			}
			got := said(map[string]any{"threadId": thread, "messages": []any{user(framed(plain)), map[string]any{"role": "assistant", "content": framed(plain)}, user([]any{map[string]any{"type": "text", "text": framed(plain)}, map[string]any{"type": "text", "text": framed(plain)}})}})
			expect("history the app brings", got, 4)
			got = said(map[string]any{"threadId": thread + "_2", "messages": []any{user(framed(plain))}})
			expect("a message", got, 1)
			s.flush()
			got = said(map[string]any{"threadId": thread + "_2", "messages": []any{user("And again.")}})
			expect("history we keep", got, 2)
		}
		// What the app shows is cut to some lines, so each value has a turn of its own.
		for _, c := range a.person {
			label, _, _ := strings.Cut(c.line, c.value)
			label = strings.Trim(label, " \"\n")
			chatTurn(s, editor, map[string]any{"said": "Hello.", "context": map[string]any{"activeView": map[string]any{"kind": "slide", "note": c.line}, "suggestions": []string{c.line}}})
			if sent := lastSent(s); strings.Count(sent, label) < 2 {
				t.Errorf("%s: what the app shows, %q, was not sent: %s", action, label, sent)
			}
			if found := n.findJSON([]byte(lastSent(s))); len(found) > 0 {
				t.Errorf("%s: what the app shows was sent: %s", action, some(found))
			}
			checks += 2
		}
		// A call's arguments reach its handler, and so the person's preview, as they were said; its result is hidden again.
		half := block(a.person[:30])
		var args string
		s.up.Answer(func(r upstream.Request) upstream.Script {
			if person, _ := reapedBlocks(r.Body); len(person) > 0 && args == "" {
				args = person[0]
				return upstream.ToolUse("claude-sonnet-4-6", "toolu_edit", "slide-edit", quoted(map[string]any{"slide": 2, "body": framed(args)}))
			}
			return upstream.Answer(r, "Done.")
		})
		evs := chatTurn(s, editor, map[string]any{"threadId": "t_tool_" + action, "said": "Change it to " + framed(half), "tools": []string{"slide.*"}})
		p := find(evs, "preview")
		if p == nil {
			t.Fatalf("%s: no preview: %s", action, names(evs))
		}
		want := args
		if action == "tokenize" {
			want = half
		}
		shown := ""
		for _, s := range stringsOf([]byte(quoted(p.Data["artifacts"]))) {
			shown += strings.NewReplacer("\n+", "\n", "\n ", "\n").Replace("\n" + s.text) // a diff
		}
		for line := range strings.SplitSeq(want, "\n") {
			if !strings.Contains(shown, "\n"+line+"\n") {
				t.Errorf("%s: the preview does not show %.80q", action, line)
			}
		}
		s.flush()
		if status, body, _ := confirm(s, editor, previewed{p.Data["runId"].(string), p.Data["previewId"].(string)}, "accept"); status != 200 {
			t.Fatalf("%s: %d %s", action, status, body)
		}
		clean(action + ", after the edit")
		s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_read", "slide-read", `{"slide":2}`))
		chatTurn(s, editor, map[string]any{"threadId": "t_read_" + action, "said": "Read it", "tools": []string{"slide.*"}})
		if person := clean(action + ", a result"); len(person) != 1 {
			t.Errorf("%s: the result was sent in %d places", action, len(person))
		}
		checks += 4 * 30
	}
	t.Logf("%d entities, %d values looked for in %d spellings", len(a.person), checks, n.size)
}

// TestRedactionKeepsThePrefix has the turns of a conversation taken by two processes of one service in turn: what the first was sent begins what the
// second was, byte for byte, so that the provider's cache of prompts is as warm as without redaction.
func TestRedactionKeepsThePrefix(t *testing.T) {
	shared := t.TempDir()
	both := func(c *Config) {
		c.Database.Control, c.Database.Tenant = "file:"+filepath.Join(shared, "control.db"), "file:"+filepath.Join(shared, "tenants", "{slug}.db")
	}
	one := startService(t, "", both)
	one.orgKey("acme.example", drawnKey(100, 60))
	data := t.TempDir()
	if err := os.CopyFS(filepath.Join(data, "dev"), os.DirFS(filepath.Join(one.data, "dev"))); err != nil { // one master key
		t.Fatal(err)
	}
	two := startService(t, data, both)
	a := newAviary(t, 7)
	n := newNest(a.person...)
	patch(one, "acme.example", `{"redaction":`+a.document("tokenize")+`}`)
	for _, s := range []*service{one, two} {
		s.up.Answer(func(r upstream.Request) upstream.Script {
			if person, _ := reapedBlocks(r.Body); len(person) > 0 {
				return upstream.Answer(r, framed(person[len(person)-1]))
			}
			return upstream.Answer(r, "Nothing.")
		})
	}
	settled := func(s *service) { // the settings reached it
		t.Helper()
		for range 200 {
			if s.call("POST", "/v1/messages", s.token("editor", "acme.example"), strings.Replace(inputMessage, `"Hello"`, quoted(a.person[0].line), 1)); strings.Contains(lastSent(s), "EMAIL_") {
				return
			}
		}
		t.Fatal("the settings did not reach the other process")
	}
	settled(one)
	settled(two)
	begins := func(name, first, second string) {
		t.Helper()
		first, second = cacheMark.ReplaceAllString(first, ""), cacheMark.ReplaceAllString(second, "")
		if head := strings.TrimSuffix(first, "]}"); head == first || !strings.HasPrefix(second, head) {
			k := 0
			for k < min(len(first), len(second)) && first[k] == second[k] {
				k++
			}
			t.Errorf("%s: the prefix ends after %d of %d bytes:\n%.200s\n%.200s", name, k, len(first), first[k:], second[k:])
		}
		if found := n.findJSON([]byte(second)); len(found) > 0 {
			t.Errorf("%s: the provider was sent %s", name, some(found))
		}
	}
	reversed := make([]canary, len(a.person))
	for i, c := range a.person {
		reversed[len(a.person)-1-i] = c
	}
	// The agent's thread is in the database they share.
	var sent []string
	for i, s := range []*service{one, two, one} {
		chatTurn(s, s.token("editor", "acme.example"), map[string]any{"threadId": "t_prefix", "said": fmt.Sprintf("%d: %s", i, framed(block([][]canary{a.person, reversed, a.person[20:]}[i]))), "tools": []string{"slide.*"}})
		s.flush()
		if sent = append(sent, lastSent(s)); i > 0 {
			begins(fmt.Sprintf("agent, turn %d", i+1), sent[i-1], sent[i])
		}
	}
	// On the surfaces the client brings its history, as it was answered.
	history := []any{}
	sent = nil
	for i, s := range []*service{one, two, one} {
		history = append(history, map[string]any{"role": "user", "content": fmt.Sprintf("%d: %s", i, framed(block([][]canary{a.person, reversed, a.person[20:]}[i])))})
		body := `{"model":"claude-sonnet-4-6","max_tokens":64,"system":"Our desk is ` + a.operator[0].value + `.","messages":` + quoted(history) + `}`
		status, answer, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), body)
		if status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		history = append(history, map[string]any{"role": "assistant", "content": anthropicText(answer)})
		if sent = append(sent, lastSent(s)); i > 0 {
			begins(fmt.Sprintf("messages, turn %d", i+1), sent[i-1], sent[i])
		}
		if i == 2 {
			two.call("POST", "/v1/messages", two.token("editor", "acme.example"), body)
			if other := lastSent(two); other != sent[i] {
				t.Errorf("the processes send another body for the same request:\n%.300s\n%.300s", sent[i], other)
			}
		}
	}
}

//go:build !race

package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// plot is one surface with a request that has a place for a text in each position. In it stand, each as the whole of a string: @P text of the
// person, @O text only the app's own people wrote, @N the person's in a document in a string, @B the person's in base64, @U the person's in a
// data: URL.
type plot struct {
	name, path, body string
	protocol         chat.Protocol
	way              string // to the provider that speaks the same
	streams, counts  bool
}

func plots() []plot {
	messages := `"model":"on-anthropic","system":[{"type":"text","text":"@O"},{"type":"text","text":"@O","cache_control":{"type":"ephemeral"}}],"metadata":{"user_id":"@P"},"stop_sequences":["@P"],
 "tools":[{"name":"mail","description":"@O","input_schema":{"type":"object","description":"@O","properties":{"to":{"type":"string","description":"@O","default":"@O","examples":["@O"]},"q":{"anyOf":[{"const":"x","description":"@O"}]}},"$defs":{"d":{"title":"@O"}}},"input_examples":[{"to":"@O"}]}],
 "brand_new":{"deep":["@P"]},
 "messages":[{"role":"user","content":"@P"},
  {"role":"assistant","content":[{"type":"text","text":"@P","citations":[{"type":"char_location","cited_text":"@P","document_title":"@P"}]},{"type":"thinking","thinking":"@P"},{"type":"tool_use","id":"toolu_1","name":"mail","input":{"to":"@P","deep":[{"x":"@P"}],"json":"@N"}},{"type":"tool_use","id":"toolu_2","name":"mail","input":{}},{"type":"tool_use","id":"toolu_3","name":"mail","input":{}},{"type":"tool_use","id":"toolu_4","name":"mail","input":{}}]},
  {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"@P"},{"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"@P"},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"@P"}}]},
   {"type":"tool_result","tool_use_id":"toolu_3","content":"@N"},{"type":"tool_result","tool_use_id":"toolu_4","is_error":true,"content":[{"type":"search_result","source":"@P","title":"@P","content":[{"type":"text","text":"@P"}]}]},
   {"type":"text","text":"@P"},{"type":"document","title":"@P","context":"@P","source":{"type":"text","media_type":"text/plain","data":"@P"}},{"type":"document","source":{"type":"base64","media_type":"text/plain","data":"@B"}},
   {"type":"document","source":{"type":"content","content":[{"type":"text","text":"@P"}]}},{"type":"search_result","source":"@P","title":"@P","content":[{"type":"text","text":"@P"}]},{"type":"brand_new","payload":{"deep":["@P"]}}]}]`
	gemini := `"systemInstruction":{"role":"user","parts":[{"text":"@O"}]},"labels":{"a":"@P"},"brandNew":{"deep":["@P"]},
 "contents":[{"role":"user","parts":[{"text":"@P"},{"inlineData":{"mimeType":"text/plain","data":"@B"}},{"inline_data":{"mime_type":"text/csv","data":"@B"}}]},
  {"role":"model","parts":[{"text":"@P"},{"text":"@P","thought":true},{"functionCall":{"id":"1","name":"mail","args":{"to":"@P","deep":[{"x":"@P"}],"json":"@N"}}},{"executableCode":{"language":"PYTHON","code":"@P"}},{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"@P"}}]},
  {"role":"user","parts":[{"functionResponse":{"id":"1","name":"mail","response":{"output":"@P","deep":{"type":"@P"},"json":"@N"}}},{"text":"@P"}]}],
 "tools":[{"functionDeclarations":[{"name":"mail","description":"@O","parameters":{"type":"OBJECT","description":"@O","properties":{"to":{"type":"STRING","description":"@O","default":"@O"}}},"response":{"type":"OBJECT","description":"@O"}}]},{"function_declarations":[{"name":"b","description":"@O","parameters_json_schema":{"type":"object","description":"@O"}}]}],
 "generationConfig":{"stopSequences":["@P"],"responseMimeType":"application/json","responseSchema":{"type":"OBJECT","description":"@O"},"maxOutputTokens":64}`
	return []plot{
		{"messages", "/v1/messages", `{` + messages + `,"max_tokens":64,"stream":@S}`, chat.AnthropicMessages, "anthropic", true, false},
		{"messages, count", "/v1/messages/count_tokens", `{` + messages + `}`, chat.AnthropicMessages, "anthropic", false, true},
		{"chat", "/v1/chat/completions", `{"model":"on-compatible","stream":@S,"max_completion_tokens":64,"user":"@P","metadata":{"a":"@P"},"stop":["@P"],"safety_identifier":"@P","prompt_cache_key":"@P","brand_new":{"deep":["@P"]},
 "messages":[{"role":"developer","content":"@O"},{"role":"system","content":[{"type":"text","text":"@O"}]},{"role":"user","name":"@P","content":"@P"},
  {"role":"user","content":[{"type":"text","text":"@P"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}},{"type":"file","file":{"filename":"@P","file_data":"@U"}}]},
  {"role":"assistant","content":null,"refusal":"@P","tool_calls":[{"id":"call_1","type":"function","function":{"name":"mail","arguments":"@N"}},{"id":"call_2","type":"custom","custom":{"name":"run","input":"@P"}}]},
  {"role":"assistant","content":[{"type":"text","text":"@P"}],"reasoning_content":"@P","annotations":[{"type":"url_citation","url_citation":{"title":"@P"}}]},
  {"role":"tool","tool_call_id":"call_1","content":"@P"},{"role":"tool","tool_call_id":"call_2","content":[{"type":"text","text":"@P"},{"type":"text","text":"@N"}]},{"role":"tool","tool_call_id":"call_2","content":"@N"}],
 "tools":[{"type":"function","function":{"name":"mail","description":"@O","parameters":{"type":"object","properties":{"to":{"type":"string","description":"@O","default":"@O","examples":["@O"]}}}}},{"type":"custom","custom":{"name":"run","description":"@O","format":{"type":"grammar","definition":"@O"}}}],
 "parallel_tool_calls":true,
 "response_format":{"type":"json_schema","json_schema":{"name":"answer","description":"@O","schema":{"type":"object","title":"@O"}}},"prediction":{"type":"content","content":"@P"},"web_search_options":{"user_location":{"city":"@P"}}}`, chat.OpenAIChat, "compatible", true, false},
		{"responses", "/v1/responses", `{"model":"on-openai","stream":@S,"store":false,"instructions":"@O","metadata":{"a":"@P"},"max_output_tokens":64,"user":"@P","safety_identifier":"@P","prompt_cache_key":"@P","brand_new":{"deep":["@P"]},
 "input":[{"role":"user","content":"@P"},{"type":"message","role":"user","content":[{"type":"input_text","text":"@P"},{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo="},{"type":"input_file","filename":"@P","file_data":"@U"}]},{"role":"system","content":"@O"},
  {"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"@P","annotations":[{"type":"file_citation","filename":"@P"}]},{"type":"refusal","refusal":"@P"}]},
  {"type":"function_call","id":"fc_1","call_id":"call_1","name":"mail","arguments":"@N","status":"completed"},{"type":"function_call_output","call_id":"call_1","output":"@P"},{"type":"function_call_output","call_id":"call_2","output":[{"type":"input_text","text":"@P"}]},{"type":"function_call_output","call_id":"call_5","output":"@N"},
  {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"@P"}]},{"type":"custom_tool_call","call_id":"call_3","name":"run","input":"@P"},{"type":"custom_tool_call_output","call_id":"call_3","output":"@P"},
  {"type":"file_search_call","id":"fs_1","queries":["@P"],"results":[{"text":"@P","filename":"@P","attributes":{"a":"@P"}}]},{"type":"web_search_call","id":"ws_1","action":{"type":"search","query":"@P"}},{"type":"code_interpreter_call","id":"ci_1","code":"@P","outputs":[{"type":"logs","logs":"@P"}],"container_id":"cntr_1"},
  {"type":"mcp_call","id":"mcp_1","server_label":"s","name":"n","arguments":"@N","output":"@P","error":"@P"},{"type":"brand_new","payload":{"deep":["@P"]}}],
 "tools":[{"type":"function","name":"mail","description":"@O","parameters":{"type":"object","properties":{"to":{"type":"string","description":"@O","default":"@O"}}},"strict":true},{"type":"file_search","vector_store_ids":["vs_1"],"filters":{"type":"eq","key":"a","value":"@O"}},{"type":"custom","name":"run","description":"@O","format":{"type":"grammar","definition":"@O"}}],
 "text":{"format":{"type":"json_schema","name":"a","description":"@O","schema":{"type":"object","description":"@O"}}}}`, chat.OpenAIResponses, "openai", true, false},
		{"embeddings", "/v1/embeddings", `{"model":"on-compatible","input":["@P","@P"],"user":"@P","brand_new":"@P"}`, chat.OpenAIEmbeddings, "compatible", false, false},
		{"generateContent", "/v1beta/models/on-gemini:METHOD", `{` + gemini + `}`, chat.GeminiGenerate, "gemini", true, false},
		{"generateContent, count", "/v1beta/models/on-gemini:countTokens", `{"generateContentRequest":{"model":"models/on-gemini",` + gemini + `}}`, chat.GeminiGenerate, "gemini", false, true},
		{"generateContent, count of contents", "/v1beta/models/on-gemini:countTokens", `{"contents":[{"role":"user","parts":[{"text":"@P"}]},{"parts":[{"text":"@P"}]}]}`, chat.GeminiGenerate, "gemini", false, true},
	}
}

// sown is a request with blocks in all its positions.
type sown struct {
	path, body       string
	person, operator int // positions
}

var mark = regexp.MustCompile(`"@[PONBU]"`)

// sow fills the marks of a plot. The block of position n stands between "begin n" and "end n".
func (p plot) sow(a aviary, stream bool) sown {
	out := sown{path: p.path}
	out.body = mark.ReplaceAllStringFunc(p.body, func(m string) string {
		text := fmt.Sprintf("begin %d\n%s\nend %d", out.person, block(a.person), out.person)
		if m == `"@O"` {
			out.operator++
			return quoted(fmt.Sprintf("begin own %d\n%s\nend own %d", out.operator, block(a.operator), out.operator))
		}
		out.person++
		switch m {
		case `"@N"`:
			text = quoted(map[string]any{"text": text, "list": []string{text}})
		case `"@B"`:
			text = base64.StdEncoding.EncodeToString([]byte(text))
		case `"@U"`:
			text = "data:text/plain;base64," + base64.StdEncoding.EncodeToString([]byte(text))
		}
		return quoted(text)
	})
	out.body = strings.ReplaceAll(out.body, "@S", fmt.Sprint(stream))
	out.path = strings.ReplaceAll(out.path, "METHOD", map[bool]string{true: "streamGenerateContent?alt=sse", false: "generateContent"}[stream])
	return out
}

// readAnswer is the text and the arguments of the tool calls of an answer, streamed or whole.
func readAnswer(t testing.TB, p chat.Protocol, body string) (said, args string) {
	t.Helper()
	type call struct {
		Function struct{ Arguments string }
	}
	type part struct {
		Text         string
		FunctionCall struct{ Args json.RawMessage } `json:"functionCall"`
	}
	var doc struct {
		Type    string
		Content []struct {
			Text  string
			Input json.RawMessage
		}
		Delta   json.RawMessage
		Choices []struct {
			Message, Delta struct {
				Content   string
				ToolCalls []call `json:"tool_calls"`
			}
		}
		Output []struct {
			Arguments string
			Content   []struct{ Text string }
		}
		Candidates []struct{ Content struct{ Parts []part } }
	}
	events := []string{body}
	if !strings.HasPrefix(strings.TrimSpace(body), "{") {
		events = nil
		for line := range strings.SplitSeq(body, "\n") {
			if d, ok := strings.CutPrefix(line, "data: "); ok && strings.HasPrefix(d, "{") {
				events = append(events, d)
			}
		}
	}
	for _, e := range events {
		empty := doc
		if err := json.Unmarshal([]byte(e), &doc); err != nil {
			t.Fatalf("%v: %s", err, e)
		}
		for _, c := range doc.Content {
			said += c.Text
			args += string(c.Input)
		}
		for _, c := range doc.Choices {
			said += c.Message.Content + c.Delta.Content
			for _, tc := range append(c.Message.ToolCalls, c.Delta.ToolCalls...) {
				args += tc.Function.Arguments
			}
		}
		for _, o := range doc.Output {
			args += o.Arguments
			for _, c := range o.Content {
				said += c.Text
			}
		}
		for _, c := range doc.Candidates {
			for _, pt := range c.Content.Parts {
				said += pt.Text
				args += string(pt.FunctionCall.Args)
			}
		}
		if len(doc.Delta) > 0 {
			var text string
			var delta struct {
				Text        string
				PartialJSON string `json:"partial_json"`
			}
			switch doc.Type {
			case "content_block_delta":
				if json.Unmarshal(doc.Delta, &delta) == nil {
					said += delta.Text
					args += delta.PartialJSON
				}
			case "response.output_text.delta":
				_ = json.Unmarshal(doc.Delta, &text) // a delta that is no string adds nothing
				said += text
			case "response.function_call_arguments.delta":
				_ = json.Unmarshal(doc.Delta, &text)
				args += text
			}
		}
		doc = empty
	}
	return said, args
}

// TestRedactionMatrix has a canary of every entity in every position of every surface's requests, streamed and not, under each action: none
// reaches the provider in any spelling; what is tokenized comes back in text and arguments, but for what only the app's own text holds; all
// else comes back as it was sent.
func TestRedactionMatrix(t *testing.T) {
	s := startSurfaces(t, nil)
	a := newAviary(t, 2)
	all := newNest(append(slices.Clone(a.person), a.operator...)...)
	plain := block(a.person)
	checks, requests, positions := 0, 0, 0
	for _, action := range []string{"tokenize", "hash", "mask"} {
		patch(s.service, "acme.example", `{"redaction":`+a.document(action)+`}`)
		for _, p := range plots() {
			for _, escaped := range []bool{false, true} {
				for _, stream := range []bool{false, true}[:1+map[bool]int{true: 1}[p.streams]] {
					name := fmt.Sprintf("%s/%s/stream %v/escaped %v", action, p.name, stream, escaped)
					in := p.sow(a, stream)
					if escaped {
						in.body = escapeStrings(in.body)
					}
					var got []byte
					var person, operator []string
					s.up.Answer(func(r upstream.Request) upstream.Script {
						got = r.Body
						person, operator = reapedBlocks(r.Body)
						if p.counts || p.protocol == chat.OpenAIEmbeddings || len(person) == 0 {
							return countOrVectors(r)
						}
						text := person[0]
						if len(operator) > 0 {
							text += "\n--\n" + operator[0]
						}
						return spoken(t, p.way, wayWire(p), stream, text, fixtures.ToolCall{ID: "call_9", Name: "mail", Arguments: json.RawMessage(quoted(map[string]string{"to": person[0]}))})
					})
					before := len(s.up.Requests())
					status, body, _ := s.call("POST", in.path, s.token, in.body)
					if n := len(s.up.Requests()) - before; status != 200 || n != 1 {
						t.Errorf("%s: %d after %d requests: %.600s", name, status, n, body)
						continue
					}
					requests++
					checks += (in.person + in.operator) * len(a.person)
					if leaked := all.findJSON(got); len(leaked) > 0 {
						t.Errorf("%s: the provider was sent %d values, as in\n%s", name, len(leaked), strings.Join(leaked[:min(len(leaked), 6)], "\n"))
					}
					if len(person) < in.person || len(operator) < in.operator {
						t.Errorf("%s: of %d and %d positions the provider got %d and %d", name, in.person, in.operator, len(person), len(operator))
					}
					for _, list := range [][]string{person, operator} {
						for i := range list { // a key in a quoted document has the document's spelling, which is another value
							if d := firstDifference([]string{pemToken.ReplaceAllString(list[0], ""), pemToken.ReplaceAllString(list[i], "")}); d != "" {
								t.Errorf("%s: position %d of the provider's was treated otherwise than another:\n%s", name, i, d)
								break
							}
						}
					}
					if p.counts || p.protocol == chat.OpenAIEmbeddings {
						continue
					}
					want, own := person[0], ""
					if action == "tokenize" {
						want = plain
					}
					if len(operator) > 0 {
						own = "\n--\n" + operator[0]
					}
					said, args := readAnswer(t, p.protocol, body)
					if said != want+own {
						t.Errorf("%s: the answer is not what it should be:\n%s", name, firstDifference([]string{want + own, said}))
					}
					var arguments struct{ To string }
					if err := json.Unmarshal([]byte(args), &arguments); err != nil || arguments.To != want {
						t.Errorf("%s: the arguments are not what they should be, %v:\n%s", name, err, firstDifference([]string{want, arguments.To}))
					}
					if !escaped && !stream {
						positions += in.person + in.operator
					}
				}
			}
		}
	}
	t.Logf("%d entities in %d positions (of 3 actions), %d requests: %d values looked for in %d spellings", len(a.person), positions, requests, checks, all.size)
}

// unsaid takes away what one protocol or another refuses to be asked.
var unsaid = strings.NewReplacer(`,{"type":"file_search","vector_store_ids":["vs_1"],"filters":{"type":"eq","key":"a","value":"@O"}}`, "", `"stop_sequences":["@P"],`, "", `"stop":["@P"],`, "", `"stopSequences":["@P"],"responseMimeType":"application/json","responseSchema":{"type":"OBJECT","description":"@O"},`, "",
	`"response_format":{"type":"json_schema","json_schema":{"name":"answer","description":"@O","schema":{"type":"object","title":"@O"}}},`, "", `,
 "text":{"format":{"type":"json_schema","name":"a","description":"@O","schema":{"type":"object","description":"@O"}}}`, "")

// TestRedactionMatrixCrossing sends what can be said in another protocol to a provider of each, where the request is written anew.
func TestRedactionMatrixCrossing(t *testing.T) {
	s := startSurfaces(t, nil)
	a := newAviary(t, 3)
	all := newNest(append(slices.Clone(a.person), a.operator...)...)
	patch(s.service, "acme.example", `{"redaction":`+a.document("tokenize")+`}`)
	plain := block(a.person)
	requests, positions := 0, 0
	for _, p := range plots() {
		if p.counts || p.protocol == chat.OpenAIEmbeddings {
			continue
		}
		for way, wire := range talkWays(p.protocol) {
			for _, stream := range []bool{false, true} {
				name := fmt.Sprintf("%s/%s/stream %v", p.name, way, stream)
				p.body = unsaid.Replace(p.body)
				in := p.sow(a, stream)
				var got []byte
				var person []string
				s.up.Answer(func(r upstream.Request) upstream.Script {
					got = r.Body
					if person, _ = reapedBlocks(r.Body); len(person) == 0 {
						person = []string{"nothing"}
					}
					return spoken(t, way, wire, stream, person[0], fixtures.ToolCall{ID: "call_9", Name: "mail", Arguments: json.RawMessage(quoted(map[string]string{"to": person[0]}))})
				})
				before := len(s.up.Requests())
				status, body, _ := s.call("POST", strings.Replace(in.path, "on-"+p.way, "on-"+way, 1), s.token, strings.Replace(in.body, `"on-`+p.way+`"`, `"on-`+way+`"`, 1), "X-Gateway-On-Unsupported", "drop")
				if n := len(s.up.Requests()) - before; status != 200 || n != 1 {
					t.Errorf("%s: %d after %d requests: %.600s", name, status, n, body)
					continue
				}
				requests++
				positions += len(person)
				if leaked := all.findJSON(got); len(leaked) > 0 {
					t.Errorf("%s: the provider was sent %d values, as in\n%s", name, len(leaked), strings.Join(leaked[:min(len(leaked), 6)], "\n"))
				}
				said, args := readAnswer(t, p.protocol, body)
				var arguments struct{ To string }
				if err := json.Unmarshal([]byte(args), &arguments); err != nil || said != plain || arguments.To != plain {
					t.Errorf("%s: the answer is not what it should be, %v:\n%s", name, err, firstDifference([]string{plain, said, arguments.To}))
				}
			}
		}
	}
	t.Logf("%d entities, %d requests, %d positions of the person arrived", len(a.person), requests, positions)
}

// escapeStrings writes the canaries' letters of a body as \u escapes, which says the same.
func escapeStrings(body string) string {
	var b strings.Builder
	inside := false
	for i := 0; i < len(body); i++ {
		c := body[i]
		switch {
		case c == '\\':
			b.WriteByte(c)
			i++
			b.WriteByte(body[i])
			if body[i] == 'u' {
				b.WriteString(body[i+1 : i+5])
				i += 4
			}
			continue
		case c == '"':
			inside = !inside
		case inside && (c == '@' || c >= '0' && c <= '9' || c == '-' && i%2 == 0):
			fmt.Fprintf(&b, `\u%04x`, c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// wayWire is what the provider of a plot answers in.
func wayWire(p plot) string {
	return map[chat.Protocol]string{chat.AnthropicMessages: fixtures.AnthropicMessages, chat.OpenAIChat: "openai.chat", chat.OpenAIResponses: "openai.responses", chat.GeminiGenerate: "gemini.generateContent"}[p.protocol]
}

// countOrVectors answers what is no conversation.
func countOrVectors(r upstream.Request) upstream.Script {
	body := `{"input_tokens":7,"totalTokens":7,"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5]},{"object":"embedding","index":1,"embedding":[0.5]}],"model":"m","usage":{"prompt_tokens":3,"total_tokens":3}}`
	return upstream.Script{Header: map[string][]string{"Content-Type": {"application/json"}}, Body: []byte(body)}
}

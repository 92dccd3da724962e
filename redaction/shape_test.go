package redaction

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
)

// requests are one request of each protocol with every field we know of; %s is where text stands. In the other fields stand ids, words of
// the protocol, and bytes that are no text.
var requests = map[chat.Protocol]string{
	chat.OpenAIChat: `{"model":"gpt-x","stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":10,"n":1,"temperature":1,"seed":7,"user":"%s","metadata":{"a":"%s"},"stop":["%s"],
 "messages":[{"role":"developer","content":"%s"},{"role":"system","content":[{"type":"text","text":"%s"}]},{"role":"user","name":"%s","content":"%s"},
  {"role":"user","content":[{"type":"text","text":"%s"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo=","detail":"low"}},{"type":"image_url","image_url":{"url":"https://example.com/?q=%s"}},
   {"type":"input_audio","input_audio":{"data":"UklGRgAAAAA=","format":"wav"}},{"type":"file","file":{"filename":"%s","file_data":"data:application/pdf;base64,JVBERi0xLjcKAAA="}},{"type":"file","file":{"file_id":"file-1"}}]},
  {"role":"assistant","content":null,"refusal":"%s","tool_calls":[{"id":"call_1","type":"function","function":{"name":"mail","arguments":"{\"to\":\"%s\",\"id\":\"%s\",\"n\":[1,{\"deep\":\"%s\"}]}"}},{"id":"call_2","type":"custom","custom":{"name":"run","input":"%s"}}]},
  {"role":"assistant","content":"%s","reasoning_content":"%s","reasoning_details":[{"type":"reasoning.text","text":"%s","signature":null}],"annotations":[{"type":"url_citation","url_citation":{"title":"%s"}}],"function_call":{"name":"old","arguments":"{\"a\":\"%s\" cut off"}},
  {"role":"tool","tool_call_id":"call_1","content":"%s"},{"role":"tool","tool_call_id":"call_2","content":[{"type":"text","text":"%s"}]}],
 "tools":[{"type":"function","function":{"name":"mail","description":"%s","strict":true,"parameters":{"type":"object","properties":{"to":{"type":"string","description":"%s","enum":["a"]}},"required":["to"]}}},{"type":"custom","custom":{"name":"run","description":"%s","format":{"type":"grammar","definition":"%s"}}}],
 "functions":[{"name":"old","description":"%s","parameters":{"type":"object"}}],"tool_choice":{"type":"function","function":{"name":"mail"}},"parallel_tool_calls":true,"logit_bias":{"50256":-100},"logprobs":true,"top_logprobs":2,
 "response_format":{"type":"json_schema","json_schema":{"name":"answer","description":"%s","schema":{"type":"object","title":"%s"},"strict":true}},"prediction":{"type":"content","content":"%s"},"web_search_options":{"user_location":{"city":"%s"}},
 "reasoning_effort":"low","service_tier":"auto","store":false,"presence_penalty":0,"frequency_penalty":0,"top_p":1,"verbosity":"low","modalities":["text"],"audio":{"voice":"alloy","format":"mp3"},"safety_identifier":"%s","prompt_cache_key":"%s"}`,
	chat.OpenAIResponses: `{"model":"gpt-x","stream":true,"instructions":"%s","metadata":{"a":"%s"},"previous_response_id":"resp_1","prompt":{"id":"pmpt_1","variables":{"who":"%s"}},"max_output_tokens":9,"include":["reasoning.encrypted_content"],
 "input":[{"role":"user","content":"%s"},{"type":"message","role":"user","content":[{"type":"input_text","text":"%s"},{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo=","detail":"low"},{"type":"input_file","filename":"%s","file_data":"data:application/pdf;base64,JVBERi0xLjcKAAA="},{"type":"input_file","file_id":"file-1"}]},
  {"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"%s","annotations":[{"type":"file_citation","filename":"%s"}],"logprobs":[{"token":"%s"}]},{"type":"refusal","refusal":"%s"}]},
  {"type":"function_call","id":"fc_1","call_id":"call_1","name":"mail","arguments":"{\"to\":\"%s\"}","status":"completed"},{"type":"function_call_output","call_id":"call_1","output":"%s"},{"type":"function_call_output","call_id":"call_2","output":[{"type":"input_text","text":"%s"}]},
  {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"%s"}]},{"type":"reasoning","id":"rs_2","summary":[{"type":"summary_text","text":"kept as it is"}],"encrypted_content":"gAAAA"},
  {"type":"custom_tool_call","call_id":"call_3","name":"run","input":"%s"},{"type":"custom_tool_call_output","call_id":"call_3","output":"%s"},{"type":"file_search_call","id":"fs_1","queries":["%s"],"results":[{"text":"%s"}]},
  {"type":"web_search_call","id":"ws_1","action":{"type":"search","query":"%s"}},{"type":"code_interpreter_call","id":"ci_1","code":"%s","outputs":[{"type":"logs","logs":"%s"}],"container_id":"cntr_1"},{"type":"mcp_call","id":"mcp_1","server_label":"s","name":"n","arguments":"{\"q\":\"%s\"}","output":"%s","error":"%s"},
  {"type":"image_generation_call","id":"ig_1","result":"iVBORw0KGgo="},{"type":"item_reference","id":"msg_0"},{"type":"brand_new","payload":{"deep":["%s"]}}],
 "tools":[{"type":"function","name":"mail","description":"%s","parameters":{"type":"object","properties":{"to":{"type":"string","description":"%s"}}},"strict":true},{"type":"file_search","vector_store_ids":["vs_1"],"filters":{"key":"a","value":"%s"}},{"type":"mcp","server_label":"s","server_url":"https://example.com/%s","headers":{"authorization":"x"},"authorization":"x","require_approval":"never","allowed_tools":["n"]},{"type":"custom","name":"run","format":{"type":"grammar","definition":"%s"}}],
 "tool_choice":"auto","text":{"format":{"type":"json_schema","name":"a","description":"%s","schema":{"type":"object","description":"%s"}}},"user":"%s","reasoning":{"effort":"low","summary":"auto"},"truncation":"auto","store":false,"temperature":1,"top_p":1,"parallel_tool_calls":true,"service_tier":"auto","background":false,"max_tool_calls":3,"top_logprobs":0,"conversation":"conv_1","safety_identifier":"%s","prompt_cache_key":"%s","stream_options":{}}`,
	chat.OpenAIEmbeddings: `{"model":"text-embedding","input":["%s","%s"],"encoding_format":"float","dimensions":8,"user":"%s"}`,
	chat.GeminiGenerate: `{"systemInstruction":{"role":"user","parts":[{"text":"%s"}]},"cachedContent":"cachedContents/x","labels":{"a":"%s"},
 "contents":[{"role":"user","parts":[{"text":"%s"},{"inlineData":{"mimeType":"image/png","data":"iVBORw0KGgo="}},{"inline_data":{"mime_type":"image/png","data":"iVBORw0KGgo="}},{"fileData":{"mimeType":"text/plain","fileUri":"https://example.com/%s"}}]},{"parts":[{"text":"%s"}]},
  {"role":"model","parts":[{"text":"kept as it is","thought":true,"thoughtSignature":"c2ln"},{"text":"%s","thought":true},{"functionCall":{"id":"1","name":"mail","args":{"to":"%s","id":"%s"}},"thoughtSignature":"c2ln"},{"executableCode":{"language":"PYTHON","code":"%s"}},{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"%s"}}]},
  {"role":"user","parts":[{"functionResponse":{"id":"1","name":"mail","response":{"output":"%s","type":"%s"}}}]}],
 "tools":[{"functionDeclarations":[{"name":"mail","description":"%s","parameters":{"type":"OBJECT","properties":{"to":{"type":"STRING","description":"%s"}}},"response":{"type":"OBJECT","description":"%s"}}]},{"googleSearch":{}},{"function_declarations":[{"name":"b","description":"%s","parameters_json_schema":{"description":"%s"}}]}],
 "toolConfig":{"functionCallingConfig":{"mode":"AUTO","allowedFunctionNames":["mail"]}},"safetySettings":[{"category":"HARM","threshold":"NONE"}],
 "generationConfig":{"stopSequences":["%s"],"responseMimeType":"application/json","responseSchema":{"type":"OBJECT","description":"%s"},"temperature":1,"topP":1,"topK":1,"candidateCount":1,"maxOutputTokens":9,"seed":1,"thinkingConfig":{"thinkingBudget":1}}}`,
	chat.BedrockConverse: `{"modelId":"m","system":[{"text":"%s"},{"cachePoint":{"type":"default"}}],"inferenceConfig":{"maxTokens":9,"stopSequences":["%s"]},
 "messages":[{"role":"user","content":[{"text":"%s"},{"image":{"format":"png","source":{"bytes":"iVBORw0KGgo="}}},{"document":{"format":"pdf","name":"%s","source":{"bytes":"JVBERi0xLjcKAAA="}}},{"guardContent":{"text":{"text":"%s"}}}]},
  {"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"kept as it is","signature":"c2ln"}}},{"reasoningContent":{"reasoningText":{"text":"%s"}}},{"reasoningContent":{"redactedContent":"c2ln"}},{"toolUse":{"toolUseId":"t1","name":"mail","input":{"to":"%s"}}}]},
  {"role":"user","content":[{"toolResult":{"toolUseId":"t1","status":"success","content":[{"text":"%s"},{"json":{"a":"%s"}}]}}]}],
 "toolConfig":{"tools":[{"toolSpec":{"name":"mail","description":"%s","inputSchema":{"json":{"type":"object","description":"%s"}}}}],"toolChoice":{"tool":{"name":"mail"}}},"requestMetadata":{"a":"%s"},"promptVariables":{"p":{"text":"%s"}},"additionalModelRequestFields":{"x":"%s"}}`,
	chat.AnthropicMessages: everyPosition,
}

// A canary in every text field of every route is hidden; every other byte stays.
func TestEveryFieldOfEveryRoute(t *testing.T) {
	for proto, shape := range requests {
		t.Run(string(proto), func(t *testing.T) {
			n := strings.Count(shape, "%s")
			args := make([]any, n)
			for i := range n {
				args[i] = fmt.Sprintf("canary%d@example.com", i)
			}
			body := fmt.Sprintf(shape, args...)
			if !json.Valid([]byte(body)) {
				t.Fatal("the probe is not JSON")
			}
			s := testSession(t)
			m, err := s.Mask(proto, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			got := string(m.Bytes())
			for i := range n {
				if strings.Contains(got, fmt.Sprintf("canary%d@", i)) {
					t.Errorf("field %d got through: %s", i, pointerTo([]byte(body), strings.Index(body, fmt.Sprintf("canary%d@", i))))
				}
			}
			pairs := []string{}
			for i := range n {
				if e := s.byValue[valueKey{emailAddress, fmt.Sprintf("canary%d@example.com", i)}]; e != nil {
					pairs = append(pairs, fmt.Sprintf("canary%d@example.com", i), e.token)
				}
			}
			if diff := cmp.Diff(strings.NewReplacer(pairs...).Replace(body), got); diff != "" {
				t.Errorf("other bytes changed (-want +got):\n%s", diff)
			}
			if again, err := s.Mask(proto, m.Bytes()); err != nil || string(again.Bytes()) != got {
				t.Errorf("a second pass changes it: %v", err)
			}
		})
	}
}

// Who adds a field to a route has to say what becomes of it.
func TestEveryFieldIsClassified(t *testing.T) {
	planted := map[string]bool{"/unknown_field": true, "/messages/0/content/0/body": true, "/messages/0/content/0/hint": true, "/messages/0/content/0/alt": true, "/input/0/payload": true}
	for proto, shape := range requests {
		var doc any
		if err := json.Unmarshal([]byte(strings.ReplaceAll(shape, "%s", "x")), &doc); err != nil {
			t.Fatal(err)
		}
		for _, at := range unclassified(doc, field{to: roots[proto]}, "") {
			if !planted[at] {
				t.Errorf("%s: %s stands in no table of shape.go", proto, at)
			}
		}
		if got := unclassified(map[string]any{"brand_new": "x"}, field{to: roots[proto]}, ""); !slices.Contains(got, "/brand_new") {
			t.Errorf("%s: a new field is not noticed", proto)
		}
	}
}

func TestDocumentsInDocuments(t *testing.T) {
	enc := base64.StdEncoding.EncodeToString
	const plain = "name,mail\nJane,jane@example.com\n"
	for _, c := range []struct {
		name  string
		proto chat.Protocol
		body  string // %s: the base64 of plain
	}{
		{"Anthropic", chat.AnthropicMessages, `{"messages":[{"role":"user","content":[{"type":"document","source":{"type":"base64","media_type":"text/csv","data":"%s"}}]}]}`},
		{"OpenAI", chat.OpenAIChat, `{"messages":[{"role":"user","content":[{"type":"file","file":{"filename":"a","file_data":"data:text/csv;base64,%s"}}]}]}`},
		{"Responses", chat.OpenAIResponses, `{"input":[{"role":"user","content":[{"type":"input_file","filename":"a","file_data":"data:text\/csv;base64,%s"}]}]}`},
		{"Gemini", chat.GeminiGenerate, `{"contents":[{"parts":[{"inlineData":{"mimeType":"text/csv","data":"%s"}}]}]}`},
		{"Converse", chat.BedrockConverse, `{"messages":[{"role":"user","content":[{"document":{"format":"csv","name":"a","source":{"bytes":"%s"}}}]}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testSession(t)
			m, err := s.Mask(c.proto, []byte(fmt.Sprintf(c.body, enc([]byte(plain)))))
			if err != nil {
				t.Fatal(err)
			}
			es := s.Entries()
			if len(es) != 1 || es[0].Value != "jane@example.com" {
				t.Fatalf("entries %v", es)
			}
			if want := strings.ReplaceAll(fmt.Sprintf(c.body, enc([]byte(strings.ReplaceAll(plain, es[0].Value, es[0].Token)))), `text\/csv`, `text/csv`); string(m.Bytes()) != want {
				t.Errorf("got %s, want %s", m.Bytes(), want)
			}
			// What calls itself base64 and is none is read as the text it is.
			if m, err := testSession(t).Mask(c.proto, []byte(fmt.Sprintf(c.body, "jane@example.com"))); err != nil || strings.Contains(string(m.Bytes()), "jane@") {
				t.Errorf("not base64: %s, %v", m.Bytes(), err)
			}
		})
	}
	s := testSession(t)
	body := `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"to\":\"jane@example.com\",\"quote\":\"\\\"\\u00e9\\n\"}"}}]}]}`
	m, err := s.Mask(chat.OpenAIChat, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(body, "jane@example.com", s.Entries()[0].Token, 1); string(m.Bytes()) != want {
		t.Errorf("got %s, want %s", m.Bytes(), want)
	}
	back, err := s.RestoreBody(chat.OpenAIChat, []byte(`{"choices":[{"message":{"role":"assistant","content":"to `+s.Entries()[0].Token+`","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":\"`+s.Entries()[0].Token+`\"}"}}]},"logprobs":{"content":[{"token":"x"}]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"choices":[{"message":{"role":"assistant","content":"to jane@example.com","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":\"jane@example.com\"}"}}]},"logprobs":null}]}`; string(back) != want {
		t.Errorf("restored %s", back)
	}
}

// Two turns of a conversation, each sent by a process of its own: what the second repeats of the first are the same bytes, or the
// provider's prompt cache would be cold.
func TestPromptPrefixIsTheSameInEveryProcess(t *testing.T) {
	for proto, history := range map[chat.Protocol][2]string{
		chat.AnthropicMessages: {`{"system":"for boss@example.com","messages":[{"role":"user","content":"I am jane@example.com, +14155552671, key ` + testKey() + `"}`, `,{"role":"assistant","content":"Hello jane@example.com"},{"role":"user","content":"And bob@example.com?"}]}`},
		chat.OpenAIChat:        {`{"messages":[{"role":"user","content":"I am jane@example.com, +14155552671"}`, `,{"role":"assistant","content":"","tool_calls":[{"function":{"arguments":"{\"to\":\"jane@example.com\"}"}}]}]}`},
	} {
		profile := mustPolicy(t, string(largePolicy(10_000)))
		first, err := testEngine(t).Session(testScope, profile).Mask(proto, []byte(history[0]+`]}`))
		if err != nil {
			t.Fatal(err)
		}
		second, err := testEngine(t).Session(testScope, mustPolicy(t, string(largePolicy(10_000)))).Mask(proto, []byte(history[0]+history[1]))
		if err != nil {
			t.Fatal(err)
		}
		prefix := strings.TrimSuffix(string(first.Bytes()), `]}`)
		if !strings.HasPrefix(string(second.Bytes()), prefix) {
			t.Errorf("%s: the second turn begins otherwise:\n%s\n%s", proto, prefix, second.Bytes())
		}
	}
}

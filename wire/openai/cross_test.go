//go:build !race

package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/sse"
	"github.com/lossless-group/gateway/wire/anthropic"
	"github.com/lossless-group/gateway/wire/openai"
)

// heard is what a client makes of an answer.
type heard struct {
	ID, Model, Text, Reasoning, Refusal string
	Calls                               []heardCall
	Finish                              string // in chat completions' words
	Input, Cached, Output, Thought      int64
	Failed                              bool
}

type heardCall struct{ ID, Name, Input string }

// source is a decoder of any protocol.
type source interface {
	Next() (chat.Event, error)
	Usage() (chat.Usage, bool)
}

// told is what a stream says, and its encoding for a client of protocol p.
func told(t *testing.T, src source, p chat.Protocol, producer chat.Protocol) (want heard, stream []byte) {
	t.Helper()
	a := openai.Answer{ID: "id_1", Model: "alias", Created: 1790000000, IncludeUsage: true, Producer: producer}
	e := openai.NewEncoder(p, a)
	want = heard{ID: a.ID, Model: a.Model}
	calls := map[int]int{}
	for {
		ev, err := src.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			want.Failed = true
			var fe *fault.Error
			if !errors.As(err, &fe) {
				t.Fatal(err)
			}
			stream = e.Error(stream, fe, "req_1")
			break
		}
		stream = e.Append(stream, ev)
		if ev.Choice > 0 {
			continue
		}
		switch ev.Kind {
		case chat.EventBlockStart:
			if ev.Block == chat.PartToolCall {
				calls[ev.Index] = len(want.Calls)
				want.Calls = append(want.Calls, heardCall{ID: ev.CallID, Name: ev.Name})
			}
			if ev.Block == chat.PartText {
				want.Text += ev.Text
			}
		case chat.EventText:
			want.Text += ev.Text
		case chat.EventThinking:
			want.Reasoning += ev.Text
		case chat.EventRefusal:
			want.Refusal += ev.Text
		case chat.EventToolInput:
			want.Calls[calls[ev.Index]].Input += ev.Text
		case chat.EventStop:
			switch ev.Stop {
			case chat.StopLength, chat.StopContextWindow:
				want.Finish = "length"
			case chat.StopTool:
				want.Finish = "tool_calls"
			case chat.StopRefusal:
				want.Finish = "content_filter"
				if want.Refusal != "" {
					want.Finish = "stop"
				}
			case chat.StopNone:
			default:
				want.Finish = "stop"
			}
		}
	}
	for i := range want.Calls {
		if want.Calls[i].Input == "" && !want.Failed {
			want.Calls[i].Input = "{}"
		}
	}
	u, _ := src.Usage()
	want.Input, want.Cached, want.Output, want.Thought = u.InputTotal(), u.CacheRead, u.Output, u.Reasoning
	return want, stream
}

// sources are all streams of other protocols and of our own that can be told to a client of these APIs.
func sources(t *testing.T) map[string]func() (source, chat.Protocol) {
	t.Helper()
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]func() (source, chat.Protocol){}
	for _, f := range all {
		if f.Failed() {
			continue
		}
		body := f.Body
		switch f.Wire {
		case fixtures.AnthropicMessages:
			out[f.Name()] = func() (source, chat.Protocol) {
				return anthropic.NewDecoder(bytes.NewReader(body)), chat.AnthropicMessages
			}
		case "openai.chat", "openrouter.chat", "deepseek.chat", "mistral.chat", "gemini.openai":
			out[f.Name()] = func() (source, chat.Protocol) {
				return openai.NewDecoder(chat.OpenAIChat, bytes.NewReader(body), openai.Dialect{}), chat.OpenAIChat
			}
		case "openai.responses":
			out[f.Name()] = func() (source, chat.Protocol) {
				return openai.NewDecoder(chat.OpenAIResponses, bytes.NewReader(body), openai.Dialect{}), chat.OpenAIResponses
			}
		}
	}
	if len(out) < 30 {
		t.Fatalf("%d streams", len(out))
	}
	return out
}

// serve answers every request with a stream.
func serve(t *testing.T, stream []byte) sdk.Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = w.Write(stream)
	}))
	t.Cleanup(srv.Close)
	return sdk.NewClient(option.WithBaseURL(srv.URL+"/v1"), option.WithAPIKey("test"), option.WithMaxRetries(0))
}

func TestChatToOfficialClient(t *testing.T) {
	for name, open := range sources(t) {
		t.Run(name, func(t *testing.T) {
			src, producer := open()
			want, body := told(t, src, chat.OpenAIChat, producer)
			client := serve(t, body)
			stream := client.Chat.Completions.NewStreaming(t.Context(), sdk.ChatCompletionNewParams{Model: "alias", Messages: []sdk.ChatCompletionMessageParamUnion{sdk.UserMessage("x")}})
			var got heard
			var acc sdk.ChatCompletionAccumulator
			calls := map[int64]int{}
			for stream.Next() {
				c := stream.Current()
				if len(c.Choices) > 0 && c.Choices[0].Index == 0 || len(c.Choices) == 0 {
					if !acc.AddChunk(c) {
						t.Error("the accumulator refuses a chunk")
					}
				}
				if got.ID != "" && (got.ID != c.ID || got.Model != c.Model || c.Object != "chat.completion.chunk" || c.Created != 1790000000) {
					t.Errorf("head of a chunk changed: %s", c.RawJSON())
				}
				got.ID, got.Model = c.ID, c.Model
				if c.Usage.JSON.PromptTokens.Valid() {
					got.Input, got.Cached, got.Output, got.Thought = c.Usage.PromptTokens, c.Usage.PromptTokensDetails.CachedTokens, c.Usage.CompletionTokens, c.Usage.CompletionTokensDetails.ReasoningTokens
					if len(c.Choices) != 0 || !c.JSON.Choices.Valid() {
						t.Errorf("usage chunk %s", c.RawJSON())
					}
				}
				for _, ch := range c.Choices {
					if ch.Index != 0 {
						continue
					}
					got.Text += ch.Delta.Content
					got.Refusal += ch.Delta.Refusal
					if f, ok := ch.Delta.JSON.ExtraFields["reasoning_content"]; ok {
						var s string
						if err := json.Unmarshal([]byte(f.Raw()), &s); err != nil {
							t.Error(err)
						}
						got.Reasoning += s
					}
					for _, tc := range ch.Delta.ToolCalls {
						i, ok := calls[tc.Index]
						if !ok {
							if tc.ID == "" || tc.Type != "function" || tc.Function.Name == "" || !tc.JSON.Index.Valid() {
								t.Errorf("first piece of a call: %s", tc.RawJSON())
							}
							i = len(got.Calls)
							calls[tc.Index] = i
							got.Calls = append(got.Calls, heardCall{ID: tc.ID, Name: tc.Function.Name})
						} else if tc.ID != "" || tc.Function.Name != "" {
							t.Errorf("id or name told twice: %s", tc.RawJSON())
						}
						got.Calls[i].Input += tc.Function.Arguments
					}
					if ch.FinishReason != "" {
						got.Finish = ch.FinishReason
					}
				}
			}
			got.Failed = stream.Err() != nil
			if got.Failed {
				want.Input, want.Cached, want.Output, want.Thought = 0, 0, 0, 0 // it would have come behind the error
				if !bytes.HasSuffix(body, []byte("}\n\n")) || bytes.Contains(body, []byte("[DONE]")) {
					t.Error("something follows the error")
				}
				if got.ID == "" {
					want.ID, want.Model = "", ""
				}
			} else if !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) {
				t.Error("no [DONE] at the end")
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got\n%s\n%s", diff, body)
			}
			if !got.Failed && acc.Choices[0].Message.Content != want.Text {
				t.Errorf("accumulated %q", acc.Choices[0].Message.Content)
			}
		})
	}
}

func TestResponsesToOfficialClient(t *testing.T) {
	for name, open := range sources(t) {
		t.Run(name, func(t *testing.T) {
			src, producer := open()
			want, body := told(t, src, chat.OpenAIResponses, producer)
			client := serve(t, body)
			stream := client.Responses.NewStreaming(t.Context(), responses.ResponseNewParams{Model: "alias", Input: responses.ResponseNewParamsInputUnion{OfString: sdk.String("x")}})
			var got heard
			var kinds []string
			next := int64(0)
			added, parts := map[int64]bool{}, map[string]bool{}
			var final responses.Response
			for stream.Next() {
				ev := stream.Current()
				kinds = append(kinds, ev.Type)
				if ev.SequenceNumber != next {
					t.Errorf("%s is number %d, want %d", ev.Type, ev.SequenceNumber, next)
				}
				next++
				switch ev.Type {
				case "response.created":
					got.ID, got.Model = ev.Response.ID, ev.Response.Model
				case "response.output_item.added":
					if added[ev.OutputIndex] || ev.OutputIndex != int64(len(added)) {
						t.Errorf("item %d is added as number %d", ev.OutputIndex, len(added))
					}
					added[ev.OutputIndex] = true
				case "response.content_part.added", "response.reasoning_summary_part.added":
					parts[ev.ItemID] = true
				case "response.output_text.delta", "response.refusal.delta", "response.reasoning_summary_text.delta":
					if !added[ev.OutputIndex] || !parts[ev.ItemID] {
						t.Errorf("%s for a part that was not added", ev.Type)
					}
				case "response.completed", "response.incomplete", "response.failed":
					final = ev.Response
				}
			}
			if stream.Err() != nil {
				t.Fatal(stream.Err())
			}
			if len(kinds) < 3 || !slices.Equal(kinds[:2], []string{"response.created", "response.in_progress"}) || !strings.HasPrefix(kinds[len(kinds)-1], "response.") || final.ID != got.ID {
				t.Fatalf("events %q", kinds)
			}
			for _, it := range final.Output {
				switch it.Type {
				case "message":
					for _, c := range it.Content {
						got.Text += c.Text
						got.Refusal += c.Refusal
					}
				case "reasoning":
					for _, s := range it.Summary {
						got.Reasoning += s.Text
					}
				case "function_call":
					got.Calls = append(got.Calls, heardCall{ID: it.CallID, Name: it.Name, Input: it.Arguments.OfString})
				}
			}
			u := final.Usage
			got.Input, got.Cached, got.Output, got.Thought = u.InputTokens, u.InputTokensDetails.CachedTokens, u.OutputTokens, u.OutputTokensDetails.ReasoningTokens
			got.Failed = final.Status == "failed"
			if got.Failed {
				if final.Error.Message == "" || final.Error.Code == "" {
					t.Errorf("error %+v", final.Error)
				}
				want.Text, want.Refusal, want.Reasoning, want.Calls, want.Finish = got.Text, got.Refusal, got.Reasoning, got.Calls, ""
				want.Input, want.Cached, want.Output, want.Thought = got.Input, got.Cached, got.Output, got.Thought
			} else {
				got.Finish = "stop"
				switch {
				case final.Status == "incomplete" && final.IncompleteDetails.Reason == "max_output_tokens":
					got.Finish = "length"
				case final.Status == "incomplete":
					got.Finish = "content_filter"
				case len(got.Calls) > 0:
					got.Finish = "tool_calls"
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got\n%s\n%s", diff, body)
			}
		})
	}
}

// What we tell a client we read back ourselves as the same.
func TestEncodedIsReadBack(t *testing.T) {
	for name, open := range sources(t) {
		for _, p := range []chat.Protocol{chat.OpenAIChat, chat.OpenAIResponses} {
			t.Run(name+"/"+string(p), func(t *testing.T) {
				src, producer := open()
				want, body := told(t, src, p, producer)
				if want.Failed {
					d := openai.NewDecoder(p, bytes.NewReader(body), openai.Dialect{})
					var err error
					for err == nil {
						_, err = d.Next()
					}
					if fe := fault.From(err); err == io.EOF || fe.Upstream == nil {
						t.Errorf("got %v", err)
					}
					return
				}
				got, again := told(t, openai.NewDecoder(p, bytes.NewReader(body), openai.Dialect{}), p, p)
				if want.Finish == "content_filter" {
					want.Finish = got.Finish
					if got.Finish != "content_filter" {
						t.Errorf("finish %q", got.Finish)
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
				third, last := told(t, openai.NewDecoder(p, bytes.NewReader(again), openai.Dialect{}), p, p)
				if diff := cmp.Diff(got, third); diff != "" || !bytes.Equal(again, last) && !strings.Contains(string(body), "gw1:") {
					t.Errorf("encoding again changes it: %s", diff)
				}
			})
		}
	}
}

// Every event of every stream has one data line of JSON, and no line some client cannot read.
func TestFraming(t *testing.T) {
	for name, open := range sources(t) {
		for _, p := range []chat.Protocol{chat.OpenAIChat, chat.OpenAIResponses} {
			src, producer := open()
			_, body := told(t, src, p, producer)
			r := sse.NewReader(bytes.NewReader(body))
			for {
				ev, err := r.Next()
				if err != nil {
					break
				}
				if string(ev.Data) == "[DONE]" && p == chat.OpenAIChat {
					continue
				}
				var v struct {
					Type    string            `json:"type"`
					Error   json.RawMessage   `json:"error"`
					Choices []json.RawMessage `json:"choices"`
				}
				if err := json.Unmarshal(ev.Data, &v); err != nil {
					t.Errorf("%s: %v in %s", name, err, ev.Data)
				}
				switch {
				case string(v.Error) == "null" && p == chat.OpenAIChat:
					t.Errorf("%s: a chunk with error null", name)
				case p == chat.OpenAIChat && ev.Name != "message":
					t.Errorf("%s: named event %s", name, ev.Name)
				case p == chat.OpenAIChat && v.Choices == nil && v.Error == nil:
					t.Errorf("%s: a chunk without choices: %s", name, ev.Data)
				case p == chat.OpenAIResponses && (v.Type == "" || v.Type != ev.Name):
					t.Errorf("%s: event %q of type %q", name, ev.Name, v.Type)
				}
			}
			for line := range strings.SplitSeq(string(body), "\n") {
				if line != "" && !strings.HasPrefix(line, "data: {") && line != "data: [DONE]" && !strings.HasPrefix(line, "event: response.") {
					t.Errorf("%s: line %q", name, line)
				}
			}
		}
	}
}

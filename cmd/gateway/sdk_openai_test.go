//go:build !race

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/responses"
)

// openaiClient is the official Go SDK of OpenAI, whose base URL holds the version.
func openaiClient(base, token string, client *http.Client) openai.Client {
	return openai.NewClient(option.WithBaseURL(base+"/v1"), option.WithAPIKey(token), option.WithMaxRetries(0), option.WithHTTPClient(client),
		option.WithOrganization(""), option.WithProject(""))
}

func openaiTrouble(err error) *sdkTrouble {
	var api *openai.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &api):
		return &sdkTrouble{Message: err.Error()}
	}
	f := &sdkTrouble{Status: api.StatusCode, Type: api.Type, Code: api.Code, Message: api.Message}
	if api.Response != nil && api.Response.Header.Get("X-Should-Retry") == "false" {
		f.Final = true
	}
	return f
}

// askCompletions asks Chat Completions.
func askCompletions(base, token string, hc *http.Client) asker {
	c := openaiClient(base, token, hc)
	return func(ctx context.Context, model string, stream bool) sdkAnswer {
		p := openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello.")}}
		if !stream {
			m, err := c.Chat.Completions.New(ctx, p)
			if err != nil {
				return sdkAnswer{Trouble: openaiTrouble(err)}
			}
			return completionRead(m)
		}
		p.StreamOptions.IncludeUsage = openai.Bool(true)
		return completionStream(c, ctx, p)
	}
}

func completionStream(c openai.Client, ctx context.Context, p openai.ChatCompletionNewParams) sdkAnswer {
	st := c.Chat.Completions.NewStreaming(ctx, p)
	defer st.Close()
	var got sdkAnswer
	at := map[int64]int{}
	for st.Next() {
		chunk := st.Current()
		got.ID, got.Model = chunk.ID, chunk.Model
		if chunk.JSON.Usage.Valid() {
			got.usage(chunk.Usage)
		}
		for _, ch := range chunk.Choices {
			if ch.Index > 0 {
				continue
			}
			got.Text += ch.Delta.Content
			got.Refusal += ch.Delta.Refusal
			got.Thinking += reasoning(ch.Delta.JSON.ExtraFields)
			for _, tc := range ch.Delta.ToolCalls {
				i, ok := at[tc.Index]
				if !ok {
					i, at[tc.Index] = len(got.Calls), len(got.Calls)
					got.Calls = append(got.Calls, sdkCall{})
				}
				got.Calls[i].ID += tc.ID
				got.Calls[i].Name += tc.Function.Name
				got.Calls[i].Input += tc.Function.Arguments
			}
			if ch.FinishReason != "" {
				got.Stop = ch.FinishReason
			}
		}
	}
	got.Trouble = openaiTrouble(st.Err())
	return got
}

func (a *sdkAnswer) usage(u openai.CompletionUsage) {
	a.Usage = sdkUsage{u.PromptTokens, u.PromptTokensDetails.CachedTokens, u.CompletionTokens, u.CompletionTokensDetails.ReasoningTokens}
}

// reasoning is the thinking, for which the SDK has no field, by either name that clients know.
func reasoning(extra map[string]respjson.Field) (s string) {
	for _, name := range []string{"reasoning_content", "reasoning"} {
		if f, ok := extra[name]; ok && s == "" {
			_ = json.Unmarshal([]byte(f.Raw()), &s) // null is nothing
		}
	}
	return s
}

func completionRead(m *openai.ChatCompletion) sdkAnswer {
	got := sdkAnswer{ID: m.ID, Model: m.Model}
	got.usage(m.Usage)
	if len(m.Choices) == 0 {
		return got
	}
	msg := m.Choices[0].Message
	got.Text, got.Refusal, got.Stop = msg.Content, msg.Refusal, m.Choices[0].FinishReason
	got.Thinking = reasoning(msg.JSON.ExtraFields)
	for _, tc := range msg.ToolCalls {
		got.Calls = append(got.Calls, sdkCall{tc.ID, tc.Function.Name, tc.Function.Arguments})
	}
	return got
}

// askResponses asks the Responses API.
func askResponses(base, token string, hc *http.Client) asker {
	c := openaiClient(base, token, hc)
	return func(ctx context.Context, model string, stream bool) sdkAnswer {
		p := responses.ResponseNewParams{Model: model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Hello.")}}
		if !stream {
			r, err := c.Responses.New(ctx, p)
			if err != nil {
				return sdkAnswer{Trouble: openaiTrouble(err)}
			}
			return responseRead(*r)
		}
		return responseStream(c, ctx, p)
	}
}

func responseStream(c openai.Client, ctx context.Context, p responses.ResponseNewParams) sdkAnswer {
	st := c.Responses.NewStreaming(ctx, p)
	defer st.Close()
	var got sdkAnswer // of the deltas
	var final *responses.Response
	for st.Next() {
		switch ev := st.Current(); ev.Type {
		case "response.output_text.delta":
			got.Text += ev.Delta
		case "response.refusal.delta":
			got.Refusal += ev.Delta
		case "response.reasoning_summary_text.delta":
			got.Thinking += ev.Delta
		case "response.completed", "response.incomplete", "response.failed":
			r := ev.Response
			final = &r
		case "error":
			got.Trouble = &sdkTrouble{Type: "error", Code: ev.Code, Message: ev.Message}
		}
	}
	if err := st.Err(); err != nil {
		got.Trouble = openaiTrouble(err)
	}
	switch {
	case got.Trouble != nil:
		return got
	case final == nil:
		got.Trouble = &sdkTrouble{} // the stream just ended; nobody said that it failed
		return got
	}
	read := responseRead(*final)
	if read.Trouble != nil {
		got.Trouble = read.Trouble
		return got
	}
	if read.Text != got.Text || read.Refusal != got.Refusal || read.Thinking != got.Thinking {
		return sdkAnswer{Trouble: &sdkTrouble{Message: "the deltas say " + quoted(got) + ", the response " + quoted(read)}}
	}
	return read
}

func responseRead(r responses.Response) sdkAnswer {
	got := sdkAnswer{ID: r.ID, Model: r.Model, Stop: string(r.Status)}
	if r.Status == "failed" {
		got.Trouble = &sdkTrouble{Type: "failed", Code: string(r.Error.Code), Message: r.Error.Message}
	}
	if r.Status == "incomplete" {
		got.Stop += ":" + r.IncompleteDetails.Reason
	}
	u := r.Usage
	got.Usage = sdkUsage{u.InputTokens, u.InputTokensDetails.CachedTokens, u.OutputTokens, u.OutputTokensDetails.ReasoningTokens}
	for _, item := range r.Output {
		switch item.Type {
		case "message":
			for _, c := range item.Content {
				got.Text += c.Text
				got.Refusal += c.Refusal
			}
		case "reasoning":
			for _, s := range item.Summary {
				got.Thinking += s.Text
			}
		case "function_call":
			got.Calls = append(got.Calls, sdkCall{item.CallID, item.Name, item.Arguments.OfString})
		}
	}
	return got
}

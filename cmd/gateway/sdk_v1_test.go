package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/lossless-group/gateway/internal/integration/replay"
)

// The beta half of this major version asks with ?beta=true of its own.
func TestSDK1Beta(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", sdkKey)
	var query []string
	tap := sdkTap(t, s.url, func(r *http.Request, _ []byte) { query = append(query, r.URL.RawQuery) })
	client := anthropic.NewClient(sdk1Options(tap, s.token("editor", "acme.example"), false, 0, nil)...)
	st := client.Beta.Messages.NewStreaming(t.Context(), anthropic.BetaMessageNewParams{
		Model: "claude-sonnet-4-6", MaxTokens: 64, Betas: []anthropic.AnthropicBeta{"interleaved-thinking-2025-05-14"},
		Messages: []anthropic.BetaMessageParam{anthropic.NewBetaUserMessage(anthropic.NewBetaTextBlock("Hello."))},
	})
	defer st.Close()
	var got anthropic.BetaMessage
	for st.Next() {
		if err := got.Accumulate(st.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if st.Err() != nil || len(got.Content) != 1 || got.Content[0].Text != "Hello." || got.StopReason != "end_turn" {
		t.Fatalf("%+v, %v", got, st.Err())
	}
	if len(query) != 1 || query[0] != "beta=true" {
		t.Errorf("the SDK asked with %q", query)
	}
	if r := s.up.Requests(); len(r) != 1 || r[0].Header.Get("Anthropic-Beta") != "interleaved-thinking-2025-05-14" || r[0].Path != "/v1/messages" {
		t.Errorf("the provider got %+v", r)
	}
}

// client of the older major version.
type sdk1 struct{ c anthropic.Client }

var _ sdkClient = sdk1{}

func sdk1Options(base, token string, bearer bool, retries int, headers map[string]string) []option.RequestOption {
	opts := []option.RequestOption{option.WithoutEnvironmentDefaults(), option.WithBaseURL(base), option.WithMaxRetries(retries), option.WithRequestTimeout(20 * time.Second),
		option.WithHTTPClient(http.DefaultClient), // whose connections the service closes when it stops: none outlives its test
	}
	if bearer {
		opts = append(opts, option.WithAuthToken(token))
	} else {
		opts = append(opts, option.WithAPIKey(token))
	}
	for k, v := range headers {
		opts = append(opts, option.WithHeader(k, v))
	}
	return opts
}

func dialSDK1(base, token string, bearer bool, retries int, headers map[string]string) sdkClient {
	return sdk1{anthropic.NewClient(sdk1Options(base, token, bearer, retries, headers)...)}
}

func (s sdk1) ask(how replay.How, content string) replay.Result {
	ctx := context.Background()
	params := anthropic.MessageNewParams{
		Model: "claude-sonnet-4-6", MaxTokens: 64,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(content))},
	}
	if how == replay.Whole {
		m, err := s.c.Messages.New(ctx, params)
		if err != nil {
			return replay.Result{Failure: sdk1Failure(err)}
		}
		return replay.Result{Read: sdk1Read(m)}
	}
	st := s.c.Messages.NewStreaming(ctx, params)
	defer st.Close()
	var m anthropic.Message
	var fold replay.Fold
	for st.Next() {
		ev := st.Current()
		if how == replay.Plain {
			sdk1Fold(&fold, ev)
			continue
		}
		if err := m.Accumulate(ev); err != nil {
			return replay.Result{Failure: &replay.Failure{Message: "accumulate: " + err.Error()}}
		}
	}
	read := fold.Read()
	if how == replay.Helper {
		read = sdk1Read(&m)
	}
	return replay.Result{Read: read, Failure: sdk1Failure(st.Err())}
}

func sdk1Fold(f *replay.Fold, ev anthropic.MessageStreamEventUnion) {
	switch ev.Type {
	case "message_start":
		f.Start(ev.Message.ID, string(ev.Message.Model), sdk1Usage(ev.Message.Usage))
	case "content_block_start":
		b := ev.ContentBlock
		f.Open(b.Type, b.ID, b.Name, b.Data)
	case "content_block_delta":
		f.Delta(ev.Index, ev.Delta.Text, ev.Delta.Thinking, ev.Delta.Signature, ev.Delta.PartialJSON)
	case "message_delta":
		u := f.Usage()
		for _, part := range []struct {
			told bool
			to   *int64
			from int64
		}{
			{ev.Usage.JSON.InputTokens.Valid(), &u.Input, ev.Usage.InputTokens},
			{ev.Usage.JSON.CacheReadInputTokens.Valid(), &u.CacheRead, ev.Usage.CacheReadInputTokens},
			{ev.Usage.JSON.CacheCreationInputTokens.Valid(), &u.CacheWrite, ev.Usage.CacheCreationInputTokens},
			{ev.Usage.JSON.OutputTokens.Valid(), &u.Output, ev.Usage.OutputTokens},
			{ev.Usage.JSON.OutputTokensDetails.Valid(), &u.Thinking, ev.Usage.OutputTokensDetails.ThinkingTokens},
			{ev.Usage.JSON.ServerToolUse.Valid(), &u.Searches, ev.Usage.ServerToolUse.WebSearchRequests},
		} {
			if part.told {
				*part.to = part.from
			}
		}
		f.Stop(string(ev.Delta.StopReason), u)
	}
}

func sdk1Read(m *anthropic.Message) replay.Read {
	r := replay.Read{ID: m.ID, Model: string(m.Model), Stop: string(m.StopReason), Usage: sdk1Usage(m.Usage)}
	for _, b := range m.Content {
		switch b.Type {
		case "text":
			r.Text += b.Text
		case "thinking":
			r.Thinking += b.Thinking
			r.Signature += b.Signature
		case "redacted_thinking":
			r.Redacted = append(r.Redacted, b.Data)
		case "tool_use":
			r.Tools = append(r.Tools, replay.Tool{ID: b.ID, Name: b.Name, Input: string(b.Input)})
		}
	}
	return r
}

func sdk1Usage(u anthropic.Usage) replay.Usage {
	return replay.Usage{
		Input: u.InputTokens, CacheRead: u.CacheReadInputTokens, CacheWrite: u.CacheCreationInputTokens,
		CacheWrite5m: u.CacheCreation.Ephemeral5mInputTokens, CacheWrite1h: u.CacheCreation.Ephemeral1hInputTokens,
		Output: u.OutputTokens, Thinking: u.OutputTokensDetails.ThinkingTokens, Searches: u.ServerToolUse.WebSearchRequests,
	}
}

func sdk1Failure(err error) *replay.Failure {
	var api *anthropic.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &api):
		return &replay.Failure{Message: err.Error()}
	}
	var body struct { // this major version has no fields for them
		Error struct {
			Message string `json:"message"`
			Details struct {
				Code string `json:"error_code"`
			} `json:"details"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(api.RawJSON()), &body); err != nil {
		return &replay.Failure{Status: api.StatusCode, Message: "the error's body: " + err.Error()}
	}
	f := &replay.Failure{Status: api.StatusCode, Type: string(api.Type()), Code: body.Error.Details.Code, Message: body.Error.Message}
	if api.Response != nil {
		f.RetryAfter = api.Response.Header.Get("Retry-After")
	}
	return f
}

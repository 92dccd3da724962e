//go:build !race

package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"google.golang.org/genai"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// TestSDKModelLists has each SDK list the models and ask for one.
func TestSDKModelLists(t *testing.T) {
	s := startSurfaces(t, nil)
	const one = "on-gemini"
	lists := map[string][]string{}
	oc := openaiClient(s.front, s.token, http.DefaultClient)
	for m := oc.Models.ListAutoPaging(t.Context()); m.Next(); {
		lists["openai"] = append(lists["openai"], m.Current().ID)
	}
	if m, err := oc.Models.Get(t.Context(), one); err != nil || m.ID != one || m.OwnedBy != "gemini" {
		t.Errorf("openai: %+v %v", m, err)
	}
	_, err := oc.Models.Get(t.Context(), "nothing")
	if f := openaiTrouble(err); f == nil || f.Status != 404 || f.Code != "model_not_found" {
		t.Errorf("openai: %+v", f)
	}
	ac := anthropic.NewClient(sdk2Options(s.front, s.token, false, 0, nil)...)
	for m := ac.Models.ListAutoPaging(t.Context(), anthropic.ModelListParams{}); m.Next(); {
		lists["anthropic"] = append(lists["anthropic"], m.Current().ID)
	}
	if m, err := ac.Models.Get(t.Context(), one, anthropic.ModelGetParams{}); err != nil || m.ID != one || m.DisplayName == "" {
		t.Errorf("anthropic: %+v %v", m, err)
	}
	gc := genaiClient(t, s.front, s.token, http.DefaultClient)
	for m, err := range gc.Models.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		lists["genai"] = append(lists["genai"], strings.TrimPrefix(m.Name, "models/"))
	}
	if m, err := gc.Models.Get(t.Context(), one, nil); err != nil || m.Name != "models/"+one || !slices.Contains(m.SupportedActions, "generateContent") {
		t.Errorf("genai: %+v %v", m, err)
	}
	if !slices.Contains(lists["openai"], one) || len(lists["openai"]) < len(ways()) {
		t.Errorf("models %q", lists["openai"])
	}
	if cmp.Diff(lists["openai"], lists["anthropic"]) != "" || cmp.Diff(lists["openai"], lists["genai"]) != "" {
		t.Errorf("the lists differ: %q", lists)
	}
}

// TestSDKTokenCounts asks how many tokens a prompt has: by the provider's own count where there is one for the protocol, else estimated.
func TestSDKTokenCounts(t *testing.T) {
	s := startSurfaces(t, nil)
	s.up.Answer(func(r upstream.Request) upstream.Script {
		body := `{"input_tokens":321}`
		if strings.Contains(r.Path, ":countTokens") {
			body = `{"totalTokens":321}`
		}
		return upstream.Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(body)}
	})
	for way, own := range map[string]bool{"anthropic": true, "gemini": true, "compatible": false} {
		rec := &recorder{}
		ac := anthropic.NewClient(append(sdk2Options(s.front, s.token, false, 0, nil), option.WithHTTPClient(rec.client()))...)
		m, err := ac.Messages.CountTokens(t.Context(), anthropic.MessageCountTokensParams{Model: anthropic.Model("on-" + way), Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello."))}})
		if err != nil || (m.InputTokens == 321) != own || m.InputTokens < 1 {
			t.Errorf("messages on %s: %+v %v", way, m, err)
		}
		if _, head := rec.last(); (head.Get("X-Gateway-Token-Count") == "estimated") == own {
			t.Errorf("messages on %s: header %v", way, head)
		}
		g, err := genaiClient(t, s.front, s.token, rec.client()).Models.CountTokens(t.Context(), "on-"+way, genai.Text("Hello."), nil)
		if err != nil || (g.TotalTokens == 321) != own || g.TotalTokens < 1 {
			t.Errorf("countTokens on %s: %+v %v", way, g, err)
		}
	}
	s.flush()
	if e := faultLedger(t, s.app.stores, "acme.example", nil); len(e) != 0 {
		t.Errorf("counting was billed: %+v", e)
	}
}

// TestSDKEmbeddings embeds texts with values in them, in both encodings.
func TestSDKEmbeddings(t *testing.T) {
	s := startSurfaces(t, nil)
	patch(s.service, "acme.example", `{"redaction":{"profile":"balanced"}}`)
	s.up.Answer(func(upstream.Request) upstream.Script {
		return upstream.Script{Header: http.Header{"Content-Type": {"application/json"}},
			Body: []byte(`{"object":"list","model":"emb","data":[{"object":"embedding","index":0,"embedding":[0.5,-0.25]},{"object":"embedding","index":1,"embedding":[1,2]}],"usage":{"prompt_tokens":9,"total_tokens":9}}`)}
	})
	c := openaiClient(s.front, s.token, http.DefaultClient)
	p := openai.EmbeddingNewParams{Model: "on-compatible", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"Ask jane@canary-mail.com", "Hello"}}}
	r, err := c.Embeddings.New(t.Context(), p)
	if err != nil || len(r.Data) != 2 || cmp.Diff([]float64{0.5, -0.25}, r.Data[0].Embedding) != "" || r.Usage.PromptTokens != 9 {
		t.Fatalf("%+v %v", r, err)
	}
	reqs := s.up.Requests()
	if len(reqs) != 1 || reqs[0].Path != "/v1/embeddings" || !strings.Contains(string(reqs[0].Body), `"claude-compatible"`) {
		t.Fatalf("%+v", reqs)
	}
	hidden(t, reqs[0].Body, []string{"jane@canary-mail.com"})
	status, body, _ := s.call("POST", "/v1/embeddings", s.token, `{"model":"on-compatible","input":"Hello","encoding_format":"base64"}`)
	if status != 200 || !strings.Contains(body, `"embedding":"AAAAPwAAgL4="`) {
		t.Errorf("%d %s", status, body)
	}
	p.Model = "on-anthropic"
	_, err = c.Embeddings.New(t.Context(), p)
	if f := openaiTrouble(err); f == nil || f.Status != 400 || f.Code != "protocol_unsupported" {
		t.Errorf("a model that has none: %+v", f)
	}
	s.flush()
	e := faultLedger(t, s.app.stores, "acme.example", nil)
	if len(e) != 2 || e[0].Surface != "openai-embeddings" || e[0].Usage.Input != 9 || e[0].Usage.Output != 0 {
		t.Errorf("the ledger has %+v", e)
	}
}

// TestOnUnsupported has one field that a provider cannot be told, and the three ways of taking that.
func TestOnUnsupported(t *testing.T) {
	s := startSurfaces(t, nil)
	s.up.Answer(func(upstream.Request) upstream.Script { return upstream.Say("openai.chat", false, "Good.") })
	for _, c := range []struct {
		mode     string
		status   int
		warnings string
		body     string
	}{
		{"", 200, "dropped:top_k", "Good."}, {"warn", 200, "dropped:top_k", "Good."}, {"drop", 200, "", "Good."},
		{"reject", 400, "", "top_k"}, {"maybe", 400, "", "X-Gateway-On-Unsupported"},
	} {
		status, body, head := s.call("POST", "/v1/messages", s.token, `{"model":"on-compatible","max_tokens":9,"top_k":3,"messages":[{"role":"user","content":"Hello."}]}`, "X-Gateway-On-Unsupported", c.mode)
		if status != c.status || head.Get("X-Gateway-Warnings") != c.warnings || !strings.Contains(body, c.body) {
			t.Errorf("%q: %d %q %s", c.mode, status, head.Get("X-Gateway-Warnings"), body)
		}
	}
	if n := len(s.up.Requests()); n != 3 {
		t.Errorf("%d requests", n)
	}
}

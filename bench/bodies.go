package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// words are what the conversations are made of: the vocabulary of people who write slides and memos.
const words = `the quarter revenue grew by about a third and most of that came from customers who were already with us in spring so the question
is what we tell the board about churn because last time the slide said eleven percent while the memo had nine and nobody could explain where the
difference came from please read both again and propose one figure with its source keep the tone plain avoid adjectives and do not promise anything
for next year that the pipeline cannot carry we also need a shorter version for the partners meeting on Thursday with two charts instead of five
if a number is uncertain say so and give the range rather than a point estimate thanks`

var vocabulary = strings.Fields(words) //nolint:gochecknoglobals // a constant in all but type

// prose is about n bytes of text that looks written: sentences, paragraphs, now and then a number, a quotation or code.
func prose(n int) string {
	r := rand.New(rand.NewPCG(7, uint64(n)))
	var b strings.Builder
	for b.Len() < n {
		for i, k := 0, 8+r.IntN(12); i < k; i++ {
			w := vocabulary[r.IntN(len(vocabulary))]
			switch {
			case i == 0:
				w = strings.ToUpper(w[:1]) + w[1:]
			case r.IntN(40) == 0:
				w = strconv.Itoa(r.IntN(90_000)) + " EUR"
			case r.IntN(60) == 0:
				w = `"` + w + `"`
			case r.IntN(90) == 0:
				w = "caf\u00e9 \u2013 " + w
			}
			b.WriteString(w)
			b.WriteByte(' ')
		}
		b.WriteString("indeed.")
		switch r.IntN(6) {
		case 0:
			b.WriteString("\n\n")
		case 1:
			b.WriteString("\n\n```go\nfor i := range rows {\n\tsum += rows[i].Total\n}\n```\n")
		default:
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// answerText is what a whole answer says, as a JSON string.
var answerText = strconv.QuoteToASCII(prose(1100)) //nolint:gochecknoglobals // computed once, never changed

// body is a conversation of about kb KB for the Messages API. It has one e-mail address for each 10 KB and at least one, which
// must be hidden from the provider.
func body(kb int, how kind) ([]byte, error) {
	type mark struct {
		Type string `json:"type"`
	}
	type block struct {
		Type  string `json:"type"`
		Text  string `json:"text"`
		Cache *mark  `json:"cache_control,omitempty"`
	}
	type message struct {
		Role    string  `json:"role"`
		Content []block `json:"content"`
	}
	doc := struct {
		Model     string            `json:"model"`
		MaxTokens int               `json:"max_tokens"`
		Stream    bool              `json:"stream"`
		Metadata  map[string]string `json:"metadata"`
		System    []block           `json:"system"`
		Messages  []message         `json:"messages"`
	}{Model: model, MaxTokens: 1024, Stream: how != whole, Metadata: map[string]string{"user_id": string(how)}}
	total := kb*1000*95/100 - 350 // the rest is JSON around it, and sentences are finished
	doc.System = []block{{Type: "text", Text: prose(total / 5), Cache: &mark{"ephemeral"}}}
	turns := 1
	if kb > 2 {
		turns = 9
	}
	for i := range turns {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		text := prose(total * 4 / 5 / turns)
		if i == turns-1 {
			var b strings.Builder
			for k := range max(1, kb/10) {
				fmt.Fprintf(&b, "Send it to jane.%d@client-%d.example. ", k, k)
			}
			text = b.String() + text
		}
		doc.Messages = append(doc.Messages, message{role, []block{{Type: "text", Text: text}}})
	}
	return json.Marshal(doc)
}

// model is one the price list knows, so that attempts are priced like real ones.
const model = "claude-sonnet-4-5"

// request is one prepared HTTP request to a target. Every target gets the same bytes but for the host.
func (b *bench) request(t *target, kb int, how kind) []byte {
	doc, err := body(kb, how)
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	head := "POST /v1/messages HTTP/1.1\r\nHost: " + t.addr + "\r\nAuthorization: Bearer " + b.gw.editor +
		"\r\nContent-Type: application/json\r\nAnthropic-Version: 2023-06-01\r\nUser-Agent: bench\r\nContent-Length: " + strconv.Itoa(len(doc)) + "\r\n\r\n"
	return append([]byte(head), doc...)
}

// Package external asks a detector of the operator's over HTTP what is sensitive in texts: names, places, whatever its model knows.
//
// It refuses to know policies and organisations: package redaction decides what is asked and what becomes of the answer.
//
// Invariants: a text goes to the configured URL and nowhere else, redirects and proxies included; an answer that does not fit the
// question is a failure and never half an answer; a detector that keeps failing is left alone for a while.
//
// The protocol is one POST of {"texts": [...], "entities": [...]}, answered 200 with {"results": [[{"start", "end", "entity",
// "score"}, ...], ...]}: one list for each text, in their order; offsets are bytes of the UTF-8 text.
package external

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/lossless-group/gateway/breaker"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/redaction"
)

// Bounds of one question.
const (
	maxQuestion = 256 << 10 // bytes of texts in one request; more texts are more requests
	maxText     = 1 << 20   // bytes of one text
	maxAnswer   = 4 << 20   // bytes
	maxTimeout  = 10 * time.Second

	trip = 5 // failures in a row
	rest = 10 * time.Second
)

// Config is what a Client needs.
type Config struct {
	URL     string           // where the detector answers; http or https
	Timeout time.Duration    // for all that one call of Detect asks, above 0 and at most 10 s
	Clock   func() time.Time // of the breaker
}

// Client asks one detector. It is safe for concurrent use.
type Client struct {
	url     string
	timeout time.Duration
	clock   func() time.Time
	http    *http.Client
	breaker breaker.Breaker
}

var _ redaction.Detector = (*Client)(nil)

// New makes a Client; Invalid for a URL or a timeout that cannot be used.
func New(c Config) (*Client, error) {
	const op = "external.New"
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, fault.New(fault.Invalid, op, "invalid_detector", "A detector's url is http or https, with a host and without a user or a fragment.")
	}
	if c.Timeout <= 0 || c.Timeout > maxTimeout {
		return nil, fault.New(fault.Invalid, op, "invalid_detector", "A detector's timeout is above 0 and at most 10s.")
	}
	if c.Clock == nil {
		return nil, fault.New(fault.Internal, op, "invalid_detector", "A detector needs a clock.")
	}
	return &Client{
		url: u.String(), timeout: c.Timeout, clock: c.Clock, breaker: breaker.Breaker{Trip: trip, Rest: rest},
		http: &http.Client{
			Transport:     &http.Transport{Proxy: nil, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// question and answer are the two bodies.
type question struct {
	Texts    []string `json:"texts"`
	Entities []string `json:"entities"`
}

type answer struct {
	Results [][]struct {
		Start  *int    `json:"start"`
		End    *int    `json:"end"`
		Entity string  `json:"entity"`
		Score  float64 `json:"score"`
	} `json:"results"`
}

// Detect asks about texts. Faults: TooLarge for a text of more than 1 MiB, Unavailable while the detector is left alone, Timeout, and
// Upstream for whatever is no answer. A caller who leaves is none of the detector's failures.
func (c *Client) Detect(ctx context.Context, texts, entities []string) ([][]redaction.Span, error) {
	const op = "external.Detect"
	for _, t := range texts {
		if len(t) > maxText {
			return nil, fault.New(fault.TooLarge, op, "detector_text_too_large", "A text is too long for the detector; split it.")
		}
	}
	if !c.breaker.Admit(c.clock()) {
		return nil, fault.New(fault.Unavailable, op, "detector_resting", "The detector failed several times and is left alone for some seconds.")
	}
	within, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	out := make([][]redaction.Span, 0, len(texts))
	for len(texts) > 0 {
		n, size := 0, 0
		for n < len(texts) && (n == 0 || size+len(texts[n]) <= maxQuestion) {
			size += len(texts[n])
			n++
		}
		part, err := c.ask(within, texts[:n], entities)
		if err != nil {
			if ctx.Err() != nil {
				c.breaker.Leave()
				return nil, fault.Wrap(fault.Timeout, op, "detector_not_awaited", "The request was ended while a detector was asked.", ctx.Err())
			}
			c.breaker.Report(false, c.clock())
			if errors.Is(err, context.DeadlineExceeded) {
				return nil, fault.Wrap(fault.Timeout, op, "detector_slow", "The detector took too long.", err)
			}
			return nil, fault.Wrap(fault.Upstream, op, "detector_answer", "The detector gave no answer that can be used.", err)
		}
		out = append(out, part...)
		texts = texts[n:]
	}
	c.breaker.Report(true, c.clock())
	return out, nil
}

// ask sends one request. Errors hold nothing of the texts.
func (c *Client) ask(ctx context.Context, texts, entities []string) ([][]redaction.Span, error) {
	body, err := json.Marshal(question{texts, entities})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // there is nothing left to lose
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	case len(raw) > maxAnswer:
		return nil, errors.New("the answer is too large")
	}
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, errors.New("the answer is not of the expected form") // its text may be in err
	}
	if len(a.Results) != len(texts) {
		return nil, fmt.Errorf("%d results for %d texts", len(a.Results), len(texts))
	}
	out := make([][]redaction.Span, len(texts))
	for i, list := range a.Results {
		for _, x := range list {
			if x.Start == nil || x.End == nil || *x.Start < 0 || *x.End <= *x.Start || *x.End > len(texts[i]) || !(x.Score >= 0 && x.Score <= 1) {
				return nil, errors.New("a finding lies outside its text, or its score is not from 0 to 1")
			}
			out[i] = append(out[i], redaction.Span{Start: *x.Start, End: *x.End, Entity: x.Entity, Score: x.Score})
		}
	}
	return out, nil
}

package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/provider"
	httpexchange "github.com/lossless-group/gateway/provider/exchange"
)

// CountTokens asks how many tokens the prompt of a masked body has. Its errors are those of Open.
func (p *Provider) CountTokens(ctx context.Context, c provider.Call) (int64, error) {
	if got := c.Body.Protocol(); got != chat.AnthropicMessages {
		return 0, fault.Wrap(fault.Internal, opOpen, "wrong_protocol", "The request cannot be sent to this provider. Tell us the request id.",
			errors.New("body is of protocol "+string(got)))
	}
	if c.Key.IsZero() || !headerSafe(c.Key.Reveal()) {
		return 0, fault.New(fault.Forbidden, opOpen, "provider_key_rejected", "There is no usable key for this provider. Enter it again.")
	}
	sent, cancel := context.WithCancelCause(ctx)
	defer cancel(errClosed)
	x := &exchange{sent: func() error { return context.Cause(sent) }, cancel: cancel, release: func() bool { return true }, scrub: scrubber(c.Key)}
	head := time.AfterFunc(p.ttfb, func() { cancel(errHeadTimeout) })
	defer head.Stop()
	var left atomic.Bool
	r := p.request(sent, c, &left)
	r.URL.Path += "/count_tokens"
	res, err := p.transport.RoundTrip(r)
	if err != nil {
		return 0, p.sendFault(x, err, left.Load())
	}
	defer func() { _ = res.Body.Close() }() // nothing more is read of it
	x.body = httpexchange.NewIdleReader(res.Body, p.idle, func() { cancel(errIdle) })
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return 0, p.answerFault(x, res)
	}
	var answer struct {
		Tokens *int64 `json:"input_tokens"`
	}
	if err := json.NewDecoder(io.LimitReader(x.body, 64<<10)).Decode(&answer); err != nil || answer.Tokens == nil || *answer.Tokens < 0 {
		return 0, fault.Wrap(fault.Upstream, opOpen, "upstream_error", "The provider's count cannot be read. Try again.", err)
	}
	return *answer.Tokens, nil
}

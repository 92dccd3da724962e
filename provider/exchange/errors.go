package exchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lossless-group/gateway/fault"
)

// statusOverloaded is what some providers answer when they have no capacity.
const statusOverloaded = 529

// maxRetryAfter bounds what a provider may tell us to wait.
const maxRetryAfter = 24 * time.Hour

// callerLeft is the fault for a caller whose context ended.
func (p *Client) callerLeft(ctx context.Context) *fault.Error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fault.Wrap(fault.Timeout, p.op, "upstream_timeout", "The provider did not answer in the time this request has. Try again.", cause)
	}
	return fault.Wrap(fault.Canceled, p.op, "canceled", "The request was canceled.", cause)
}

// scrub takes the secrets of the request out of a text, also where they stand as JSON strings.
func (x *exchange) scrub(s string) string {
	for _, k := range x.secrets {
		v := k.Reveal()
		if v == "" || s == "" {
			continue
		}
		s = strings.ReplaceAll(s, v, "[secret]")
		if j, err := json.Marshal(v); err == nil && len(j) > 2 {
			s = strings.ReplaceAll(s, string(j[1:len(j)-1]), "[secret]")
		}
	}
	return s
}

// scrubError takes the key, and the URL of a *url.Error, out of an error that goes to our logs.
func (x *exchange) scrubError(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	text := err.Error()
	if clean := x.scrub(text); clean != text {
		return errors.New(clean)
	}
	return err
}

// sendFault is the fault for a request that got no response.
func (p *Client) sendFault(x *exchange, err error, left bool) error {
	if f := p.ownFault(x, p.op); f != nil {
		return f
	}
	err = x.scrubError(err)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return fault.Wrap(fault.Timeout, p.op, "upstream_timeout", "The provider did not answer in time. Try again.", err)
	}
	if left { // it may be working on the request: that is not the same as never having heard of it
		return fault.Wrap(fault.Upstream, p.op, "upstream_lost", "The connection to the provider was lost before it answered. Try again.", err)
	}
	return fault.Wrap(fault.Upstream, p.op, "upstream_unreachable", "The provider cannot be reached. Try again in a moment.", err)
}

// answerFault is the fault for a response that is not a success. It reads the body up to the configured limit.
func (p *Client) answerFault(x *exchange, res *http.Response, read func(int, http.Header, []byte) Said) error {
	body, err := io.ReadAll(io.LimitReader(x.body, p.maxErrorBody))
	if err != nil {
		if f := p.ownFault(x, p.op); f != nil && f.Kind == fault.Canceled {
			return f // whoever asked is gone; anything else still has a status worth telling
		}
	}
	said := read(res.StatusCode, res.Header, body)
	detail := &fault.UpstreamDetail{Provider: p.name, Status: res.StatusCode, Type: x.scrub(said.Type), Message: x.scrub(said.Message),
		Code: x.scrub(said.Code), Param: x.scrub(said.Param)}
	f := statusFault(or(said.As, res.StatusCode))
	f.Op, f.Upstream = p.op, detail
	if f.RetryAfter = retryAfter(res.Header, p.now()); f.RetryAfter == 0 {
		f.RetryAfter = said.RetryAfter
	}
	if said.Type == "" && said.Message == "" { // not the provider's own form: a proxy's page, which may repeat the prompt
		f.Cause = fmt.Errorf("status %d with %d bytes of %q", res.StatusCode, len(body), res.Header.Get("Content-Type"))
	}
	return f
}

// statusFault maps a status of the provider to kind, code and public sentence.
func statusFault(status int) *fault.Error {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusPaymentRequired:
		return fault.New(fault.Forbidden, "", "provider_key_rejected", "The provider rejected the key that pays for this request. Check the key, its permissions and its credit.")
	case status == http.StatusTooManyRequests:
		return fault.New(fault.RateLimited, "", "upstream_rate_limited", "The provider's rate limit is reached. Try again later.")
	case status == statusOverloaded, status == http.StatusServiceUnavailable:
		return fault.New(fault.Unavailable, "", "upstream_overloaded", "The provider is overloaded. Try again in a moment.")
	case status == http.StatusRequestTimeout, status == http.StatusGatewayTimeout:
		return fault.New(fault.Timeout, "", "upstream_timeout", "The provider did not answer in time. Try again.")
	case status >= 400 && status < 500:
		return fault.New(fault.Invalid, "", "upstream_rejected", "The provider did not accept the request. Change it as its message says.")
	}
	return fault.New(fault.Upstream, "", "upstream_error", "The provider failed. Try again.")
}

// retryAfter reads retry-after-ms, or retry-after as seconds or as a date. It is zero when the provider gave none.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, ok := number(h.Get("Retry-After-Ms")); ok {
		return bound(ms / 1000)
	}
	v := h.Get("Retry-After")
	if s, ok := number(v); ok {
		return bound(s)
	}
	if at, err := http.ParseTime(v); err == nil {
		return bound(at.Sub(now).Seconds())
	}
	return 0
}

func number(s string) (float64, bool) {
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}

func bound(seconds float64) time.Duration {
	if seconds <= 0 {
		return 0
	}
	if seconds >= maxRetryAfter.Seconds() {
		return maxRetryAfter
	}
	return time.Duration(seconds * float64(time.Second))
}

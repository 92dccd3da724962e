package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/wire/anthropic"
	"github.com/lossless-group/gateway/wire/gemini"
	"github.com/lossless-group/gateway/wire/openai"
)

// statusOf is the one table from kinds of trouble to statuses of our own routes.
var statusOf = map[fault.Kind]int{
	fault.Internal: 500, fault.Invalid: 400, fault.Unauthenticated: 401, fault.Payment: 402, fault.Forbidden: 403, fault.NotFound: 404,
	fault.Conflict: 409, fault.Gone: 410, fault.TooLarge: 413, fault.Unprocessable: 422, fault.RateLimited: 429, fault.Canceled: 499,
	fault.Unsupported: 501, fault.Upstream: 502, fault.Unavailable: 503, fault.Timeout: 504,
}

// The codes whose status is not their kind's.
const (
	codeMethod       = "method_not_allowed"
	codePrecondition = "precondition_failed" // a Conflict with what If-Match named: 412
)

// problem is an error body of RFC 9457 with our extensions.
type problem struct {
	Type      string         `json:"type"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail"`
	Code      string         `json:"code"`
	RequestID string         `json:"requestId"`
	Field     string         `json:"field,omitempty"`
	Reasons   []fault.Reason `json:"reasons,omitempty"`
	Action    *fault.Action  `json:"action,omitempty"`
	Limit     *fault.Limit   `json:"limit,omitempty"`
}

// writeError is the one error writer: it puts a fault into the shape of the face it happened on. After the first byte of a stream
// there is nothing for it to do, the stream's own writer has said it.
func (s *Server) writeError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	fe := fromEcho(err)
	rid := requestID(c)
	h := c.Response().Header()
	tellLimits(c)
	if fe.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(fe.RetryAfter.Seconds()))))
	}
	if fe.Kind == fault.Unauthenticated {
		h.Set("WWW-Authenticate", "Bearer")
	}
	h.Set("Cache-Control", "no-store")
	var status int
	var body []byte
	contentType := "application/problem+json"
	native := map[face]func(*fault.Error, string) (int, []byte){faceAnthropic: anthropic.ErrorBody, faceOpenAI: openai.ErrorBody, faceGemini: gemini.ErrorBody}
	if shape := native[faceOf(c.Request())]; shape != nil {
		status, body = shape(fe, rid)
		contentType = "application/json"
		if !retryable(fe) { // the SDKs retry some statuses on their own; ours that cannot succeed must not be
			h.Set("X-Should-Retry", "false")
		}
	} else {
		status = statusOf[fe.Kind]
		switch fe.Code {
		case codePrecondition:
			status = http.StatusPreconditionFailed
		case codeMethod: // echo has set Allow
			status = http.StatusMethodNotAllowed
		}
		body, err = json.Marshal(problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: fe.Public, Code: fe.CodeOrKind(),
			RequestID: rid, Field: fe.Field, Reasons: fe.Reasons, Action: fe.Action, Limit: fe.Limit})
		if err != nil {
			status, body = 500, []byte(`{"type":"about:blank","status":500,"code":"internal"}`)
		}
	}
	if fe.Code == codeMethod {
		status = http.StatusMethodNotAllowed
	}
	h.Set("Content-Type", contentType)
	c.Response().WriteHeader(status)
	if c.Request().Method != http.MethodHead {
		_, _ = c.Response().Write(body) // the caller may be gone; there is nobody else to tell
	}
}

func retryable(fe *fault.Error) bool {
	switch fe.Kind {
	case fault.RateLimited, fault.Upstream, fault.Unavailable, fault.Timeout, fault.Internal:
		return true
	}
	return false
}

// fromEcho gives the framework's own errors our words.
func fromEcho(err error) *fault.Error {
	var he *echo.HTTPError
	if errors.As(err, &he) {
		switch he.Code {
		case http.StatusNotFound:
			return fault.New(fault.NotFound, "httpapi", "route_not_found", "There is no such route. The documentation lists the routes.")
		case http.StatusMethodNotAllowed:
			return fault.New(fault.Invalid, "httpapi", codeMethod, "This route does not take this method; the Allow header names those it takes.")
		case http.StatusRequestEntityTooLarge:
			return fault.New(fault.TooLarge, "httpapi", "body_too_large", "The request body is too large.")
		}
	}
	if errors.Is(err, context.Canceled) {
		return fault.Wrap(fault.Canceled, "httpapi", "canceled", "The request was cancelled.", err)
	}
	return fault.From(err)
}

// decided puts what policy said into the headers, also of refusals.
func decided(c echo.Context, revision, decision string) {
	if revision != "" {
		c.Response().Header().Set("X-Policy-Revision", revision)
	}
	if decision != "" {
		c.Response().Header().Set("X-Policy-Decision-Id", decision)
	}
}

// millis formats a duration for Server-Timing.
func millis(b []byte, name string, d time.Duration) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	b = append(b, name...)
	b = append(b, ";dur="...)
	return strconv.AppendFloat(b, float64(d.Microseconds())/1000, 'f', 3, 64)
}

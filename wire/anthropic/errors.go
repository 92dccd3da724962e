package anthropic

import (
	"encoding/json"
	"net/http"

	"github.com/lossless-group/gateway/fault"
)

// StatusOverloaded is the status the Messages API answers when it has no capacity.
const StatusOverloaded = 529

// shapes maps a kind of fault to the status and error type of the Messages API. Kinds that API has no word for get the
// nearest one a client handles in the same way.
var shapes = [...]struct {
	status int
	kind   string
}{
	fault.Internal:        {http.StatusInternalServerError, "api_error"},
	fault.Invalid:         {http.StatusBadRequest, "invalid_request_error"},
	fault.Unauthenticated: {http.StatusUnauthorized, "authentication_error"},
	fault.Payment:         {http.StatusPaymentRequired, "billing_error"},
	fault.Forbidden:       {http.StatusForbidden, "permission_error"},
	fault.NotFound:        {http.StatusNotFound, "not_found_error"},
	fault.Conflict:        {http.StatusConflict, "conflict_error"},
	fault.Gone:            {http.StatusNotFound, "not_found_error"},
	fault.TooLarge:        {http.StatusRequestEntityTooLarge, "request_too_large"},
	fault.Unprocessable:   {http.StatusBadRequest, "invalid_request_error"},
	fault.RateLimited:     {http.StatusTooManyRequests, "rate_limit_error"},
	fault.Canceled:        {499, "api_error"},
	fault.Unsupported:     {http.StatusBadRequest, "invalid_request_error"}, // a 501 would be retried
	fault.Upstream:        {http.StatusBadGateway, "api_error"},
	fault.Unavailable:     {http.StatusServiceUnavailable, "api_error"},
	fault.Timeout:         {http.StatusGatewayTimeout, "timeout_error"},
}

type errorBody struct {
	Type      string      `json:"type"`
	Error     errorObject `json:"error"`
	RequestID string      `json:"request_id,omitempty"`
}

type errorObject struct {
	Type    string       `json:"type"`
	Message string       `json:"message"`
	Details errorDetails `json:"details"`
}

type errorDetails struct {
	Code    string         `json:"error_code"`
	Field   string         `json:"field,omitempty"`
	Reasons []fault.Reason `json:"reasons,omitempty"`
	Action  *fault.Action  `json:"action,omitempty"`
	Limit   *fault.Limit   `json:"limit,omitempty"`
}

// ErrorBody is the status and JSON body that tell a client of the Messages API of err. The message is the public
// sentence with the field and the reasons after it; what the provider itself said against the request
// (upstream_rejected) is passed on in its own words, type and status. Nothing private is in it.
func ErrorBody(err *fault.Error, requestID string) (status int, body []byte) {
	status, o := shape(err)
	b, e := json.Marshal(errorBody{Type: "error", Error: o, RequestID: requestID})
	if e != nil {
		// Only a limit's time outside the years JSON can write gets here.
		o.Details = errorDetails{Code: o.Details.Code}
		b, _ = json.Marshal(errorBody{Type: "error", Error: o, RequestID: requestID})
	}
	return status, b
}

// ErrorEvent is the data of the error event that ends a stream which has already begun.
func ErrorEvent(err *fault.Error, requestID string) []byte {
	_, b := ErrorBody(err, requestID)
	return b
}

func shape(err *fault.Error) (status int, o errorObject) {
	s := shapes[fault.Internal]
	if int(err.Kind) < len(shapes) {
		s = shapes[err.Kind]
	}
	code := err.CodeOrKind()
	o = errorObject{Type: s.kind, Message: err.Public, Details: errorDetails{
		Code: code, Field: err.Field, Reasons: err.Reasons, Action: err.Action, Limit: err.Limit}}
	if code == "upstream_overloaded" {
		s.status, o.Type = StatusOverloaded, "overloaded_error"
	}
	if u := err.Upstream; code == "upstream_rejected" && u != nil {
		if u.Status >= 400 && u.Status < 500 {
			s.status = u.Status
		}
		if u.Type != "" {
			o.Type = u.Type
		}
		if u.Message != "" {
			o.Message = u.Message
		}
	}
	if o.Message == "" {
		o.Message = "The request failed (" + code + "). Try again; if it stays, tell us the request id."
	}
	if err.Field != "" {
		o.Message += " (field " + err.Field + ")"
	}
	for _, r := range err.Reasons {
		o.Message += " " + r.Code + ": " + r.Message
	}
	return s.status, o
}

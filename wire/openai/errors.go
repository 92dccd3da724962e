package openai

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// shapes maps a kind of fault to the status and error type of the API. Kinds the API has no word for get the nearest one
// that a client handles in the same way.
var shapes = [...]struct {
	status int
	kind   string
}{
	fault.Internal:        {http.StatusInternalServerError, "server_error"},
	fault.Invalid:         {http.StatusBadRequest, "invalid_request_error"},
	fault.Unauthenticated: {http.StatusUnauthorized, "authentication_error"},
	fault.Payment:         {http.StatusPaymentRequired, "insufficient_quota"},
	fault.Forbidden:       {http.StatusForbidden, "permission_error"},
	fault.NotFound:        {http.StatusNotFound, "invalid_request_error"},
	fault.Conflict:        {http.StatusConflict, "invalid_request_error"},
	fault.Gone:            {http.StatusNotFound, "invalid_request_error"},
	fault.TooLarge:        {http.StatusRequestEntityTooLarge, "invalid_request_error"},
	fault.Unprocessable:   {http.StatusBadRequest, "invalid_request_error"},
	fault.RateLimited:     {http.StatusTooManyRequests, "rate_limit_error"},
	fault.Canceled:        {499, "server_error"},
	fault.Unsupported:     {http.StatusBadRequest, "invalid_request_error"}, // a 501 would be retried
	fault.Upstream:        {http.StatusBadGateway, "server_error"},
	fault.Unavailable:     {http.StatusServiceUnavailable, "server_error"},
	fault.Timeout:         {http.StatusGatewayTimeout, "server_error"},
}

type errorObject struct {
	Message string        `json:"message"`
	Type    string        `json:"type"`
	Param   *string       `json:"param"`
	Code    string        `json:"code"`
	Gateway *errorGateway `json:"x_gateway,omitempty"`
}

// errorGateway is what the API has no member for; clients tolerate further members.
type errorGateway struct {
	Reasons   []fault.Reason `json:"reasons,omitempty"`
	Action    *fault.Action  `json:"action,omitempty"`
	Limit     *fault.Limit   `json:"limit,omitempty"`
	RequestID string         `json:"request_id,omitempty"`
}

// ErrorBody is the status and JSON body that tell a client of err. The message is the public sentence with the reasons
// after it; what the provider itself said against the request (upstream_rejected) is passed on in its own words, type,
// code and status. Nothing private is in it.
func ErrorBody(err *fault.Error, requestID string) (status int, body []byte) {
	status, o := shape(err, requestID)
	b, e := json.Marshal(struct {
		Error errorObject `json:"error"`
	}{o})
	if e != nil {
		// Only a limit's time outside the years JSON can write gets here.
		o.Gateway = nil
		b, _ = json.Marshal(struct {
			Error errorObject `json:"error"`
		}{o})
	}
	return status, b
}

func shape(err *fault.Error, requestID string) (status int, o errorObject) {
	s := shapes[fault.Internal]
	if int(err.Kind) < len(shapes) {
		s = shapes[err.Kind]
	}
	o = errorObject{Message: err.Public, Type: s.kind, Code: err.CodeOrKind()}
	if err.Field != "" {
		param := fieldPath(err.Field)
		o.Param = &param
	}
	if u := err.Upstream; o.Code == "upstream_rejected" && u != nil {
		if u.Status >= 400 && u.Status < 500 {
			s.status = u.Status
		}
		if u.Type != "" {
			o.Type = u.Type
		}
		if u.Code != "" {
			o.Code = u.Code
		}
		if u.Message != "" {
			o.Message = u.Message
		}
		if u.Param != "" && o.Param == nil {
			o.Param = &u.Param
		}
	}
	if o.Message == "" {
		o.Message = "The request failed (" + o.Code + "). Try again; if it stays, tell us the request id."
	}
	for _, r := range err.Reasons {
		o.Message += " " + r.Code + ": " + r.Message
	}
	if len(err.Reasons) > 0 || err.Action != nil || err.Limit != nil || requestID != "" {
		o.Gateway = &errorGateway{Reasons: err.Reasons, Action: err.Action, Limit: err.Limit, RequestID: requestID}
	}
	return s.status, o
}

// fieldPath writes a JSON pointer the way the API names fields: messages[0].content.
func fieldPath(pointer string) string {
	var out []byte
	for i := 0; i < len(pointer); {
		j := i + 1
		for j < len(pointer) && pointer[j] != '/' {
			j++
		}
		token := pointer[i+1 : j]
		if _, err := strconv.Atoi(token); err == nil && len(out) > 0 {
			out = append(append(append(out, '['), token...), ']')
		} else {
			if len(out) > 0 {
				out = append(out, '.')
			}
			out = append(out, token...)
		}
		i = j
	}
	return string(out)
}

// ChatErrorEvent is the data of the event that ends a chat completions stream which has already begun. No [DONE] follows it.
func ChatErrorEvent(err *fault.Error, requestID string) []byte {
	_, b := ErrorBody(err, requestID)
	return b
}

// ParseError reads a provider's error body, or the data of an error event, in every shape known of this API and its
// dialects. A type that is not told at all is the code.
func ParseError(body []byte) fault.UpstreamDetail {
	s := jsonscan.Scanner{B: body}
	var d fault.UpstreamDetail
	switch s.Space() {
	case '{':
		d = errorAt(&s, true)
	case '[':
		s.Array(func(n int) {
			if n == 0 {
				d = errorAt(&s, true)
				return
			}
			s.Value()
		})
	}
	if s.Err != nil {
		return fault.UpstreamDetail{}
	}
	return d
}

// errorAt reads the object at s. outer says that the error may stand in a member of it.
func errorAt(s *jsonscan.Scanner, outer bool) (d fault.UpstreamDetail) {
	typed, flat := false, false
	var inner *fault.UpstreamDetail
	s.Members(func(name []byte) {
		switch string(name) {
		case "error":
			if !outer || s.Space() == 'n' {
				s.Value()
				return
			}
			if s.Space() == '"' {
				inner = &fault.UpstreamDetail{Message: s.String()}
				return
			}
			e := errorAt(s, false)
			inner = &e
		case "response":
			if !outer {
				s.Value()
				return
			}
			if e := errorAt(s, true); e != (fault.UpstreamDetail{}) {
				inner = &e
			}
		case "type":
			typed = true
			if d.Type = s.String(); d.Type == "error" || outer && len(d.Type) > 9 && d.Type[:9] == "response." {
				typed, flat, d.Type = false, true, ""
			}
		case "code":
			if s.Space() == '"' {
				d.Code = s.String()
			} else if r := s.Value(); s.Err == nil && s.B[r.Start] != 'n' {
				d.Code = clip(string(r.In(s.B)))
			}
		case "param":
			d.Param = s.String()
		case "message", "detail":
			if s.Space() == '"' {
				d.Message = s.String()
			} else if r := s.Value(); s.Err == nil && s.B[r.Start] != 'n' && d.Message == "" {
				d.Message = string(r.In(s.B))
			}
		default:
			s.Value()
		}
	})
	if inner != nil {
		return *inner
	}
	if outer && !flat && d.Message == "" {
		return fault.UpstreamDetail{} // no error at all, such as a response object with an id
	}
	if !typed {
		d.Type = d.Code
	}
	return d
}

// overloaded reports whether an error says that asking again in a moment will do.
func overloaded(d fault.UpstreamDetail) bool {
	for _, w := range [...]string{d.Type, d.Code} {
		switch w {
		case "overloaded_error", "server_overloaded", "engine_overloaded", "overloaded", "service_unavailable", "slow_down", "503", "529":
			return true
		}
	}
	return false
}

// errorFault is the fault for an error in the middle of a stream.
func errorFault(d fault.UpstreamDetail) *fault.Error {
	e := fault.New(fault.Upstream, opStream, "upstream_error", "The provider reported an error in the middle of its answer. What came so far is incomplete; try again.")
	if overloaded(d) {
		e.Kind, e.Code = fault.Unavailable, "upstream_overloaded"
		e.Public = "The provider is overloaded and broke off its answer. What came so far is incomplete; try again in a moment."
	}
	e.Upstream = &d
	return e
}

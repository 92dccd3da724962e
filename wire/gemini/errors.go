package gemini

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// Failure is what a provider's error object says; fields it does not have are zero.
type Failure struct {
	Code       int    // the HTTP status it names
	Status     string // google.rpc.Code in capitals, such as RESOURCE_EXHAUSTED
	Message    string
	RetryAfter time.Duration // of its RetryInfo
}

// ParseError reads a provider's error body, or the chunk of an error within a stream. An array around it, which the endpoint
// compatible with others sends, is looked through. Vertex AI answers for other publishers in their shape: a type stands for
// the status then.
func ParseError(body []byte) Failure {
	var f Failure
	s := jsonscan.Scanner{B: body}
	object := func() {
		s.Members(func(name []byte) {
			if string(name) != "error" {
				s.Value()
				return
			}
			s.Members(func(name []byte) { f.member(&s, name) })
		})
	}
	if s.Space() == '[' {
		s.Array(func(n int) {
			if n > 0 {
				s.Value()
				return
			}
			object()
		})
	} else {
		object()
	}
	if s.Err != nil {
		return Failure{}
	}
	return f
}

func (f *Failure) member(s *jsonscan.Scanner, name []byte) {
	switch string(name) {
	case "code":
		n, _ := s.Int(999)
		f.Code = int(n)
	case "status":
		f.Status = s.String()
	case "type":
		if t := s.String(); f.Status == "" {
			f.Status = t
		}
	case "message":
		f.Message = s.String()
	case "details":
		s.Elements(func(int) {
			s.Members(func(name []byte) {
				if string(name) != "retryDelay" {
					s.Value()
					return
				}
				f.RetryAfter = max(f.RetryAfter, delay(s.String()))
			})
		})
	default:
		s.Value()
	}
}

// maxDelay bounds what a provider may tell us to wait.
const maxDelay = 24 * time.Hour

// delay reads a google.protobuf.Duration, such as 17s or 1.5s.
func delay(v string) time.Duration {
	n, ok := strings.CutSuffix(v, "s")
	sec, err := strconv.ParseFloat(n, 64)
	if !ok || err != nil || !(sec > 0) {
		return 0
	}
	if sec > maxDelay.Seconds() {
		return maxDelay
	}
	return time.Duration(sec * float64(time.Second))
}

// errorEvent is the fault for an error object within a stream.
func errorEvent(data []byte) *fault.Error {
	said := ParseError(data)
	e := fault.New(fault.Upstream, opStream, "upstream_error", "The provider reported an error in the middle of its answer. What came so far is incomplete; try again.")
	if said.Status == "UNAVAILABLE" || said.Status == "RESOURCE_EXHAUSTED" || said.Code == http.StatusServiceUnavailable || said.Code == http.StatusTooManyRequests {
		e.Kind, e.Code = fault.Unavailable, "upstream_overloaded"
		e.Public = "The provider is overloaded and broke off its answer. What came so far is incomplete; try again in a moment."
	}
	e.RetryAfter = said.RetryAfter
	e.Upstream = &fault.UpstreamDetail{Type: said.Status, Message: said.Message}
	return e
}

// shapes maps a kind of fault to the HTTP status and the google.rpc.Code a client of this API handles in the same way.
var shapes = [...]struct {
	status int
	word   string
}{
	fault.Internal:        {http.StatusInternalServerError, "INTERNAL"},
	fault.Invalid:         {http.StatusBadRequest, "INVALID_ARGUMENT"},
	fault.Unauthenticated: {http.StatusUnauthorized, "UNAUTHENTICATED"},
	fault.Payment:         {http.StatusPaymentRequired, "FAILED_PRECONDITION"},
	fault.Forbidden:       {http.StatusForbidden, "PERMISSION_DENIED"},
	fault.NotFound:        {http.StatusNotFound, "NOT_FOUND"},
	fault.Conflict:        {http.StatusConflict, "ABORTED"},
	fault.Gone:            {http.StatusNotFound, "NOT_FOUND"},
	fault.TooLarge:        {http.StatusRequestEntityTooLarge, "INVALID_ARGUMENT"},
	fault.Unprocessable:   {http.StatusBadRequest, "INVALID_ARGUMENT"},
	fault.RateLimited:     {http.StatusTooManyRequests, "RESOURCE_EXHAUSTED"},
	fault.Canceled:        {499, "CANCELLED"},
	fault.Unsupported:     {http.StatusBadRequest, "INVALID_ARGUMENT"}, // a 501 would be retried
	fault.Upstream:        {http.StatusBadGateway, "INTERNAL"},
	fault.Unavailable:     {http.StatusServiceUnavailable, "UNAVAILABLE"},
	fault.Timeout:         {http.StatusGatewayTimeout, "DEADLINE_EXCEEDED"},
}

type errorBody struct {
	Error errorObject `json:"error"`
}

type errorObject struct {
	Code    int           `json:"code"`
	Message string        `json:"message"`
	Status  string        `json:"status"`
	Details []errorDetail `json:"details,omitempty"`
}

type errorDetail struct {
	Type       string            `json:"@type"`
	Reason     string            `json:"reason,omitempty"`
	Domain     string            `json:"domain,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Violations []violation       `json:"fieldViolations,omitempty"`
	RetryDelay string            `json:"retryDelay,omitempty"`
	RequestID  string            `json:"requestId,omitempty"`
}

type violation struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

const detailPrefix = "type.googleapis.com/google.rpc."

// ErrorBody is the status and JSON body that tell a client of the Gemini API of err. The message is the public sentence with
// the field and the reasons after it; our code is the reason of an ErrorInfo; a time to wait is a RetryInfo, where these
// clients look for it. What the provider itself said against the request (upstream_rejected) is passed on in its own words.
// Nothing private is in it.
func ErrorBody(err *fault.Error, requestID string) (status int, body []byte) {
	s := shapes[fault.Internal]
	if int(err.Kind) < len(shapes) {
		s = shapes[err.Kind]
	}
	code := err.CodeOrKind()
	o := errorObject{Message: err.Public}
	if u := err.Upstream; code == "upstream_rejected" && u != nil {
		if u.Status >= 400 && u.Status < 500 {
			s.status = u.Status
		}
		if u.Type != "" && u.Type == strings.ToUpper(u.Type) {
			s.word = u.Type
		}
		if u.Message != "" {
			o.Message = u.Message
		}
	}
	if o.Message == "" {
		o.Message = "The request failed (" + code + "). Try again; if it stays, tell us the request id."
	}
	info := errorDetail{Type: detailPrefix + "ErrorInfo", Reason: code, Domain: "gateway"}
	if a := err.Action; a != nil {
		info.Metadata = map[string]string{"action": a.Kind, "provider": a.Provider, "url": a.URL}
	}
	if l := err.Limit; l != nil {
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		info.Metadata["limit"], info.Metadata["cap"], info.Metadata["used"] = l.Scope, l.Cap, l.Used
	}
	o.Details = append(o.Details, info)
	if err.Field != "" {
		o.Details = append(o.Details, errorDetail{Type: detailPrefix + "BadRequest", Violations: []violation{{Field: err.Field, Description: err.Public}}})
		o.Message += " (field " + err.Field + ")"
	}
	for _, r := range err.Reasons {
		o.Message += " " + r.Code + ": " + r.Message
	}
	if err.RetryAfter > 0 {
		o.Details = append(o.Details, errorDetail{Type: detailPrefix + "RetryInfo", RetryDelay: strconv.FormatFloat(err.RetryAfter.Seconds(), 'f', -1, 64) + "s"})
	}
	if requestID != "" {
		o.Details = append(o.Details, errorDetail{Type: detailPrefix + "RequestInfo", RequestID: requestID})
	}
	o.Code, o.Status = s.status, s.word
	b, _ := json.Marshal(errorBody{o}) // strings and numbers always marshal
	return s.status, b
}

// ErrorEvent is the data of the chunk that ends a stream which has already begun.
func ErrorEvent(err *fault.Error, requestID string) []byte {
	_, b := ErrorBody(err, requestID)
	return b
}

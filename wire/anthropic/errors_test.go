package anthropic

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
)

func TestErrorBody(t *testing.T) {
	for _, c := range []struct {
		name    string
		err     *fault.Error
		status  int
		kind    string
		message string
	}{
		{"invalid", fault.Invalidf("op", "/model", "model is missing."), 400, "invalid_request_error", "model is missing. (field /model)"},
		{"unauthenticated", fault.New(fault.Unauthenticated, "op", "bad_token", "Log in."), 401, "authentication_error", "Log in."},
		{"payment", &fault.Error{Kind: fault.Payment, Code: "byok_required", Public: "Add a key.", Action: &fault.Action{Kind: "add_key", URL: "/keys"}}, 402, "billing_error", "Add a key."},
		{"forbidden with reasons", &fault.Error{Kind: fault.Forbidden, Code: "denied", Public: "No.", Reasons: []fault.Reason{{Code: "office_hours", Message: "Closed now."}, {Code: "b", Message: "B."}}}, 403, "permission_error", "No. office_hours: Closed now. b: B."},
		{"not found", fault.New(fault.NotFound, "op", "", "No such model."), 404, "not_found_error", "No such model."},
		{"gone", fault.New(fault.Gone, "op", "", "Gone."), 404, "not_found_error", "Gone."},
		{"conflict", fault.New(fault.Conflict, "op", "", "Moved on."), 409, "conflict_error", "Moved on."},
		{"too large", fault.New(fault.TooLarge, "op", "", "Too big."), 413, "request_too_large", "Too big."},
		{"unprocessable", fault.New(fault.Unprocessable, "op", "", "Not so.").At("/a"), 400, "invalid_request_error", "Not so. (field /a)"},
		{"rate limited", &fault.Error{Kind: fault.RateLimited, Public: "Slow down.", Limit: &fault.Limit{Scope: "org", Cap: "1", Used: "1", ResetsAt: time.Unix(0, 0).UTC()}}, 429, "rate_limit_error", "Slow down."},
		{"internal", fault.From(errors.New("secret text")), 500, "api_error", ""},
		{"unsupported", fault.New(fault.Unsupported, "op", "", "Cannot."), 400, "invalid_request_error", "Cannot."},
		{"upstream", fault.New(fault.Upstream, "op", "upstream_error", "It failed."), 502, "api_error", "It failed."},
		{"unavailable", fault.New(fault.Unavailable, "op", "store_away", "Wait."), 503, "api_error", "Wait."},
		{"overloaded", fault.New(fault.Unavailable, "op", "upstream_overloaded", "Wait."), 529, "overloaded_error", "Wait."},
		{"timeout", fault.New(fault.Timeout, "op", "", "Late."), 504, "timeout_error", "Late."},
		{"rejected", &fault.Error{Kind: fault.Invalid, Code: "upstream_rejected", Public: "P.", Upstream: &fault.UpstreamDetail{Status: 404, Type: "not_found_error", Message: "model: x"}}, 404, "not_found_error", "model: x"},
		{"rejected without words", &fault.Error{Kind: fault.Invalid, Code: "upstream_rejected", Public: "P.", Upstream: &fault.UpstreamDetail{Status: 422}}, 422, "invalid_request_error", "P."},
		{"key rejected says nothing of the provider's words", &fault.Error{Kind: fault.Forbidden, Code: "provider_key_rejected", Public: "Check the key.", Upstream: &fault.UpstreamDetail{Status: 401, Type: "authentication_error", Message: "invalid x-api-key"}}, 403, "permission_error", "Check the key."},
		{"no public sentence", &fault.Error{Kind: fault.Internal, Cause: errors.New("secret text")}, 500, "api_error", "The request failed (internal). Try again; if it stays, tell us the request id."},
		{"limit out of range", &fault.Error{Kind: fault.RateLimited, Public: "Slow.", Limit: &fault.Limit{ResetsAt: time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)}}, 429, "rate_limit_error", "Slow."},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body := ErrorBody(c.err, "req_7")
			var got struct {
				Type  string
				Error struct {
					Type, Message string
					Details       struct {
						Code string `json:"error_code"`
					}
				}
				RequestID string `json:"request_id"`
			}
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			if status != c.status || got.Type != "error" || got.Error.Type != c.kind || got.RequestID != "req_7" || got.Error.Details.Code != c.err.CodeOrKind() {
				t.Errorf("%d %s", status, body)
			}
			if c.message != "" && got.Error.Message != c.message {
				t.Errorf("message %q, want %q", got.Error.Message, c.message)
			}
			if strings.Contains(string(body), "secret text") {
				t.Error("the private cause is told")
			}
			if event := ErrorEvent(c.err, "req_7"); string(event) != string(body) || strings.ContainsAny(string(event), "\r\n") {
				t.Errorf("event %s", event)
			}
		})
	}
}

func TestEveryKindHasAShape(t *testing.T) {
	for k := fault.Internal; k.String() != "unknown"; k++ {
		if status, body := ErrorBody(fault.New(k, "", "", "x"), ""); status < 400 || !strings.Contains(string(body), `_`) {
			t.Errorf("kind %v: %d %s", k, status, body)
		}
	}
}

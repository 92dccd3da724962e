package admin

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// writer is a PolicyAuthor that knows nothing.
type writer struct{ PolicyAuthor }

func (writer) Complete(context.Context, policy.Source, policy.Position) ([]policy.Completion, error) {
	return []policy.Completion{}, nil
}

func (writer) Hover(context.Context, policy.Source, policy.Position) (*policy.HoverText, error) {
	return nil, nil
}

func (writer) Definition(context.Context, policy.Source, policy.Position) (*policy.Position, error) {
	return nil, nil
}

func (writer) Check(context.Context, policy.Source) (policy.CheckReport, error) {
	return policy.CheckReport{OK: true}, nil
}

func (writer) Test(context.Context, policy.Source) (policy.TestReport, error) {
	return policy.TestReport{OK: true}, nil
}

func (writer) Format(context.Context, policy.File) (string, error) { return "", nil }

func (writer) Evaluate(context.Context, policy.Source, json.RawMessage) (policy.Evaluation, error) {
	return policy.Evaluation{}, nil
}

type nothingKnown struct{}

func (nothingKnown) Capabilities(tenancy.OrgID) []string   { return nil }
func (nothingKnown) Registered(tenancy.OrgID) []Registered { return nil }
func (nothingKnown) Models() []string                      { return nil }
func (nothingKnown) HasProvider(string) bool               { return false }

// TestAnswersCarryTheVersion sends the version of a text in every form an editor may keep it in: what is asked last may be answered
// first, and the editor has to know.
func TestAnswersCarryTheVersion(t *testing.T) {
	a := &api{Config{Known: nothingKnown{}, Policies: PolicyConfig{Author: writer{}}}}
	routes := map[string]func(echo.Context, tenancy.Tenant) error{
		"complete": a.completePolicy, "hover": a.hoverPolicy, "definition": a.policyDefinition, "check": a.checkPolicy, "test": a.testPolicy, "evaluate": a.evaluatePolicy,
	}
	for name, route := range routes {
		for _, version := range []string{"", "7", `"a-7"`, `{"n":7}`, "12345678901234567890"} {
			body := `{"source":{}`
			if version != "" {
				body += `,"version":` + version
			}
			r := httptest.NewRequest("POST", "/", strings.NewReader(body+"}"))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			if err := route(echo.New().NewContext(r, w), tenancy.Tenant{}); err != nil {
				t.Fatal(name, err)
			}
			var got struct{ Version json.RawMessage }
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || string(got.Version) != version {
				t.Errorf("%s: %s came back as %s, %v", name, version, got.Version, err)
			}
		}
	}
	// Formatting takes the text itself.
	r := httptest.NewRequest("POST", "/", strings.NewReader(`{"name":"org.rego","text":"x","version":7}`))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	if err := a.formatPolicy(echo.New().NewContext(r, w), tenancy.Tenant{}); err != nil || !strings.HasPrefix(w.Body.String(), `{"version":7,`) {
		t.Errorf("format: %s, %v", w.Body, err)
	}
}

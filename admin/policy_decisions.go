package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// This file reads the decision log: a page of it, all of it, and one decision with its reasons.

// decisionLine is a line of the log as it is shown.
type decisionLine struct {
	policy.LoggedDecision
	Outcome string `json:"outcome"`
}

func shownLines(list []policy.LoggedDecision) []decisionLine {
	out := make([]decisionLine, len(list))
	for i, l := range list {
		out[i] = decisionLine{l, l.Outcome()}
	}
	return out
}

// decisionQuery reads the conditions of ?from=&to=&action=&allow=&user=&capability=&before=.
func decisionQuery(c echo.Context, t tenancy.Tenant) (policy.DecisionQuery, error) {
	const op = "admin.decisionQuery"
	zone, err := time.LoadLocation(t.Org.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	q := policy.DecisionQuery{Action: c.QueryParam("action"), User: tenancy.UserID(c.QueryParam("user")), Capability: c.QueryParam("capability"), Before: c.QueryParam("before")}
	if q.From, err = when(c, "from", zone, time.Time{}); err != nil {
		return q, err
	}
	if q.To, err = when(c, "to", zone, time.Time{}); err != nil {
		return q, err
	}
	if q.Action != "" && q.Action != "chat" && q.Action != "tool" {
		return q, fault.Invalidf(op, "/action", "action is chat or tool.")
	}
	if v := c.QueryParam("allow"); v != "" {
		allow, err := strconv.ParseBool(v)
		if err != nil {
			return q, fault.Invalidf(op, "/allow", "allow is true or false.")
		}
		q.Allow = &allow
	}
	return q, nil
}

// policyDecisions reads a page of the decision log, newest first: the conditions of decisionQuery and &limit=.
func (a *api) policyDecisions(c echo.Context, t tenancy.Tenant) error {
	q, err := decisionQuery(c, t)
	if err != nil {
		return err
	}
	limit, err := number(c, "limit", 100, 1000)
	if err != nil {
		return err
	}
	q.Limit = int(limit)
	list, next, err := a.Policies.Decisions.Decisions(c.Request().Context(), t.Org.ID, q)
	if err != nil {
		return err
	}
	return told(c, map[string]any{"decisions": shownLines(list), "next": next})
}

// exportPage is how many lines an export holds in memory.
const exportPage = 250

// exportDecisions writes the whole log, newest first, one JSON object a line: page by page, so that it takes the same memory however
// long the log is. When a page cannot be read any more the connection is cut, so that what came is not taken for all there is.
func (a *api) exportDecisions(c echo.Context, t tenancy.Tenant) error {
	q, err := decisionQuery(c, t)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	if q.To.IsZero() {
		q.To = a.Clock() // what is decided while we write would make the end depend on how fast somebody reads
	}
	q.Limit = exportPage
	res := c.Response()
	enc := json.NewEncoder(res)
	enc.SetEscapeHTML(false)
	for first := true; ; first = false {
		list, next, err := a.Policies.Decisions.Decisions(ctx, t.Org.ID, q)
		if err != nil && first {
			return err
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if first {
			res.Header().Set("Content-Type", "application/jsonl")
			res.Header().Set("Content-Disposition", `attachment; filename="decisions.jsonl"`)
			res.WriteHeader(http.StatusOK)
		}
		for _, l := range shownLines(list) {
			if err := enc.Encode(l); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
		res.Flush()
		if next == "" {
			return nil
		}
		q.Before = next
	}
}

// standsInTheWay is one reason of a refusal.
type standsInTheWay struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Source  string `json:"source"`         // platform, settings, org
	Rule    string `json:"rule,omitempty"` // of the settings: the member, or the name of the row
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Alone   bool   `json:"alone"` // without it the question would pass
}

// wouldPass is for whom and with what the same question is allowed.
type wouldPass struct {
	Roles  []tenancy.Role `json:"roles"`
	Models []string       `json:"models"`
}

// decisionView is one decision with its reasons.
type decisionView struct {
	decisionLine
	Sentence  string             `json:"sentence"`
	Revised   int64              `json:"policyRevision"`
	Reasons   []standsInTheWay   `json:"reasons"`
	Fired     []policy.FiredRule `json:"fired"`
	WouldPass *wouldPass         `json:"wouldPass,omitempty"` // of what was refused, when the question is still known
	Masked    json.RawMessage    `json:"input,omitempty"`     // the question without what says too much of a person
}

// policyDecision explains one decision by the revision that made it.
func (a *api) policyDecision(c echo.Context, t tenancy.Tenant) error {
	ctx := c.Request().Context()
	l, err := a.Policies.Decisions.Decision(ctx, t.Org.ID, c.Param("id"))
	if err != nil {
		return err
	}
	v := decisionView{decisionLine: decisionLine{l, l.Outcome()}, Reasons: []standsInTheWay{}, Fired: []policy.FiredRule{}}
	v.Revised = revisionOf(l.Revision)
	if len(l.Input) > 0 {
		if err := a.explain(ctx, t.Org.ID, &v); err != nil {
			return err
		}
	}
	for _, code := range l.Codes { // what no evaluation of settings and Rego gives again is the platform's own
		if !slices.ContainsFunc(v.Reasons, func(r standsInTheWay) bool { return r.Code == code }) {
			v.Reasons = append(v.Reasons, standsInTheWay{Code: code, Source: "platform", Message: "This is a rule of the platform; no policy of the organisation can lift it."})
		}
	}
	for i := range v.Reasons {
		v.Reasons[i].Alone = len(v.Reasons) == 1
	}
	v.Sentence = sentenceOf(v)
	v.Masked, v.Input = masked(l.Input), nil
	return told(c, v)
}

// revisionOf reads the organisation's revision out of a decision's label, "p<platform>.o<revision>"; 0 when it names none.
func revisionOf(label string) int64 {
	i := strings.LastIndex(label, ".o")
	if i < 0 {
		return 0
	}
	n, err := strconv.ParseInt(label[i+2:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// explain asks the revision again, as a whole, and settings and Rego each alone: Rego is not asked about what the settings refuse.
func (a *api) explain(ctx context.Context, org tenancy.OrgID, v *decisionView) error {
	var s policy.Source
	if v.Revised > 0 {
		r, err := a.Policies.Revisions.Revision(ctx, org, v.Revised)
		if err != nil {
			return err
		}
		s = r.Source
	}
	whole, err := a.Policies.Author.Evaluate(ctx, s, v.Input)
	switch {
	case fault.Is(err, fault.Unprocessable): // an old policy, or an old question, that today's checks do not take
		return nil
	case err != nil:
		return err
	}
	v.Fired = whole.Fired
	asked := []policy.Evaluation{whole}
	if !whole.Decision.Allow && len(s.Files) > 0 {
		alone, err := a.Policies.Author.Evaluate(ctx, policy.Source{Files: s.Files}, v.Input)
		if err != nil {
			return err
		}
		asked = append(asked, alone)
	}
	if v.Allow {
		return nil
	}
	for _, e := range asked {
		for _, d := range e.Decision.Deny {
			if slices.ContainsFunc(v.Reasons, func(r standsInTheWay) bool { return r.Code == d.Code && r.Message == d.Message }) {
				continue
			}
			r := standsInTheWay{Code: d.Code, Message: d.Message, Source: d.Source}
			for _, f := range e.Fired {
				if d.Source == policy.FileSettings && f.File == policy.FileSettings && strings.Contains(f.Message, d.Message) {
					r.Rule = f.Rule
					break
				}
				if f.File != policy.FileSettings && strings.Contains(f.Value, strconv.Quote(d.Code)) {
					r.Rule, r.File, r.Line = f.Rule, f.File, f.Line
					break
				}
			}
			v.Reasons = append(v.Reasons, r)
		}
	}
	if len(v.Reasons) == 0 { // the platform's refusal: other people and models do not change it here
		return nil
	}
	pass, err := a.passes(ctx, s, v.Input)
	v.WouldPass = &pass
	return err
}

// triedModels is how many models an explanation tries.
const triedModels = 20

// passes asks the same question for every role, and with every model this gateway knows.
func (a *api) passes(ctx context.Context, s policy.Source, input json.RawMessage) (wouldPass, error) {
	out := wouldPass{Roles: []tenancy.Role{}, Models: []string{}}
	allows := func(change func(doc map[string]any)) (bool, error) {
		var doc map[string]any
		if err := json.Unmarshal(input, &doc); err != nil {
			return false, nil
		}
		change(doc)
		raw, err := json.Marshal(doc)
		if err != nil {
			return false, fault.From(err)
		}
		e, err := a.Policies.Author.Evaluate(ctx, s, raw)
		return err == nil && e.Decision.Allow, err
	}
	for _, role := range []tenancy.Role{tenancy.Viewer, tenancy.Editor, tenancy.OrgAdmin, tenancy.OrgOwner} {
		ok, err := allows(func(doc map[string]any) {
			if user, is := doc["user"].(map[string]any); is {
				user["role"], user["tier"] = string(role), role.Tier().String()
			}
		})
		if err != nil {
			return out, err
		}
		if ok {
			out.Roles = append(out.Roles, role)
		}
	}
	models := a.Known.Models()
	for _, m := range models[:min(len(models), triedModels)] {
		if strings.HasSuffix(m, "*") { // a family of models, which is no model
			continue
		}
		ok, err := allows(func(doc map[string]any) {
			if request, is := doc["request"].(map[string]any); is {
				request["model"] = m
			}
		})
		if err != nil {
			return out, err
		}
		if ok {
			out.Models = append(out.Models, m)
		}
	}
	return out, nil
}

// sentenceOf says in one sentence what was decided and why.
func sentenceOf(v decisionView) string {
	what := "A chat with " + v.Model
	if v.Action == "tool" {
		what = "A call of " + v.Capability
	}
	by := fmt.Sprintf("revision %d", v.Revised)
	if v.Revised == 0 {
		by = "the platform's rules"
	}
	switch v.Outcome {
	case policy.OutcomeAllowed:
		return fmt.Sprintf("%s was allowed by %s.", what, by)
	case policy.OutcomeAsked:
		return fmt.Sprintf("%s was allowed by %s once a person approves it.", what, by)
	case policy.OutcomeFailed:
		return fmt.Sprintf("%s was refused because %s could not be evaluated.", what, by)
	}
	if len(v.Reasons) == 0 {
		return fmt.Sprintf("%s was refused by %s.", what, by)
	}
	why := make([]string, len(v.Reasons))
	for i, r := range v.Reasons {
		why[i] = r.Code
		switch {
		case r.File != "":
			why[i] += fmt.Sprintf(" (%s:%d)", r.File, r.Line)
		case r.Source == policy.FileSettings && r.Rule != "":
			why[i] += fmt.Sprintf(" (settings, %s)", r.Rule)
		}
	}
	return fmt.Sprintf("%s was refused by %s: %s.", what, by, strings.Join(why, ", "))
}

// masked is a question as it is shown: addresses keep their domain, arguments of calls their shape.
func masked(input json.RawMessage) json.RawMessage {
	var doc map[string]any
	if len(input) == 0 || json.Unmarshal(input, &doc) != nil {
		return nil
	}
	if user, ok := doc["user"].(map[string]any); ok {
		if address, ok := user["email"].(string); ok && address != "" {
			_, domain, _ := strings.Cut(address, "@")
			user["email"] = "***@" + domain
		}
	}
	if auth, ok := doc["auth"].(map[string]any); ok && auth["tokenId"] != nil {
		auth["tokenId"] = "***"
	}
	if capability, ok := doc["capability"].(map[string]any); ok {
		capability["args"] = shapeOf(capability["args"])
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		return nil
	}
	return raw
}

// shapeOf replaces every value in it by what sort of value it is.
func shapeOf(v any) any {
	switch x := v.(type) {
	case map[string]any:
		out := maps.Clone(x)
		for k, e := range out {
			out[k] = shapeOf(e)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = shapeOf(e)
		}
		return out
	case string:
		return fmt.Sprintf("(text of %d)", utf8.RuneCountInString(x))
	case float64:
		return "(number)"
	case bool:
		return "(true or false)"
	}
	return nil
}

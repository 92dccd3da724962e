package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// What a line of the decision log is about.
const (
	loggedChat = "chat"
	loggedTool = "tool"
)

// logChat keeps a decision about a turn: every refusal and failure, and a sample of what was allowed; all of them where the
// organisation wants an audit, and where a policy that is being tried says something else. It reports whether the decision may stand:
// false when it has to be on record and there is no room.
func (g *Gateway) logChat(t *turn, in policy.Input, d policy.Decision, err error) bool {
	org, audited := t.tenant.Org.ID, in.Settings.AuditRequired
	weight := 1
	if err == nil && d.Allow && !audited {
		weight = g.allows.take(org, g.Clock())
	}
	tried := g.Shadows != nil && g.Shadows.Active(org)
	if weight == 0 && !tried {
		return true
	}
	line := g.line(t, loggedChat, d, err)
	keep := func(a *policy.ShadowAnswer) bool {
		if line.Weight, line.Shadow = weight, a; weight == 0 {
			if a == nil || !a.Differs {
				return true
			}
			line.Weight = 1
			g.allows.give(org)
		}
		if g.Project != nil {
			line.Input = g.Project.ProjectChat(in)
		}
		return g.keep(org, line)
	}
	switch {
	case !tried:
		return keep(nil) || !audited
	case audited: // the record does not wait for what is only tried
		g.Shadows.Chat(in, d, err != nil, func(*policy.ShadowAnswer) {})
		return keep(nil)
	}
	g.Shadows.Chat(in, d, err != nil, func(a *policy.ShadowAnswer) { keep(a) })
	return true
}

// logTool keeps a decision about a call; all of them, because trying a new policy on what was asked is only as good as what was kept.
// asked says that the call is allowed once a person has approved it. The result is that of logChat.
func (g *Gateway) logTool(t *turn, in policy.ToolInput, d policy.Decision, asked bool, err error) bool {
	org, audited := t.tenant.Org.ID, in.Settings.AuditRequired
	line := g.line(t, loggedTool, d, err)
	line.Weight, line.Capability, line.Asked = 1, in.Capability.Name, asked
	keep := func(a *policy.ShadowAnswer) bool {
		if line.Shadow = a; g.Project != nil {
			line.Input = g.Project.ProjectTool(in)
		}
		return g.keep(org, line)
	}
	switch {
	case g.Shadows == nil || !g.Shadows.Active(org):
		return keep(nil) || !audited
	case audited:
		g.Shadows.Tool(in, d, err != nil, func(*policy.ShadowAnswer) {})
		return keep(nil)
	}
	g.Shadows.Tool(in, d, err != nil, func(a *policy.ShadowAnswer) { keep(a) })
	return true
}

func (g *Gateway) keep(org tenancy.OrgID, line policy.LoggedDecision) bool {
	return g.Decisions != nil && g.Decisions.Decided(org, line)
}

// The kinds of what a caller brings along and policy is asked about like capabilities.
const (
	kindClient = "client" // a tool the caller runs
	kindServer = "server" // a tool server the provider is to call
)

// askTool asks policy about one call and keeps the answer. What was switched off when the turn began stays so.
func (g *Gateway) askTool(ctx context.Context, t *turn, c policy.CapabilityInfo, step int, args json.RawMessage) (policy.Decision, error) {
	in, err := g.policyInput(ctx, t)
	if err != nil {
		return policy.Decision{}, err
	}
	began := g.Clock()
	q := policy.ToolInput{Input: in, Capability: c, Step: step, Args: args}
	d, err := g.Policy.DecideTool(ctx, q)
	g.Observer.Decided(g.Clock().Sub(began), d.Cached, d.Allow, err != nil)
	// It is asked first, because the answer can say it in the organisation's words.
	if err == nil && d.Allow && t.decision.Disabled(c.Name) {
		d.Allow, d.Deny = false, []fault.Reason{{Code: dispatch.DisabledByPolicy, Message: "The organisation has switched it off."}}
	}
	asked := err == nil && d.Allow && d.NeedsApproval(c.Name)
	switch recorded := g.logTool(t, q, d, asked, err); {
	case err == nil && !recorded:
		d.Allow, d.Deny = false, []fault.Reason{auditUnavailable}
	case asked && !c.Confirms:
		d.Allow, d.Deny = false, []fault.Reason{{Code: dispatch.ApprovalRequired, Message: "The organisation's policy wants a person to approve this, and this app cannot show a preview for " + c.Name + "."}}
	}
	return d, err
}

// offTool is why a request cannot be passed on without something its caller brings along: that is switched off.
type offTool struct{ name, kind string }

func (o offTool) Error() string { return o.name + " is switched off" }

// forced says which of the tools that have to go a request cannot do without.
func forced(t *turn, gone map[string]bool, err error) error {
	n := t.req.Native
	for _, name := range n.Tools {
		if !gone[name] {
			continue
		}
		if _, alone := n.RemoveTools(map[string]bool{name: true}); len(gone) == 1 || alone != nil {
			fe := *fault.From(err)
			fe.Cause = offTool{t.offName(name), kindClient}
			return &fe
		}
	}
	return err
}

// offName is the name under which a caller's own tool is switched off.
func (t *turn) offName(name string) string {
	if c := t.req.Native.CanonicalTool(name); t.decision.Disabled(c) {
		return c
	}
	return name
}

// refuseTool makes a refusal because of something the caller brings along a decision about just that. It then stands in the log under
// the id the caller is told, and says why in the words of the organisation's settings or Rego.
func (g *Gateway) refuseTool(ctx context.Context, t *turn, err error) error {
	var off offTool
	if !errors.As(err, &off) {
		return err
	}
	// Whose tool it is decides who may call it, so no tier stands in the way.
	d, failed := g.askTool(ctx, t, policy.CapabilityInfo{Name: off.name, Kind: off.kind, Tier: tenancy.TierViewer}, 1, nil)
	if failed != nil && d.ID == "" {
		return err
	}
	fe := *fault.From(err)
	fe.Reasons = d.Deny
	t.decision.ID, t.status = d.ID, Refused
	return &fe
}

// auditUnavailable refuses what cannot be put on record.
var auditUnavailable = fault.Reason{Code: "audit_unavailable", Message: "Your organisation wants every decision on record, and the decision log has no room at the moment, so this was refused. Try again in a moment."}

func (g *Gateway) line(t *turn, action string, d policy.Decision, err error) policy.LoggedDecision {
	line := policy.LoggedDecision{
		ID: d.ID, Action: action, At: g.Clock(), User: t.tenant.User, Role: t.tenant.Role, Model: t.req.Model, RunID: t.id,
		Allow: d.Allow && err == nil, Revision: d.Revision, Cached: d.Cached, Failed: err != nil, Micros: d.Elapsed.Microseconds(),
	}
	for _, r := range d.Deny {
		line.Codes = append(line.Codes, r.Code)
	}
	return line
}

// Sampling of allowed turns: at most one line per organisation and interval, which stands for all since the one before.
const (
	sampleEvery = time.Second
	sampledOrgs = 8192 // organisations whose count is kept; one that is pushed out begins anew
)

// sampler says which allowed decisions are kept.
type sampler struct {
	mu   sync.Mutex
	orgs *lru.Cache[tenancy.OrgID, *tally]
}

type tally struct {
	last    time.Time
	skipped int
}

func newSampler() *sampler {
	orgs, err := lru.New[tenancy.OrgID, *tally](sampledOrgs)
	if err != nil { // only for a size below one
		panic(err)
	}
	return &sampler{orgs: orgs}
}

// take returns how many decisions the one at hand stands for, 0 when it is not to be kept.
func (s *sampler) take(org tenancy.OrgID, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.orgs.Get(org)
	if !ok {
		t = &tally{}
		s.orgs.Add(org, t)
	}
	if !t.last.IsZero() && now.Sub(t.last) < sampleEvery {
		t.skipped++
		return 0
	}
	n := t.skipped + 1
	t.last, t.skipped = now, 0
	return n
}

// give undoes a skip: the decision is kept after all, on its own.
func (s *sampler) give(org tenancy.OrgID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.orgs.Get(org); ok && t.skipped > 0 {
		t.skipped--
	}
}

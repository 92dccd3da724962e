package gateway

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// What a line of the decision log is about.
const (
	loggedChat = "chat"
	loggedTool = "tool"
)

// logChat keeps a decision about a turn: every refusal and failure, and a sample of what was allowed.
func (g *Gateway) logChat(t *turn, in policy.Input, d policy.Decision, err error) {
	if g.Decisions == nil {
		return
	}
	weight := 1
	if err == nil && d.Allow {
		if weight = g.allows.take(t.tenant.Org.ID, g.Clock()); weight == 0 {
			return
		}
	}
	line := g.line(t, loggedChat, d, err, weight)
	if g.Project != nil {
		line.Input = g.Project.ProjectChat(in)
	}
	g.Decisions.Decided(t.tenant.Org.ID, line)
}

// logTool keeps a decision about a call; all of them, because trying a new policy on what was asked is only as good as what was kept.
func (g *Gateway) logTool(t *turn, in policy.ToolInput, d policy.Decision, err error) {
	if g.Decisions == nil {
		return
	}
	line := g.line(t, loggedTool, d, err, 1)
	line.Capability = in.Capability.Name
	if g.Project != nil {
		line.Input = g.Project.ProjectTool(in)
	}
	g.Decisions.Decided(t.tenant.Org.ID, line)
}

func (g *Gateway) line(t *turn, action string, d policy.Decision, err error, weight int) policy.LoggedDecision {
	line := policy.LoggedDecision{
		ID: d.ID, Action: action, At: g.Clock(), User: t.tenant.User, Role: t.tenant.Role, Model: t.req.Model, RunID: t.id,
		Allow: d.Allow && err == nil, Revision: d.Revision, Cached: d.Cached, Failed: err != nil, Micros: d.Elapsed.Microseconds(), Weight: weight,
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

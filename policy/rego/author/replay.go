package author

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
)

// maxExamples is how many ids are given of each sort.
const maxExamples = 20

// maxTrips is how many questions may use up their budget before the rest of a replay is given up as errors: a policy that is too
// expensive for this many is too expensive, and each of them costs as much as ten thousand others.
const maxTrips = 20

// platformCodes are the reasons of the platform's own rules. A decision they refused stays refused, whatever a policy says.
var platformCodes = map[string]bool{"org_suspended": true, "billing_unknown": true, "byok_only": true, "role_required": true, "tier_required": true}

// outcome is what a policy says about one decision.
type outcome struct {
	refused bool
	asked   bool
	failed  bool
	tripped bool // the budget was used up
	codes   []string
}

func (p *program) outcome(ctx context.Context, q *question) outcome {
	r := p.ask(ctx, q)
	o := outcome{refused: !r.verdict.Allow, failed: r.err != nil, tripped: r.err != nil && r.err.Code == codeBudget, asked: q.tool && slices.Contains(r.verdict.RequireApproval, q.name)}
	for _, d := range r.verdict.Deny {
		o.codes = append(o.codes, d.Code)
	}
	return o
}

// Replay asks a draft about decisions that were made, and counts what would change. A line without a question is counted in Total
// alone. Each line counts for its weight. Faults are those of Evaluate, and of ctx when it ends first.
func (a *Author) Replay(ctx context.Context, in policy.ReplayInput) (policy.Replay, error) {
	if err := a.replays.Acquire(ctx, 1); err != nil {
		return policy.Replay{}, fault.Wrap(fault.Timeout, "author.Replay", "timeout", "Other replays take all the room there is. Try again in a moment.", err)
	}
	defer a.replays.Release(1)
	began := a.clock()
	draft, err := a.load(ctx, in.Draft, "/source")
	if err != nil {
		return policy.Replay{}, err
	}
	live, err := a.load(ctx, in.Live, "/live")
	if err != nil {
		// What is in force may be older than today's checks; then nothing is known of what it asked for.
		live = &program{clock: a.clock}
	}
	t := newTally()
	seen := map[string]answers{}
	for _, l := range in.Lines {
		if err := ctx.Err(); err != nil {
			return policy.Replay{}, err
		}
		t.line(ctx, draft, live, seen, l)
	}
	for i, raw := range in.Self {
		q, err := readQuestion(raw, "/self")
		if err != nil {
			return policy.Replay{}, err
		}
		o := draft.outcome(ctx, q)
		if !o.refused {
			t.out.SelfRefused, t.out.SelfReasons = false, nil
			break
		}
		if i == 0 {
			t.out.SelfRefused, t.out.SelfReasons = true, o.codes
		}
	}
	out := t.finish()
	out.MS = a.clock().Sub(began).Milliseconds()
	return out, nil
}

// answers are what the draft and the live policy say about one question. Questions repeat, answers to them do not change.
type answers struct {
	draft, live outcome
	complete    bool
	bad         bool
}

func answer(ctx context.Context, draft, live *program, seen map[string]answers, trips *int, l policy.LoggedDecision) answers {
	key := string(l.Input)
	if a, ok := seen[key]; ok {
		return a
	}
	var a answers
	if q, err := readQuestion(l.Input, "/input"); err != nil || *trips >= maxTrips {
		a.bad = true
	} else {
		if a.draft = draft.outcome(ctx, q); a.draft.tripped {
			*trips++
		}
		if a.draft.asked {
			a.live = live.outcome(ctx, q)
		}
		a.complete = len(draft.missing(q)) == 0
	}
	seen[key] = a
	return a
}

type tally struct {
	out                     policy.Replay
	user, capability, model map[string]*policy.ReplayCount
	runs                    map[string]bool
	trips                   int
}

func newTally() *tally {
	return &tally{
		out: policy.Replay{
			Exact: true, WaitingRuns: []string{},
			Examples: policy.Examples{NewlyDenied: []string{}, NewlyAllowed: []string{}, Asked: []string{}, Errors: []string{}},
		},
		user: map[string]*policy.ReplayCount{}, capability: map[string]*policy.ReplayCount{}, model: map[string]*policy.ReplayCount{}, runs: map[string]bool{},
	}
}

func (t *tally) line(ctx context.Context, draft, live *program, seen map[string]answers, l policy.LoggedDecision) {
	w := max(l.Weight, 1)
	t.out.Exact = t.out.Exact && w == 1
	t.out.Total += w
	if len(l.Input) == 0 {
		return
	}
	t.out.Replayed += w
	a := answer(ctx, draft, live, seen, &t.trips, l)
	if a.complete {
		t.out.Complete += w
	}
	platform := slices.ContainsFunc(l.Codes, func(c string) bool { return platformCodes[c] })
	refused := a.draft.refused || platform
	switch {
	case a.bad || a.draft.failed:
		t.count(l, w, &t.out.Errors, &t.out.Examples.Errors, func(c *policy.ReplayCount) { c.Errors += w })
	case l.Allow && refused:
		t.count(l, w, &t.out.NewlyDenied, &t.out.Examples.NewlyDenied, func(c *policy.ReplayCount) { c.NewlyDenied += w })
		if l.RunID != "" && len(t.runs) < maxExamples {
			t.runs[l.RunID] = true
		}
	case !l.Allow && !refused:
		t.count(l, w, &t.out.NewlyAllowed, &t.out.Examples.NewlyAllowed, func(c *policy.ReplayCount) { c.NewlyAllowed += w })
	case l.Allow && a.draft.asked && !a.live.asked:
		t.count(l, w, &t.out.Asked, &t.out.Examples.Asked, func(c *policy.ReplayCount) { c.Asked += w })
	default:
		t.out.Unchanged += w
	}
}

func (t *tally) count(l policy.LoggedDecision, w int, total *int, examples *[]string, add func(*policy.ReplayCount)) {
	*total += w
	if len(*examples) < maxExamples {
		*examples = append(*examples, l.ID)
	}
	for _, by := range []struct {
		m   map[string]*policy.ReplayCount
		key string
	}{{t.user, string(l.User)}, {t.capability, l.Capability}, {t.model, l.Model}} {
		if by.key == "" {
			continue
		}
		c := by.m[by.key]
		if c == nil {
			c = &policy.ReplayCount{Key: by.key}
			by.m[by.key] = c
		}
		add(c)
	}
}

func (t *tally) finish() policy.Replay {
	sorted := func(m map[string]*policy.ReplayCount) []policy.ReplayCount {
		out := []policy.ReplayCount{}
		for _, c := range m {
			out = append(out, *c)
		}
		sum := func(c policy.ReplayCount) int { return c.NewlyDenied + c.NewlyAllowed + c.Asked + c.Errors }
		slices.SortFunc(out, func(a, b policy.ReplayCount) int { return cmp.Or(sum(b)-sum(a), strings.Compare(a.Key, b.Key)) })
		return out
	}
	t.out.ByUser, t.out.ByCapability, t.out.ByModel = sorted(t.user), sorted(t.capability), sorted(t.model)
	t.out.WaitingRuns = append(t.out.WaitingRuns, slices.Sorted(maps.Keys(t.runs))...)
	return t.out
}

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
	why     string // the message of the first reason
}

func (p *program) outcome(ctx context.Context, q *question) outcome {
	r := p.ask(ctx, q)
	o := outcome{refused: !r.verdict.Allow, failed: r.err != nil, tripped: r.err != nil && r.err.Code == codeBudget, asked: q.tool && slices.Contains(r.verdict.RequireApproval, q.name)}
	for _, d := range r.verdict.Deny {
		o.codes, o.why = append(o.codes, d.Code), cmp.Or(o.why, d.Message)
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
		if live, err = a.load(ctx, policy.Source{}, "/live"); err != nil {
			return policy.Replay{}, err
		}
	}
	t := newTally(in)
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
	missing     []string
	email       string
	bad         bool
}

func answer(ctx context.Context, draft, live *program, seen map[string]answers, trips *int, l policy.LoggedDecision) answers {
	// The line says what a question may leave out.
	key := string(l.Input) + "\x00" + string(l.Role) + "\x00" + l.Model
	byClock := zoned(draft.settings.WorkingHours) || zoned(live.settings.WorkingHours)
	if byClock {
		key += l.At.UTC().Format("\x002006-01-02T15:04")
	}
	if a, ok := seen[key]; ok {
		return a
	}
	var a answers
	if q, err := readQuestion(l.Input, "/input"); err != nil || *trips >= maxTrips {
		a.bad = true
	} else {
		if q.role == "" {
			q.role = l.Role
		}
		if q.model == nil && l.Model != "" {
			q.model = &l.Model
		}
		if byClock {
			q.at = l.At
		}
		if a.draft = draft.outcome(ctx, q); a.draft.tripped {
			*trips++
		}
		if a.draft.asked {
			a.live = live.outcome(ctx, q)
		}
		a.missing, a.email = draft.missing(q), textAt(q.doc, "user", "email")
	}
	seen[key] = a
	return a
}

// zoned reports whether working hours go by another clock than the organisation's.
func zoned(w *policy.WorkingHours) bool { return w != nil && w.TimeZone != "" }

type tally struct {
	in                      policy.ReplayInput
	out                     policy.Replay
	user, capability, model map[string]*policy.ReplayCount
	examples                map[string]int  // of each sort
	denied, replayed        map[string]bool // runs
	trips                   int
}

func newTally(in policy.ReplayInput) *tally {
	return &tally{
		in:   in,
		out:  policy.Replay{Exact: true, Examples: []policy.ReplayExample{}, DeniedRuns: []string{}, WaitingRuns: []string{}, UnseenRuns: []string{}},
		user: map[string]*policy.ReplayCount{}, capability: map[string]*policy.ReplayCount{}, model: map[string]*policy.ReplayCount{},
		examples: map[string]int{}, denied: map[string]bool{}, replayed: map[string]bool{},
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
	t.replayed[l.RunID] = true
	a := answer(ctx, draft, live, seen, &t.trips, l)
	if !a.bad && len(a.missing) == 0 {
		t.out.Complete += w
	} else {
		t.out.Incomplete += w
	}
	platform := slices.ContainsFunc(l.Codes, func(c string) bool { return platformCodes[c] })
	refused := a.draft.refused || platform
	switch {
	case a.bad || a.draft.failed:
		t.count(l, a, policy.ReplayError, &t.out.Errors, func(c *policy.ReplayCount) { c.Errors += w })
	case l.Allow && refused:
		t.count(l, a, policy.ReplayRefused, &t.out.NewlyDenied, func(c *policy.ReplayCount) { c.NewlyDenied += w })
		t.denied[l.RunID] = true
	case !l.Allow && !refused:
		t.count(l, a, policy.ReplayLoosened, &t.out.NewlyAllowed, func(c *policy.ReplayCount) { c.NewlyAllowed += w })
	case l.Allow && a.draft.asked && !a.live.asked && !l.Asked:
		t.count(l, a, policy.ReplayAsked, &t.out.Asked, func(c *policy.ReplayCount) { c.Asked += w })
	default:
		t.out.Unchanged += w
	}
}

func (t *tally) count(l policy.LoggedDecision, a answers, sort string, total *int, add func(*policy.ReplayCount)) {
	w := max(l.Weight, 1)
	*total += w
	incomplete := a.bad || len(a.missing) > 0
	label := cmp.Or(t.in.Labels.Users[string(l.User)], a.email, string(l.User))
	if t.examples[sort] < maxExamples {
		t.examples[sort]++
		t.out.Examples = append(t.out.Examples, policy.ReplayExample{
			ID: l.ID, Sort: sort, At: l.At, Person: string(l.User), Label: label, Capability: l.Capability, Model: l.Model, RunID: l.RunID,
			Before: before(l, a), After: after(a), Missing: a.missing, Incomplete: incomplete,
		})
	}
	for _, by := range []struct {
		m          map[string]*policy.ReplayCount
		key, label string
	}{{t.user, string(l.User), label}, {t.capability, l.Capability, t.in.Labels.Capabilities[l.Capability]}, {t.model, l.Model, t.in.Labels.Models[l.Model]}} {
		if by.key == "" {
			continue
		}
		c := by.m[by.key]
		if c == nil {
			c = &policy.ReplayCount{Key: by.key, Label: cmp.Or(by.label, by.key)}
			by.m[by.key] = c
		}
		if add(c); incomplete {
			c.Incomplete += w
		}
	}
}

// What became of a decision, in sentences.
const (
	saysAllowed = "Allowed."
	saysAsked   = "Allowed once a person approves."
)

func before(l policy.LoggedDecision, a answers) string {
	switch {
	case l.Failed:
		return "Refused, because the policy could not be evaluated."
	case !l.Allow && len(l.Codes) > 0:
		return "Refused: " + strings.Join(l.Codes, ", ") + "."
	case !l.Allow:
		return "Refused."
	case l.Asked || a.live.asked:
		return saysAsked
	}
	return saysAllowed
}

func after(a answers) string {
	switch {
	case a.bad:
		return "Not known: the question cannot be put to this policy."
	case a.draft.failed:
		return "Refused, because this policy cannot be evaluated: " + a.draft.why
	case a.draft.refused:
		return "Refused: " + a.draft.why
	case a.draft.asked:
		return saysAsked
	}
	return saysAllowed
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
	delete(t.denied, "")
	runs := slices.Sorted(maps.Keys(t.denied))
	t.out.DeniedRuns = append(t.out.DeniedRuns, runs[:min(len(runs), maxExamples)]...)
	waiting := slices.Clone(t.in.Waiting)
	slices.Sort(waiting)
	for _, id := range slices.Compact(waiting) {
		switch {
		case t.denied[id]:
			t.out.WaitingRuns = append(t.out.WaitingRuns, id)
		case !t.replayed[id]:
			t.out.UnseenRuns = append(t.out.UnseenRuns, id)
		}
	}
	return t.out
}

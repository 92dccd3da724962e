package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// finish ends a turn whatever became of it: the last events are shown, the transcript row goes to the journal, the observer is told.
// It is the one place that works for a caller who has left.
func (g *Gateway) finish(ctx context.Context, t *turn, sink Sink, err error) (Outcome, error) {
	if err != nil && fault.KindOf(err) == fault.Canceled {
		t.status = Cancelled
	}
	if t.began && t.req.Native == nil {
		g.lastWords(t, sink, err)
	}
	if t.step > 0 { // a model was called: there is something to remember
		g.remember(ctx, t)
	}
	if t.session != nil {
		g.Observer.Redacted(t.session.Findings())
	}
	code := ""
	if err != nil {
		code = fault.From(err).CodeOrKind()
	}
	rep := TurnReport{Surface: t.req.Surface, Slug: t.tenant.Org.Slug, Model: t.req.Model, KeySource: string(t.key.Source), Status: t.status,
		Code: code, Overhead: t.overhead, TTFB: t.ttfb, Total: g.Clock().Sub(t.started)}
	if rep.KeySource == "" { // refused before a key was chosen
		rep.KeySource = string(keyring.SourceNone)
	}
	rep.Provider = t.provider()
	g.Observer.TurnEnded(rep)
	return Outcome{RunID: t.id, ThreadID: t.req.ThreadID, TurnIndex: t.index, Status: t.status, Stop: t.stop, Usage: t.usage,
		Revision: t.decision.Revision, Decision: t.decision.ID}, err
}

// lastWords ends the agent's stream: an error if there was one, what it all used, and run.done, exactly once.
func (g *Gateway) lastWords(t *turn, sink Sink, err error) {
	for _, e := range g.closing(t, err) {
		if sink.Emit(e) != nil {
			return
		}
	}
}

// closing are the last events of a turn.
func (g *Gateway) closing(t *turn, err error) []Event {
	events := make([]Event, 0, 4)
	if err != nil && t.status != Cancelled { // cancelled says it all
		fe := fault.From(err)
		events = append(events, Failure{Code: fe.CodeOrKind(), Message: fe.Public, Recoverable: recoverable(fe.Kind), RetryAfterMS: fe.RetryAfter.Milliseconds()})
	}
	if n := redactions(t); n != nil {
		events = append(events, *n)
	}
	total := t.totals()
	return append(events, total, RunDone{Status: t.status, Stop: t.stop, ThreadID: t.req.ThreadID, TurnIndex: t.index, Totals: total})
}

func recoverable(k fault.Kind) bool {
	switch k {
	case fault.RateLimited, fault.Upstream, fault.Unavailable, fault.Timeout, fault.Conflict:
		return true
	}
	return false
}

// redactions tells the reader what was hidden from the provider in this run, in counts.
func redactions(t *turn) *Warning {
	detail := map[string]any{}
	for _, f := range t.session.Findings() {
		if f.Action == redaction.Flag { // it was sent as it is
			continue
		}
		if n, ok := detail[f.Entity].(int); ok {
			detail[f.Entity] = n + f.Count
		} else {
			detail[f.Entity] = f.Count
		}
	}
	if len(detail) == 0 {
		return nil
	}
	return &Warning{Code: "redacted", Message: "Sensitive values were hidden from the model provider.", Detail: detail}
}

// flagged lists what was only counted, for the caller's response headers.
func flagged(t *turn) string {
	if t.session == nil {
		return ""
	}
	var b strings.Builder
	for _, f := range t.session.Findings() {
		if f.Action != redaction.Flag {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(f.Entity + "=" + strconv.Itoa(f.Count))
	}
	return b.String()
}

func (t *turn) totals() Usage {
	u := usageEvent("run", t.usage, nil, t.estimated)
	if t.cost != nil && t.cost.known {
		s := t.cost.pico.USD()
		u.CostUSD = &s
	}
	return u
}

func usageEvent(scope string, u chat.Usage, cost *billing.Pico, estimated bool) Usage {
	e := Usage{Scope: scope, InputTotal: u.InputTotal(), CacheRead: u.CacheRead, CacheWrite: u.CacheWrite(), OutputTotal: u.Output, Reasoning: u.Reasoning, Estimated: estimated}
	if cost != nil {
		s := cost.USD()
		e.CostUSD = &s
	}
	return e
}

// remember writes the turn's transcript row, in redacted form.
func (g *Gateway) remember(ctx context.Context, t *turn) {
	row := transcript.Turn{
		ID: t.id, Org: t.tenant.Org.ID, User: t.person(), ProjectID: t.req.ProjectID, ProjectKind: t.req.ProjectKind, ThreadID: t.req.ThreadID,
		Index: t.index, Surface: t.req.Surface, ClientTurnID: t.req.ClientTurnID, Model: t.req.Model, Provider: t.provider(),
		KeySource: string(t.key.Source), TokensIn: t.usage.InputTotal(), TokensOut: t.usage.Output, CacheRead: t.usage.CacheRead,
		CacheCreation: t.usage.CacheWrite(), LatencyMS: g.Clock().Sub(t.started).Milliseconds(), SpineHash: t.spine,
		PolicyRevision: t.decision.Revision, Status: t.status, CreatedAt: t.started,
		ModelMessage: t.session.Transcribe(string(t.text)),
	}
	if n := t.req.Native; n != nil {
		row.UserMessage = t.session.Transcribe(n.LastUser)
	} else {
		row.RegistryVersion = g.registry(t).Version()
		row.Messages = t.redactedSaid()[t.fresh():]
		row.UserMessage = lastUserText(row.Messages)
		row.ToolCalls, row.ToolResults = toolRecord(row.Messages)
	}
	row.Findings = t.session.Tallies()
	if entries := t.session.Entries(); len(entries) > 0 {
		raw, err := json.Marshal(entries)
		if err == nil {
			row.SealedMap, err = g.Sealer.SealBlob(row.Org, purposeMap, row.ID, raw)
		}
		if err != nil {
			g.Logger.ErrorContext(ctx, "restore map could not be sealed; the thread will show tokens", "run", t.id, "err", err)
		}
	}
	if row.ThreadID != "" {
		g.keepRecent(row)
	}
	if err := g.Journal.Said(row); err != nil {
		g.Logger.ErrorContext(ctx, "turn could not be journalled", "run", t.id, "err", err)
	}
}

// redactedSaid is this turn's conversation with the person's own words and the capabilities' results hidden as the provider saw them.
func (t *turn) redactedSaid() []chat.Message {
	out := make([]chat.Message, len(t.said))
	for i, m := range t.said {
		out[i] = chat.Message{Role: m.Role, Parts: t.redactedParts(m.Parts)}
	}
	return out
}

func (t *turn) redactedParts(parts []chat.Part) []chat.Part {
	out := append([]chat.Part(nil), parts...)
	for i := range out {
		p := &out[i]
		if p.Kind == chat.PartText || p.Kind == chat.PartToolResult {
			p.Text = t.session.Transcribe(p.Text)
		}
		if len(p.Parts) > 0 {
			p.Parts = t.redactedParts(p.Parts)
		}
	}
	return out
}

// fresh is where this turn's own messages begin: what a caller brings along as history is not said again.
func (t *turn) fresh() int {
	for i := len(t.req.Messages) - 1; i >= 0; i-- {
		if t.req.Messages[i].Role == chat.Assistant {
			return i + 1
		}
	}
	return 0
}

func lastUserText(msgs []chat.Message) string {
	var b bytes.Buffer
	for i := len(msgs) - 1; i >= 0; i-- {
		if msgs[i].Role != chat.User {
			continue
		}
		for _, p := range msgs[i].Parts {
			if p.Kind == chat.PartText {
				b.WriteString(p.Text)
			}
		}
		if b.Len() > 0 {
			return b.String()
		}
	}
	return ""
}

// toolRecord lists the calls of a turn and what came of them.
func toolRecord(msgs []chat.Message) (calls, results json.RawMessage) {
	type call struct {
		ID    string          `json:"id"`
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`
	}
	type result struct {
		ID     string `json:"id"`
		Failed bool   `json:"failed"`
		Output string `json:"output"`
	}
	var cs []call
	var rs []result
	for _, m := range msgs {
		for _, p := range m.Parts {
			switch p.Kind {
			case chat.PartToolCall:
				cs = append(cs, call{p.CallID, p.Name, p.Input})
			case chat.PartToolResult:
				rs = append(rs, result{p.CallID, p.Failed, p.Text})
			}
		}
	}
	if cs != nil {
		calls, _ = json.Marshal(cs) // inputs are valid JSON since the accumulator compacted them
	}
	if rs != nil {
		results, _ = json.Marshal(rs)
	}
	return calls, results
}

// keepRecent remembers a turn that may still be on its way into the database, so that the next turn of the thread sees it.
func (g *Gateway) keepRecent(row transcript.Turn) {
	k := threadKey{row.Org, row.User, row.ThreadID}
	g.recentMu.Lock()
	defer g.recentMu.Unlock()
	old, _ := g.recent.Peek(k)
	next := make([]transcript.Turn, 0, len(old)+1)
	for _, t := range old {
		if t.ID != row.ID {
			next = append(next, t)
		}
	}
	next = append(next, row)
	if len(next) > 8 {
		next = next[len(next)-8:]
	}
	g.recentBytes += weight(next) - weight(old)
	g.recent.Add(k, next)
	for g.recentBytes > recentBudget {
		if _, _, ok := g.recent.RemoveOldest(); !ok { // the callback of New takes off what it weighed
			break
		}
	}
}

// recentBudget is how much of what was said a moment ago is kept in memory, in bytes. It only bridges the time until the journal has
// drained, so that losing the oldest of it costs nothing in ordinary times.
const recentBudget = 64 << 20

func weight(turns []transcript.Turn) int {
	n := 0
	for _, t := range turns {
		n += 1024 + len(t.UserMessage) + len(t.ModelMessage) + len(t.ToolCalls) + len(t.ToolResults) + len(t.SealedMap)
		for _, m := range t.Messages {
			for _, p := range m.Parts {
				n += 128 + len(p.Text) + len(p.Input) + len(p.Raw)
			}
		}
	}
	return n
}

// whole reports whether turns are a thread from its first turn on, without a gap.
func whole(turns []transcript.Turn) bool {
	for i, t := range turns {
		if t.Index != i {
			return false
		}
	}
	return len(turns) > 0
}

// thread returns a person's turns of one thread in order: what is stored, and what was said a moment ago.
func (g *Gateway) thread(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, id string) ([]transcript.Turn, error) {
	if id == "" {
		return nil, nil
	}
	stored, err := g.Turns.Thread(ctx, org, user, id)
	recent, _ := g.recent.Get(threadKey{org, user, id})
	if err != nil && !fault.Is(err, fault.NotFound) {
		if !whole(recent) {
			return nil, err
		}
		stored = nil // the database is away; what was said a moment ago is all there is of this thread
	}
	byID := make(map[string]int, len(stored))
	for i, t := range stored {
		byID[t.ID] = i
	}
	for _, t := range recent {
		if i, ok := byID[t.ID]; ok {
			stored[i] = t
		} else {
			stored = append(stored, t)
		}
	}
	slices.SortStableFunc(stored, func(a, b transcript.Turn) int { return cmp.Compare(a.Index, b.Index) })
	return stored, nil
}

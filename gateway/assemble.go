package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/lossless-group/gateway/cache"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
	"github.com/lossless-group/gateway/wire/anthropic"
)

// toolNames is the per-request table between capability names and the names the model sees.
type toolNames = anthropic.Names

// assemble decides what the model is told: on a compatible surface the edits to the caller's own body, on the agent surface the
// slabs, the tools, the history and the new message.
func (g *Gateway) assemble(ctx context.Context, t *turn) error {
	began := g.Clock()
	defer func() { t.timing.Assemble = g.Clock().Sub(began) }()
	if t.req.Native != nil {
		return g.refuseTool(ctx, t, g.assembleNative(t))
	}
	if err := g.recall(ctx, t); err != nil {
		return err
	}
	t.said = append([]chat.Message(nil), t.req.Messages...)
	return g.equip(t)
}

func (g *Gateway) assembleNative(t *turn) error {
	n := t.req.Native
	t.neutral, t.spelling, t.losses, t.edits = nil, nil, nil, nil
	if n.Protocol != t.protocol() || n.MustTranslate {
		if n.Neutral == nil {
			return fault.New(fault.Unsupported, "gateway.assemble", "protocol_unsupported", "Model "+t.req.Model+" cannot be reached through this API. Use one whose provider speaks it.").At("/model")
		}
		return g.cross(t)
	}
	t.edits = append(t.edits, n.Always...)
	if t.route.Model != t.req.Model && n.RenameModel != nil {
		t.edits = append(t.edits, n.RenameModel(t.route.Model))
	}
	if cap := t.decision.MaxTokens; cap > 0 && (t.req.MaxTokens > cap || t.req.MaxTokens == 0 && n.Protocol != chat.AnthropicMessages) {
		t.edits = append(t.edits, n.CapTokens(cap))
	}
	if len(t.decision.DisabledCapabilities) == 0 {
		return nil
	}
	for i, name := range n.Servers {
		if t.decision.Disabled(serverName(name)) {
			return fault.Wrap(fault.Forbidden, "gateway.assemble", dispatch.DisabledByPolicy, "Your organisation has switched off the tool server "+name+". Leave it out of mcp_servers.",
				offTool{serverName(name), kindServer}).At("/mcp_servers/" + strconv.Itoa(i))
		}
	}
	if len(n.Tools) == 0 {
		return nil
	}
	gone := map[string]bool{}
	for _, name := range n.Tools {
		if t.decision.Disabled(name) || t.decision.Disabled(n.CanonicalTool(name)) {
			gone[name] = true
		}
	}
	if len(gone) == 0 {
		return nil
	}
	edits, err := n.RemoveTools(gone)
	t.edits = append(t.edits, edits...)
	if fault.Is(err, fault.Forbidden) {
		return forced(t, gone, err)
	}
	return err
}

// clientTools tells policy the names of the caller's own tools, in their wire form and in the form capabilities have.
func clientTools(n *Native) []policy.CapabilityInfo {
	if len(n.Tools) == 0 && len(n.Servers) == 0 {
		return nil
	}
	seen := map[string]bool{}
	var out []policy.CapabilityInfo
	for _, name := range n.Tools {
		for _, s := range []string{name, n.CanonicalTool(name)} {
			if s != "" && !seen[s] {
				seen[s] = true
				out = append(out, policy.CapabilityInfo{Name: s, Kind: kindClient})
			}
		}
	}
	for _, name := range n.Servers {
		if s := serverName(name); !seen[s] {
			seen[s] = true
			out = append(out, policy.CapabilityInfo{Name: s, Kind: kindServer})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// serverName is what policy calls a tool server that the provider calls by itself.
func serverName(name string) string { return policy.ToolServerPrefix + name }

// recall loads the thread: its earlier turns as history and the map that restores their tokens. A request of several messages
// carries its own history and recalls only the map.
func (g *Gateway) recall(ctx context.Context, t *turn) error {
	if t.req.NewThread { // the database need not be asked, nor even be there
		return nil
	}
	turns, err := g.thread(ctx, t.tenant.Org.ID, t.tenant.User, t.req.ThreadID)
	if err != nil {
		return err
	}
	if len(turns) == 0 {
		return nil
	}
	last := turns[len(turns)-1]
	t.index = last.Index + 1
	if err := g.loadMaps(t.session, turns); err != nil {
		return err
	}
	if id := t.req.ClientTurnID; id != "" {
		for _, old := range turns {
			if old.ClientTurnID == id {
				return repeatedTurn(old.ID)
			}
		}
	}
	if len(t.req.Messages) > 1 {
		return nil
	}
	first, size := len(turns), 0
	for ; first > 0; first-- {
		for _, m := range turns[first-1].Messages {
			for _, p := range m.Parts {
				size += len(p.Text) + len(p.Input) + len(p.Raw)
			}
		}
		if size > g.HistoryBytes {
			t.warnings = append(t.warnings, Warning{Code: "history_trimmed", Message: "The oldest turns of this conversation no longer fit and were left out."})
			break
		}
	}
	for _, old := range turns[first:] {
		if replayable(old) {
			t.history = append(t.history, old.Messages...)
		}
	}
	return nil
}

// replayable reports whether a turn is a whole exchange: a cut or refused answer would leave two user messages in a row, or a tool
// call without its result.
func replayable(t transcript.Turn) bool {
	n := len(t.Messages)
	if n < 2 || t.Messages[n-1].Role != chat.Assistant || t.Status == Refused || t.Status == Awaiting {
		return false
	}
	for _, p := range t.Messages[n-1].Parts {
		if p.Kind == chat.PartToolCall {
			return false
		}
	}
	return true
}

// repeatedTurn is what a retry of a turn that was already taken is told, so that it does not pay for a second run.
func repeatedTurn(runID string) error {
	return fault.New(fault.Conflict, "gateway.recall", "turn_exists", "The turn with this clientTurnId was already taken as run "+runID+". Read the thread, or send a new clientTurnId.").At("/clientTurnId")
}

// loadMaps loads what earlier turns of a thread hid, oldest first: turns that ran side by side each know only their own.
func (g *Gateway) loadMaps(s *redaction.Session, turns []transcript.Turn) error {
	for _, old := range turns {
		if len(old.SealedMap) > 0 {
			if err := g.loadMap(s, old); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *Gateway) loadMap(s *redaction.Session, from transcript.Turn) error {
	const op = "gateway.loadMap"
	raw, err := g.Sealer.OpenBlob(from.Org, purposeMap, from.ID, from.SealedMap)
	if err != nil {
		return fault.Wrap(fault.Internal, op, "restore_map", "The conversation's redaction map cannot be opened. Start a new thread and tell an operator.", err)
	}
	var entries []redaction.Entry
	if err := json.Unmarshal(raw, &entries); err != nil {
		return fault.Wrap(fault.Internal, op, "restore_map", "The conversation's redaction map cannot be read. Start a new thread and tell an operator.", err)
	}
	s.Load(entries)
	return nil
}

// Purposes of sealed blobs; each is bound into the seal.
const (
	purposeMap     = "redaction-map"
	purposePending = "pending-run"
)

// equip gives the turn its tools, gates and slabs. It runs again when a paused run is resumed, under the policy of that moment.
func (g *Gateway) equip(t *turn) error {
	tier := t.tenant.Tier()
	registry := g.registry(t)
	caps := registry.View(tier, t.decision.Disabled)
	allowed, unmatched := registry.Match(t.req.Tools)
	if len(unmatched) > 0 {
		return fault.Invalidf("gateway.equip", "/tools", "No capability matches %q. GET /api/agent/capabilities lists what this app offers.", unmatched[0])
	}
	allowed = g.fitting(t, registry, allowed)
	if scope := t.tenant.Token; scope != nil && len(scope.Capabilities) > 0 {
		allowed = slices.DeleteFunc(allowed, func(name string) bool { _, ok := policy.FirstMatch(scope.Capabilities, name); return !ok })
	}
	t.allowed, t.usable = allowed, []string{}
	for _, c := range caps {
		if slices.Contains(allowed, c.Name) {
			t.usable = append(t.usable, c.Name)
		}
	}
	views := make([]cache.CapabilityView, len(caps))
	for i, c := range caps {
		views[i] = cache.CapabilityView{Name: c.Name, Tool: anthropic.EncodeName(c.Name), OneLine: c.OneLine, Kind: string(c.Kind), Confirms: c.RequiresConfirmation,
			Hints: c.Hints.Recognition, InvokeWhen: c.Hints.Invoke, ProposeWhen: c.Hints.Propose}
	}
	// The table knows the whole registry, so that a call of a disabled capability is refused as disabled and not as unknown.
	all := registry.View(tenancy.TierAdmin, nil)
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.Name
	}
	var err error
	if t.names, err = anthropic.NewNames(names); err != nil {
		return err
	}
	if err = g.gate(t); err != nil {
		return err
	}
	max := t.req.MaxTokens
	if max == 0 {
		max = g.MaxTokens
	}
	if cap := t.decision.MaxTokens; cap > 0 && max > cap {
		max = cap
	}
	tools := dispatch.Tools(caps, anthropic.EncodeName)
	if len(caps) > 0 {
		propose, err := dispatch.ProposingTool(caps)
		if err != nil {
			return fault.From(err)
		}
		tools = append(tools, propose) // it offers what the person may use at all; a turn's whitelist is for the gates, or the prompt would change with it
	}
	prompt, report := cache.Assemble(cache.Input{
		OrgID: t.tenant.Org.ID, OrgName: t.tenant.Org.Name, Capabilities: views, Tools: tools,
		Context: t.req.Context, Whitelist: allowed, Alignment: t.req.Alignment, Model: t.route.Model, MaxTokens: max, Stream: true,
		Messages: append(append([]chat.Message(nil), t.history...), t.said...),
	})
	t.prompt, t.spine = prompt, report.SpineHash
	for _, w := range report.Warnings {
		t.warnings = append(t.warnings, Warning{Code: "context_left_out", Message: w})
	}
	return nil
}

// decideTool asks policy about one call, by the revision the turn began with: what is published meanwhile counts from the next request
// on, of which accepting a preview is one.
func (g *Gateway) decideTool(t *turn) func(context.Context, dispatch.Capability, int, json.RawMessage) (bool, []fault.Reason, error) {
	return func(ctx context.Context, c dispatch.Capability, step int, args json.RawMessage) (bool, []fault.Reason, error) {
		d, err := g.askTool(ctx, t, info(c), step, args)
		return d.Allow && err == nil, d.Deny, err
	}
}

// gate gives the turn gates under the rules of this moment, which have let nothing pass yet.
func (g *Gateway) gate(t *turn) (err error) {
	t.gates, err = dispatch.NewTurn(dispatch.TurnConfig{
		Registry: g.registry(t), Tenant: t.tenant, Whitelist: t.allowed, Decide: g.decideTool(t),
		Clock: g.Clock, ProjectID: t.req.ProjectID, ThreadID: t.req.ThreadID, RunID: t.id,
	})
	return err
}

// registry is what the organisation's apps offered when the turn first asked.
func (g *Gateway) registry(t *turn) *dispatch.Registry {
	if t.registry == nil {
		t.registry = g.Registry.For(t.tenant.Org.ID)
	}
	return t.registry
}

// fitting leaves out the capabilities whose context the request does not bring, and says so. The tools the model is shown stay the same, so
// that its prompt does: one that is left out is refused if it is called.
func (g *Gateway) fitting(t *turn, registry *dispatch.Registry, names []string) []string {
	var doc any
	read := false
	return slices.DeleteFunc(names, func(name string) bool {
		c, _ := registry.Lookup(name)
		if len(c.Hints.Requires) == 0 {
			return false
		}
		if !read {
			_ = json.Unmarshal(t.req.Context, &doc) // checked where it was read; nothing is what an absent one says
			read = true
		}
		for _, field := range c.Hints.Requires {
			if !hasField(doc, field) {
				t.warnings = append(t.warnings, Warning{Code: "context_missing", Message: name + " was left out of this turn: it needs context." + field + ".", Detail: map[string]any{"capability": name, "field": field}})
				return true
			}
		}
		return false
	})
}

// hasField reports whether a dotted field stands in a document and says something.
func hasField(doc any, field string) bool {
	for step := range strings.SplitSeq(field, ".") {
		o, ok := doc.(map[string]any)
		if !ok {
			return false
		}
		if doc, ok = o[step]; !ok {
			return false
		}
	}
	return doc != nil && doc != ""
}

func capabilityInfo(r *dispatch.Registry) []policy.CapabilityInfo {
	all := r.View(tenancy.TierAdmin, nil)
	out := make([]policy.CapabilityInfo, len(all))
	for i, c := range all {
		out[i] = info(c)
	}
	return out
}

func info(c dispatch.Capability) policy.CapabilityInfo {
	return policy.CapabilityInfo{Name: c.Name, Kind: string(c.Kind), Tier: c.RequiredTier, Confirms: c.RequiresConfirmation, App: c.App}
}

// zone resolves an organisation's time zone once.
func (g *Gateway) zone(name string) *time.Location {
	if z, ok := g.zones.Load(name); ok {
		return z.(*time.Location)
	}
	z, err := time.LoadLocation(name)
	if err != nil {
		z = time.UTC
	}
	g.zones.Store(name, z)
	return z
}

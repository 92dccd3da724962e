package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
)

// This file is what surrounds a handler while it works: what is written down before and after, and what it says meanwhile.

// The phases of a side effect.
const (
	phaseRun   = "run"
	phaseApply = "apply"
)

// committed is a side effect that is written down as going on; nil is one that need not be, and then end does nothing.
type committed struct {
	g *Gateway
	d runs.Dispatch
}

// commit writes down that a handler is about to be called. What only reads has nothing to write down. Its error says that nothing was done.
func (g *Gateway) commit(t *turn, c dispatch.Capability, hc dispatch.Call, phase, previewID string) (*committed, error) {
	if c.Kind == dispatch.Read {
		return nil, nil
	}
	sum := sha256.Sum256(hc.Input)
	_, callID, _ := strings.Cut(hc.ID, "/")
	k := &committed{g: g, d: runs.Dispatch{ID: newID("dp_"), RunID: t.id, Org: t.tenant.Org.ID, User: t.person(), ThreadID: t.req.ThreadID, CallID: callID, Capability: c.Name,
		Phase: phase, PreviewID: previewID, ArgsHash: hex.EncodeToString(sum[:]), State: runs.Committed, At: g.Clock()}}
	if err := g.RunLog.Began(runs.Note{Dispatch: &k.d}); err != nil {
		return nil, fault.Wrap(fault.Unavailable, "gateway.commit", "journal_unavailable", "What was to be done cannot be written down right now, so it was not done. Try again in a moment.", err)
	}
	return k, nil
}

// end writes down what became of it.
func (k *committed) end(state string) {
	if k == nil {
		return
	}
	k.d.State, k.d.EndedAt = state, k.g.Clock()
	if err := k.g.RunLog.Ended(runs.Note{Dispatch: &k.d}); err != nil {
		k.g.Logger.Error("the outcome of a call could not be journalled; the next start lists it as indeterminate", "dispatch", k.d.ID, "state", state, "err", err)
	}
}

// stateOf is what a handler's answer says of its side effect. One that was cut off may have had it.
func stateOf(res dispatch.Result, err error) string {
	switch {
	case err == nil && !res.Failed:
		return runs.Done
	case err == nil:
		return runs.Failed
	case errors.Is(err, dispatch.ErrIndeterminate), fault.Is(err, fault.Canceled), fault.Is(err, fault.Timeout):
		return runs.Indeterminate
	}
	return runs.Failed
}

// told is what the model reads of a result: the output, and what of the capability's promises it breaks.
func told(res dispatch.Result) string {
	if len(res.Violations) == 0 {
		return string(res.Output)
	}
	raw, err := json.Marshal(struct {
		Output     json.RawMessage      `json:"output"`
		Violations []dispatch.Violation `json:"violatedPostconditions"`
		Note       string               `json:"note"`
	}{res.Output, res.Violations, "It ran, and did not do all that it promises. Do not say that it did; look again, or tell the person."})
	if err != nil { // the output was checked
		return string(res.Output)
	}
	return string(raw)
}

// Bounds of what a handler may say while it works. What is above them is left out; the result holds it all.
const (
	maxProgress      = 500 // events of one call
	maxProgressText  = 500 // bytes of a message
	maxProgressChunk = 16 << 10
	maxProgressBytes = 256 << 10 // of one call's chunks together
)

// progress shows what a handler says while it works, until stop: then the call is over, and what comes late is nobody's.
type progress struct {
	mu     sync.Mutex
	callID string
	sink   Sink
	events int
	bytes  int
}

func (g *Gateway) progress(call toolCall, sink Sink) *progress {
	return &progress{callID: call.ID, sink: sink}
}

func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sink = nil
}

// show passes one sign of life on. It may be called from any goroutine.
func (p *progress) show(s dispatch.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sink == nil || p.events >= maxProgress {
		return
	}
	if s.Message != "" || s.Chunk == "" {
		e := CapabilityProgress{CallID: p.callID, Message: cut(s.Message, maxProgressText)}
		if s.Fraction >= 0 {
			f := min(s.Fraction, 1)
			e.Fraction = &f
		}
		p.events++
		_ = p.sink.Emit(e) // a caller who has left misses it
	}
	if s.Chunk == "" || p.bytes >= maxProgressBytes {
		return
	}
	chunk := cut(s.Chunk, min(maxProgressChunk, maxProgressBytes-p.bytes))
	p.bytes += len(chunk)
	p.events++
	_ = p.sink.Emit(CapabilityOutput{CallID: p.callID, Chunk: chunk})
}

// cut shortens text to at most n bytes without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.ToValidUTF8(s[:n], "\uFFFD")
}

package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/wire/anthropic"
	"github.com/lossless-group/gateway/wire/openai"
)

// answer is what one model call said.
type answer struct {
	stop  chat.Stop
	calls []toolCall
}

// toolCall is the model's wish to call a capability. Input is in the redacted form the model wrote.
type toolCall struct {
	ID    string          `json:"id"`
	Wire  string          `json:"wire"`
	Input json.RawMessage `json:"input"`
}

// costSum adds attempts' costs; one unpriced attempt makes the sum unknown.
type costSum struct {
	pico  billing.Pico
	known bool
}

// ended returns why the gateway itself ended the turn, such as a shutdown, nil when it did not. The caller is still there and is told.
func ended(ctx context.Context) *fault.Error {
	if ctx.Err() == nil { // asked for each event: nothing is allocated up to here
		return nil
	}
	var fe *fault.Error
	if errors.As(context.Cause(ctx), &fe) {
		return fe
	}
	return nil
}

// errGone says that the caller left; it never reaches a surface, there is nobody to tell.
var errGone = fault.New(fault.Canceled, "gateway.attempt", "canceled", "The caller went away.")

// attempt makes one physical call: journal it, open it, show what comes, restore what was hidden, settle it. The call runs on a
// context of its own, because a caller who leaves must neither cost us the usage nor leave the provider generating for nobody: before the
// provider has answered it is cancelled at once, after that it is read on within DrainFor and DrainBytes for its usage and then cancelled.
func (g *Gateway) attempt(ctx context.Context, t *turn, body redaction.Masked, sink Sink) (ans answer, err error) {
	if t.next == nil {
		t.next = g.newAttempt(t)
	}
	a := *t.next
	t.next = nil
	a.InputHint = g.Estimates.Prompt(a.Org, a.Model, body.Bytes())
	if err := g.Journal.Opened(a); err != nil {
		g.giveBack(ctx, t)
		return ans, err
	}
	var o billing.Outcome
	show := &show{g: g, t: t, sink: sink, hint: a.InputHint, stream: t.session.Stream(), acc: assemblerOf(t.protocol())}
	defer func() { show.learn(g.settle(ctx, t, a, o), body) }()

	call, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var accepted atomic.Bool
	stopWatching := context.AfterFunc(ctx, func() {
		if accepted.Load() && ended(ctx) == nil {
			time.AfterFunc(g.DrainFor, cancel)
			return
		}
		cancel()
	})
	defer stopWatching()

	sent := g.Clock()
	if t.tries <= 1 { // what later attempts waited for is no work of ours
		t.overhead = sent.Sub(t.started)
	}
	st, err := t.route.Provider.Open(call, provider.Call{
		Attempt: a.ID, Model: t.route.Model, Key: t.secret, Body: body, Stream: t.prompt.Stream || t.req.Stream, Forward: forward(t),
	})
	o.EndedAt = g.Clock()
	if err != nil {
		o.Status = openFailure(ctx, err)
		if fe := ended(ctx); fe != nil && o.Status == billing.StatusCancelled {
			return ans, fe
		}
		return ans, err
	}
	defer st.Close()
	accepted.Store(true)
	if ctx.Err() != nil { // the caller left between the two lines above
		time.AfterFunc(g.DrainFor, cancel)
	}
	t.timing.Upstream += o.EndedAt.Sub(sent)
	if l, ok := st.(interface{ Losses() []chat.Loss }); ok && t.req.Native != nil {
		t.tell(l.Losses())
	}

	show.cancelLater = func() { time.AfterFunc(g.DrainFor, cancel) }
	ans, err = show.all(ctx, st)
	o.Usage, o.Told = st.Usage()
	o.DeliveredBytes, o.EndedAt, o.Final = show.received, g.Clock(), show.ended
	if !show.whole {
		o.Delivered = g.Estimates.Answer(a.Org, a.Model, &show.weight)
	}
	switch {
	case show.gone:
		o.Status = billing.StatusCancelled
		t.status = Cancelled
	case err == nil:
		o.Status = billing.StatusOK
	case ended(ctx) != nil:
		o.Status = billing.StatusCancelled
	case fault.From(err).Upstream != nil: // the provider said so itself, in the middle of its answer
		o.Status = billing.StatusUpstreamError
	default:
		o.Status = billing.StatusCut
	}
	return ans, err
}

// newAttempt describes the call for the journal before it is made.
func (g *Gateway) newAttempt(t *turn) *billing.Attempt {
	return &billing.Attempt{
		ID: attemptID(t), RunID: t.id, Org: t.tenant.Org.ID, User: t.tenant.User, HomeOrg: t.tenant.HomeOrg,
		ProjectID: t.req.ProjectID, ThreadID: t.req.ThreadID, Surface: t.req.Surface, Provider: t.route.Provider.Name(),
		Model: t.route.Model, Requested: t.req.Model, KeySource: string(t.key.Source), KeyID: t.key.KeyID, Step: t.step, Try: t.try,
		StartedAt: g.Clock(), Token: t.tenant.Session, Capability: t.because,
	}
}

// attemptID names an attempt within its run: the model call, and the try of it when it is not the first.
func attemptID(t *turn) string {
	id := t.id + "." + strconv.Itoa(t.step)
	if t.try > 1 {
		id += "." + strconv.Itoa(t.try)
	}
	return id
}

func forward(t *turn) map[string][]string {
	if t.req.Native == nil {
		return nil
	}
	return t.req.Native.Forward
}

// openFailure says what a failed Open owes: a provider that answered an error, or was never reached, owes nothing; one that may have
// received the request and fell silent is estimated.
func openFailure(ctx context.Context, err error) string {
	fe := fault.From(err)
	switch {
	case fe.Code == "upstream_rejected", fe.Code == "provider_key_rejected":
		return billing.StatusRefused
	case fe.Upstream != nil && fe.Upstream.Status != 0, fe.Code == "upstream_unreachable":
		return billing.StatusUpstreamError
	case ctx.Err() != nil || fe.Kind == fault.Canceled:
		return billing.StatusCancelled
	}
	return billing.StatusCut
}

// explain turns a provider's refusal into what this caller can do about it.
func (g *Gateway) explain(t *turn, err error) error {
	fe := *fault.From(err)
	if fe.Code != "provider_key_rejected" {
		return &fe
	}
	p := t.route.Provider.Name()
	if t.key.Source == keyring.SourceUser {
		fe.Kind, fe.Code = fault.Payment, "byok_invalid"
		fe.Public = "The provider " + p + " rejected your key. Replace it in the keys panel."
		fe.Action = &fault.Action{Kind: "replace_key", Provider: p, URL: "/console/me/keys"}
		return &fe
	}
	fe.Kind = fault.Upstream
	fe.Public = "The provider " + p + " rejected your organisation's key. An administrator must replace it."
	return &fe
}

// settle closes the attempt in the journal, tells the observer, and returns what was recorded.
func (g *Gateway) settle(ctx context.Context, t *turn, a billing.Attempt, o billing.Outcome) *billing.Event {
	e := billing.Settle(a, o, g.Prices)
	if err := g.Journal.Settled(e); err != nil {
		// The attempt is on disk as opened; the next start settles it as interrupted. Nothing is lost, so the turn goes on.
		g.Logger.ErrorContext(ctx, "attempt could not be settled now", "attempt", a.ID, "err", err)
	}
	g.book(ctx, t, e)
	t.permit.Used(e.Usage)
	g.Observer.AttemptEnded(t.tenant.Org.Slug, e)
	t.usage = t.usage.Add(e.Usage)
	t.estimated = t.estimated || e.Basis == billing.Estimated
	if t.cost == nil {
		t.cost = &costSum{known: true}
	}
	if e.Cost == nil {
		t.cost.known = false
	} else {
		t.cost.pico += *e.Cost
	}
	t.last = e
	return &t.last
}

// learn keeps what the provider counted for the next estimate. Hidden and summarised thinking, and answers that came as documents, have
// tokens that their text does not tell of; images have tokens that their bytes do not.
func (s *show) learn(e *billing.Event, body redaction.Masked) {
	answer, prompt := &s.weight, int64(body.Len())
	if s.thought || s.whole {
		answer = nil
	}
	if n := s.t.req.Native; n != nil && n.HasImages {
		prompt = 0
	}
	s.g.Estimates.Learn(e, prompt, answer)
}

// show brings one provider stream to the caller.
type show struct {
	g           *Gateway
	t           *turn
	sink        Sink
	stream      *redaction.Stream
	cancelLater func()
	hint        int64 // tokens the prompt is estimated at

	gone     bool             // the caller left; only usage matters now
	ended    bool             // the protocol's terminal event came
	received int64            // bytes of text the provider sent, shown or not: what an estimate is made from
	weight   billing.Weighing // of the same text
	thought  bool             // it thought
	whole    bool             // the answer was a document and no stream
	drained  int64            // bytes of the stream read after the caller left
	msgID    string
	blocks   map[int]chat.PartKind
	acc      assembler // of the agent's message
	stop     chat.Stop
	up       Upstream // what was passed on last: sinks do not keep it, and a copy of its own for every event costs more than reading it
}

// assembler puts the message together that a stream spelled out.
type assembler interface {
	Add(chat.Event)
	Message() chat.Message
}

// assemblerOf keeps, beside what was said, what the provider of a protocol wants back unchanged.
func assemblerOf(p chat.Protocol) assembler {
	if p == chat.AnthropicMessages {
		return &anthropic.Assembler{}
	}
	return &openai.Assembler{Producer: p}
}

// over reports the end of a whole answer. A fault is never that, whatever its cause: a cut must not look like a clean end.
func over(err error) bool {
	if err == nil { // asked for each event
		return false
	}
	var fe *fault.Error
	return errors.Is(err, io.EOF) && !errors.As(err, &fe)
}

// all reads the stream to its end. Its error is what the caller must be told; it is errGone when there is no caller left.
func (s *show) all(ctx context.Context, st provider.Stream) (answer, error) {
	s.blocks = map[int]chat.PartKind{}
	for {
		ev, err := st.Next()
		if err == nil && !s.t.shown { // until something is shown, another attempt may still take this one's place
			s.t.shown = true
			if !s.t.began {
				s.begin(st)
			}
		}
		if fe := ended(ctx); fe != nil && !s.gone && !over(err) {
			s.flush()
			return answer{}, fe
		}
		if ctx.Err() != nil && !s.gone {
			s.gone = true
		}
		if over(err) {
			s.ended = true
			break
		}
		if err != nil {
			if s.gone {
				return answer{}, errGone
			}
			s.flush()
			return answer{}, err
		}
		s.received += int64(len(ev.Text))
		s.weight.Add(ev.Text)
		s.thought = s.thought || ev.Kind == chat.EventThinking
		s.whole = s.whole || ev.Kind == chat.EventWhole
		if s.gone {
			s.drained += int64(len(ev.Wire))
			if s.drained > s.g.DrainBytes && ev.Kind != chat.EventWhole && ev.Kind != chat.EventEnd { // those are the end, whatever they weigh
				return answer{}, errGone
			}
			continue
		}
		if err := s.one(ev); err != nil && !s.gone { // ours, not the sink's: the caller is still there and is told
			s.flush()
			return answer{}, err
		}
	}
	if s.gone {
		return answer{}, errGone
	}
	return s.finish()
}

func (s *show) begin(st provider.Stream) {
	s.t.began = true
	t := s.t
	if t.ttfb == 0 {
		t.ttfb = s.g.Clock().Sub(t.started)
	}
	t.timing.Overhead = t.overhead
	ev := RunStarted{RunID: t.id, ThreadID: t.req.ThreadID, TurnIndex: t.index, Model: t.req.Model, Provider: t.provider(),
		KeySource: string(t.key.Source), PolicyRevision: t.decision.Revision, Capabilities: t.usable, Timing: t.timing, InputHint: s.hint, Losses: t.losses, Flagged: flagged(t)}
	if st != nil {
		ev.Header, ev.Protocol, ev.Same = st.Header(), t.protocol(), t.req.Native != nil && t.neutral == nil
	}
	if s.emit(ev) != nil {
		return
	}
	for _, w := range t.warnings {
		if s.emit(w) != nil {
			return
		}
	}
}

func (s *show) emit(e Event) error {
	if s.gone {
		return nil
	}
	if err := s.sink.Emit(e); err != nil {
		s.gone = true
		s.cancelLater()
		return err
	}
	return nil
}

// pass shows an event of the provider's own.
func (s *show) pass(ev chat.Event) error {
	s.up.Event = ev
	return s.emit(&s.up)
}

func (s *show) one(ev chat.Event) error {
	if ev.Kind == chat.EventStop && ev.Stop != chat.StopNone {
		s.stop = ev.Stop
	}
	if ev.Kind == chat.EventText {
		s.t.text = append(s.t.text, ev.Text...)
	}
	var err error
	if s.t.neutral != nil {
		err = s.crossed(ev)
	} else if s.t.req.Native != nil {
		err = s.native(ev)
	} else {
		s.acc.Add(ev)
		err = s.agent(ev)
	}
	if blocked := s.stream.Blocked(); err == nil && blocked != nil { // what came before it was shown; nothing more is
		s.t.status = Refused
		return blocked
	}
	return err
}

// native passes an event on in the caller's own protocol, with restored text spliced in where it differs.
func (s *show) native(ev chat.Event) error {
	n := s.t.req.Native
	switch ev.Kind {
	case chat.EventBlockStart:
		if s.blocks[ev.Index] = ev.Block; ev.Block != chat.PartThinking {
			return s.repeated(ev)
		}
	case chat.EventOther, chat.EventStop, chat.EventEnd: // citations, whole texts at the end, and whatever the protocol has gained since
		return s.repeated(ev)
	case chat.EventText, chat.EventRefusal:
		return s.delta(ev, s.stream.Text(ev.Index, ev.Text))
	case chat.EventThinking:
		if n.Protocol == chat.OpenAIChat || n.Protocol == chat.OpenAIResponses { // elsewhere it is signed as it stands
			return s.delta(ev, s.stream.Text(ev.Index, ev.Text))
		}
	case chat.EventToolInput:
		if n.ToolDelta == nil { // a protocol whose calls come whole
			ev.Wire = s.t.session.RestoreJSON(ev.Wire)
			break
		}
		return s.delta(ev, s.stream.ToolInput(ev.Index, ev.Text))
	case chat.EventBlockStop:
		if err := s.tail(n, ev.Index, s.stream.Flush(ev.Index)); err != nil {
			return err
		}
		return s.repeated(ev)
	case chat.EventWhole:
		if ev.Message != nil {
			for _, p := range ev.Message.Parts {
				if p.Kind == chat.PartText {
					s.t.text = append(s.t.text, p.Text...)
				}
			}
		}
		s.stop = ev.Stop
		body, err := s.t.session.RestoreBody(n.Protocol, ev.Wire)
		if err != nil {
			return err
		}
		ev.Wire = body
		s.received += int64(len(body))
	}
	return s.pass(ev)
}

// repeated passes an event on that may hold text as a whole.
func (s *show) repeated(ev chat.Event) (err error) {
	if ev.Wire, err = s.t.session.AnswerEvent(ev.Wire); err != nil {
		return err
	}
	return s.pass(ev)
}

func (s *show) delta(ev chat.Event, text string) error {
	if text != ev.Text {
		if text == "" { // held back: it may be the beginning of a token
			return nil
		}
		ev.Text, ev.Wire = text, s.t.req.Native.SpliceDelta(ev.Wire, text)
	}
	return s.pass(ev)
}

// tail gives out what was held back in a block, before the block ends.
func (s *show) tail(n *Native, index int, rest string) error {
	if rest == "" {
		return nil
	}
	if s.t.neutral != nil {
		return s.pass(chat.Event{Kind: deltaOf(s.blocks[index]), Index: index, Text: rest})
	}
	ev := chat.Event{Kind: chat.EventText, Index: index, Text: rest, WireName: n.DeltaName}
	if s.blocks[index] == chat.PartToolCall {
		ev.Kind, ev.Wire = chat.EventToolInput, n.ToolDelta(index, rest)
	} else {
		ev.Wire = n.TextDelta(index, rest)
	}
	return s.pass(ev)
}

// agent shows an event in our own vocabulary.
func (s *show) agent(ev chat.Event) error {
	switch ev.Kind {
	case chat.EventStart:
		s.msgID = ev.MessageID
		return s.emit(MessageStarted{MessageID: ev.MessageID, Step: s.t.step})
	case chat.EventBlockStart:
		s.blocks[ev.Index] = ev.Block
	case chat.EventText:
		if text := s.stream.Text(ev.Index, ev.Text); text != "" {
			return s.emit(TextDelta{MessageID: s.msgID, Index: ev.Index, Delta: text})
		}
	case chat.EventThinking:
		if text := s.stream.Text(ev.Index, ev.Text); text != "" {
			return s.emit(ThinkingDelta{MessageID: s.msgID, Index: ev.Index, Delta: text})
		}
	case chat.EventToolInput:
	case chat.EventBlockStop:
		return s.agentTail(ev.Index, s.stream.Flush(ev.Index))
	}
	return nil
}

func (s *show) agentTail(index int, rest string) error {
	if rest == "" || s.blocks[index] == chat.PartToolCall {
		return nil
	}
	if s.blocks[index] == chat.PartThinking {
		return s.emit(ThinkingDelta{MessageID: s.msgID, Index: index, Delta: rest})
	}
	return s.emit(TextDelta{MessageID: s.msgID, Index: index, Delta: rest})
}

// flush gives out what is still held when the stream breaks, through the detector, never raw.
func (s *show) flush() {
	held := s.stream.FlushAll()
	for _, index := range slices.Sorted(maps.Keys(held)) {
		var err error
		if s.t.req.Native != nil {
			err = s.tail(s.t.req.Native, index, held[index])
		} else {
			err = s.agentTail(index, held[index])
		}
		if err != nil {
			return
		}
	}
}

// finish closes a whole answer: the message joins the conversation, its calls are returned.
func (s *show) finish() (answer, error) {
	t := s.t
	ans := answer{stop: s.stop}
	if t.req.Native != nil {
		return ans, nil
	}
	msg := s.acc.Message()
	ans.calls = callsOf(&msg)
	if len(msg.Parts) > 0 {
		t.said = append(t.said, msg)
		t.prompt.Messages = append(t.prompt.Messages, msg)
	}
	if err := s.emit(MessageDone{MessageID: s.msgID, Step: t.step, Stop: s.stop}); err != nil {
		return ans, errGone
	}
	return ans, nil
}

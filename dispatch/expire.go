package dispatch

import (
	"context"
	"encoding/json"

	"github.com/lossless-group/gateway/fault"
)

// Expire tells a capability that nobody answered its preview in time; one that does not want to hear of it is left alone. Like Discard it passes no
// gate. Errors are those of Discard.
func (t *Turn) Expire(ctx context.Context, c Capability, call Call, state json.RawMessage) error {
	const op = "dispatch.Expire"
	e := t.cfg.Registry.byName[c.Name]
	if e == nil {
		return fault.New(fault.NotFound, op, HandlerFailed, "There is no such capability any more.")
	}
	h, ok := e.handler.(Expirer)
	if !ok {
		return nil
	}
	call.Input = normalInput(call.Input)
	t.own(c, &call)
	_, err := guard(ctx, t, op, e, "expire", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, h.Expire(ctx, call, state)
	})
	return err
}

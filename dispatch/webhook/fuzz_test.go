package webhook

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
)

// Whatever a host answers, it is a result, a no, or a fault of the app's, and a result is one that a turn can take.
func FuzzAnswer(f *testing.F) {
	kinds := []string{"application/json", "application/x-ndjson", "text/event-stream", "application/problem+json", "text/html"}
	phases := []string{PhaseRun, PhasePreview, PhaseApply, PhaseDiscard, PhaseExpire}
	for _, seed := range []string{`{"output":{"ok":true}}`, `{"progress":{"fraction":1e999}}` + "\n" + `{"output":null}`, "data: {\"output\":1}\n\n", `{"summary":"s","artifacts":[{"kind":"a","url":"https://x.example"}]}`, `{"detail":"no"}`, `{"error":{}}`, "{}\n{}"} {
		for kind := range kinds {
			f.Add([]byte(seed), uint8(kind), uint8(0), uint16(200))
			f.Add([]byte(seed), uint8(kind), uint8(1), uint16(422))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, kind, phase uint8, status uint16) {
		w := &Handler{host: &Host{cfg: Config{MaxRead: 64 << 10}}}
		told := 0
		r := &reading{w: w, phase: phases[int(phase)%len(phases)], stop: func() {},
			call: dispatch.Call{Progress: func(dispatch.Progress) { told++ }},
			res:  &http.Response{StatusCode: int(status), Header: http.Header{"Content-Type": {kinds[int(kind)%len(kinds)]}}, ContentLength: -1},
			body: io.LimitReader(bytes.NewReader(raw), 64<<10)}
		a, trouble := r.answer()
		switch {
		case told > maxProgress:
			t.Errorf("%d signs of progress", told)
		case trouble != nil:
			if fe := fault.From(trouble.err); fe == nil || fe.Public == "" || fe.Kind == fault.Internal {
				t.Errorf("%v", trouble.err)
			}
		case a == nil:
			t.Error("neither an answer nor a trouble")
		case a.no != nil:
			if s := a.no.sentence(); s == "" || len(s) > maxSentence+3 {
				t.Errorf("a no of %d bytes", len(s))
			}
		case r.phase == PhasePreview:
			if a.body.Summary == nil || *a.body.Summary == "" || len(a.body.Artifacts) > maxArtifacts {
				t.Errorf("the preview %+v", a.body)
			}
		case r.phase == PhaseRun || r.phase == PhaseApply:
			if !json.Valid(a.body.Output) || len(a.body.Output) > dispatch.MaxOutput {
				t.Errorf("the output %q", a.body.Output)
			}
		}
	})
}

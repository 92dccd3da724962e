package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
)

// asked is what a body asks for: a turn, or, in dialects that have one route for both, a decision about a preview.
type asked struct {
	chat    gateway.Request
	confirm *gateway.ConfirmRequest
	runID   string // what the client calls the run
}

// dialect is a protocol that agent clients speak.
type dialect struct {
	read  func(body []byte) (asked, error)
	voice func(asked) voice
}

// voice tells one caller the events of a run in a dialect. It belongs to one goroutine.
type voice interface {
	of(run gateway.Run)                      // whose events these are; comes first
	head(h http.Header)                      // what the response says of itself
	first() string                           // what stands before all events
	tell(e gateway.RunEvent) ([]byte, error) // whole events of the dialect; none when it has no word for it
	cut(why *fault.Error) []byte             // what is said when the rest cannot be
	last() []byte                            // what stands after all events
}

// dialectOf is the dialect the request's protocol parameter names, of which fallback is the default.
func dialectOf(c echo.Context, fallback string) (dialect, error) {
	name := c.QueryParam("protocol")
	if name == "" {
		name = fallback
	}
	switch name {
	case "":
		return dialect{readOwn, func(asked) voice { return &ownVoice{} }}, nil
	case protocolAISDK:
		return dialect{readAISDK, func(a asked) voice { return newAISDK(a) }}, nil
	case protocolAGUI:
		return dialect{readAGUI, func(a asked) voice { return newAGUI(a) }}, nil
	}
	return dialect{}, fault.Invalidf(opBody, "/protocol", "There is no protocol %q. Use ai-sdk-v1 or ag-ui, or leave it out.", clip(name))
}

func readOwn(body []byte) (asked, error) {
	req, err := parseChat(body)
	return asked{chat: req}, err
}

// ownVoice writes events as contract.md says.
type ownVoice struct {
	runID string
	buf   []byte
}

func (v *ownVoice) of(run gateway.Run)      { v.runID = run.ID }
func (v *ownVoice) head(http.Header)        {}
func (v *ownVoice) first() string           { return "retry: 2000\n" }
func (v *ownVoice) cut(*fault.Error) []byte { return nil }
func (v *ownVoice) last() []byte            { return nil }

func (v *ownVoice) tell(e gateway.RunEvent) ([]byte, error) {
	seq := strconv.Itoa(e.Seq)
	b := append(v.buf[:0], "id: "...)
	b = append(append(append(append(b, v.runID...), ':'), seq...), "\nevent: "...)
	b = append(append(b, e.Name...), "\ndata: {\"type\":\""...)
	b = append(append(append(append(b, e.Name...), "\",\"seq\":"...), seq...), ",\"runId\":\""...)
	b = append(append(b, v.runID...), '"')
	if len(e.Data) > 2 {
		b = append(b, ',')
	}
	b = append(append(b, e.Data[1:]...), "\n\n"...)
	v.buf = b
	return b, nil
}

// runEvents is GET /api/agent/runs/{id}/events: what a run said after Last-Event-ID, then what it goes on to say.
func (s *Server) runEvents(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	d, err := dialectOf(c, "")
	if err != nil {
		return err
	}
	id := c.Param("id")
	after, err := lastEvent(c, id)
	if err != nil {
		return err
	}
	a, err := s.Gateway.Attach(c.Request().Context(), who, gateway.AttachInput{Hint: hint, RunID: id, After: after})
	if err != nil {
		return err
	}
	return s.reattach(c, d, a)
}

// threadStream is GET /api/agent/chat/{threadId}/stream: the run that goes on in a thread, from its beginning. It is where the AI SDK looks for
// a stream to resume, hence its default dialect.
func (s *Server) threadStream(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	d, err := dialectOf(c, protocolAISDK)
	if err != nil {
		return err
	}
	a, err := s.Gateway.AttachThread(c.Request().Context(), who, hint, c.Param("id"))
	if err != nil {
		return err
	}
	return s.reattach(c, d, a)
}

func (s *Server) reattach(c echo.Context, d dialect, a *gateway.Attached) error {
	if a == nil {
		c.Response().Header().Set("Cache-Control", "no-store")
		return c.NoContent(http.StatusNoContent)
	}
	defer a.Close()
	announceRun(c, a)
	return s.stream(c, d.voice(asked{}), a, true)
}

// lastEvent is the number of the event the caller saw last, from Last-Event-ID or, where a header cannot be set, from lastEventId: the id
// of an event of that run, or its number alone.
func lastEvent(c echo.Context, runID string) (int, error) {
	v := c.Request().Header.Get("Last-Event-ID")
	if v == "" {
		v = c.QueryParam("lastEventId")
	}
	if v == "" {
		return 0, nil
	}
	number := v
	if run, rest, ok := strings.Cut(v, ":"); ok {
		if number = rest; run != runID {
			return 0, fault.Invalidf(opBody, "/lastEventId", "Last-Event-ID is of another run. Send the id of an event of this one, or none.")
		}
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || number[0] == '+' {
		return 0, fault.Invalidf(opBody, "/lastEventId", "Last-Event-ID %q is not the id of an event. Send one as it came, or none.", clip(v))
	}
	return n, nil
}

// cancelRun is DELETE /api/agent/runs/{id}. It answers when the run has ended; one that had ended before is no error.
func (s *Server) cancelRun(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	if err := s.Gateway.Cancel(c.Request().Context(), who, hint, c.Param("id")); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// everybodys reads whether a list is to show everybody's in the organisation.
func everybodys(c echo.Context) (bool, error) {
	switch v := c.QueryParam("scope"); v {
	case "":
		return false, nil
	case "org":
		return true, nil
	default:
		return false, fault.Invalidf(opBody, "/scope", "scope %q is not known. Use org, or leave it out to see your own.", clip(v))
	}
}

// dispatchView is a call with a side effect, as far as it is known.
type dispatchView struct {
	ID         string    `json:"id"`
	RunID      string    `json:"runId"`
	ThreadID   string    `json:"threadId"`
	User       string    `json:"user"`
	CallID     string    `json:"callId"`
	Capability string    `json:"capability"`
	Phase      string    `json:"phase"`
	PreviewID  string    `json:"previewId,omitempty"`
	ArgsSHA256 string    `json:"argsSha256"`
	State      string    `json:"state"`
	At         time.Time `json:"at"`
}

func viewDispatches(list []gateway.RunDispatch) []dispatchView {
	out := make([]dispatchView, len(list))
	for i, d := range list {
		out[i] = dispatchView{d.ID, d.RunID, d.ThreadID, string(d.User), d.CallID, d.Capability, d.Phase, d.PreviewID, d.ArgsHash, d.State, d.At}
	}
	return out
}

// listRuns is GET /api/agent/runs: what goes on, waits, or ended nobody knows how.
func (s *Server) listRuns(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	all, err := everybodys(c)
	if err != nil {
		return err
	}
	list, err := s.Gateway.RunList(c.Request().Context(), who, hint, all)
	if err != nil {
		return err
	}
	type view struct {
		RunID        string         `json:"runId"`
		ThreadID     string         `json:"threadId"`
		ProjectID    string         `json:"projectId"`
		ClientTurnID string         `json:"clientTurnId,omitempty"`
		User         string         `json:"user"`
		Status       string         `json:"status"`
		LastSeq      int            `json:"lastSeq"`
		StartedAt    time.Time      `json:"startedAt"`
		Dispatches   []dispatchView `json:"dispatches"`
	}
	out := make([]view, len(list))
	for i, r := range list {
		out[i] = view{r.ID, r.ThreadID, r.ProjectID, r.ClientTurnID, string(r.User), r.Status, r.LastSeq, r.StartedAt, viewDispatches(r.Dispatches)}
	}
	return reply(c, map[string]any{"runs": out, "more": len(out) >= gateway.ListLimit})
}

// resolveDispatch is POST /api/agent/dispatches/{id}/resolve: a person looked what became of a call.
func (s *Server) resolveDispatch(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	body, err := s.readBody(c)
	if err != nil {
		return err
	}
	o, err := decodeObject(body, "", "note")
	if err != nil {
		return err
	}
	note, err := o.text("note", 2000, true)
	if err != nil {
		return err
	}
	if err := s.Gateway.Resolve(c.Request().Context(), who, hint, c.Param("id"), note); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// previews is GET /api/agent/previews: what waits for this person's decision.
func (s *Server) previews(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	all, err := everybodys(c)
	if err != nil {
		return err
	}
	list, err := s.Gateway.PreviewList(c.Request().Context(), who, hint, all)
	if err != nil {
		return err
	}
	type view struct {
		PreviewID  string           `json:"previewId"`
		RunID      string           `json:"runId"`
		ThreadID   string           `json:"threadId"`
		User       string           `json:"user"`
		Capability string           `json:"capability"`
		ConfirmBy  string           `json:"confirmBy,omitempty"`
		MayAnswer  bool             `json:"mayAnswer"`
		CreatedAt  time.Time        `json:"createdAt"`
		ExpiresAt  time.Time        `json:"expiresAt"`
		Input      json.RawMessage  `json:"input,omitempty"`
		Preview    *gateway.Preview `json:"preview,omitempty"`
	}
	out := make([]view, len(list))
	for i, p := range list {
		out[i] = view{p.PreviewID, p.RunID, p.ThreadID, string(p.User), p.Capability, string(p.ConfirmBy), p.MayAnswer, p.CreatedAt, p.ExpiresAt, p.Input, p.Preview}
	}
	return reply(c, map[string]any{"previews": out, "more": len(list) >= gateway.ListLimit})
}

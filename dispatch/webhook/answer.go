package webhook

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/sse"
)

// Bounds of what an answer may hold.
const (
	maxProblem   = 16 << 10 // bytes read of an error answer
	maxSentence  = 2000     // bytes of what a host says in words
	maxSummary   = 2000
	maxArtifacts = 50
	maxProgress  = 1000 // signs of progress that are passed on; the host may send more
	lingerFor    = time.Second
)

// answer is what a host said: one result, or no.
type answer struct {
	body body
	no   *refusal
}

// refusal is an answer of status 4xx: the host heard the call and declines it.
type refusal struct {
	status int
	detail string
}

func (r *refusal) sentence() string {
	if r.detail != "" {
		return r.detail
	}
	return fmt.Sprintf("The app declined this call (status %d).", r.status)
}

// body is the result of any phase; which fields it must have depends on the phase.
type body struct {
	Output      json.RawMessage     `json:"output"`
	DisplayHint string              `json:"displayHint"`
	Failed      bool                `json:"failed"`
	Summary     *string             `json:"summary"`
	Artifacts   []dispatch.Artifact `json:"artifacts"`
	Token       string              `json:"token"`
}

// line is one event of a streamed answer: a sign of progress, a piece of output, an error, or the result.
type line struct {
	Progress *struct {
		Message  string   `json:"message"`
		Fraction *float64 `json:"fraction"`
	} `json:"progress"`
	Chunk *string `json:"chunk"`
	Error *struct {
		Detail string `json:"detail"`
	} `json:"error"`
}

// reading is one answer being read.
type reading struct {
	w      *Handler
	phase  string
	call   dispatch.Call
	res    *http.Response
	bearer keyring.Secret
	body   io.Reader
	stop   func() // ends the request
	told   int    // signs of progress passed on
}

func bad(format string, args ...any) *trouble {
	return &trouble{begun: true, err: fault.New(fault.Upstream, "webhook.answer", dispatch.HandlerFailed, fmt.Sprintf(format, args...))}
}

// answer reads the whole answer. A trouble without an error is a body that broke off; the caller knows why.
func (r *reading) answer() (*answer, *trouble) {
	if e := r.res.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return nil, bad("The app answered in an encoding that was not asked for.")
	}
	switch s := r.res.StatusCode; {
	case s >= 300 && s < 400:
		return nil, bad("The app answered with a redirect, which is not followed.")
	case s >= 500:
		return nil, r.failure()
	case s == http.StatusConflict && r.phase == PhaseApply && r.mediaType() == "application/json":
		return r.one() // applied before: the host tells the result again
	case s >= 400:
		return r.refusal()
	case s == http.StatusNoContent:
		return r.judge(body{Output: json.RawMessage("null")})
	case s < 200 || s > 299:
		return nil, bad("The app answered with status %d.", s)
	}
	if r.res.ContentLength > r.w.host.cfg.MaxRead {
		return nil, r.tooLarge()
	}
	switch kind := r.mediaType(); kind {
	case "application/json":
		return r.one()
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		return r.stream(r.lines())
	case "text/event-stream":
		return r.stream(r.events())
	case "":
		return nil, bad("The app answered without a content type; it must be application/json, application/x-ndjson or text/event-stream.")
	default:
		return nil, bad("The app answered with %s; it must be application/json, application/x-ndjson or text/event-stream.", strconv.Quote(clip(kind, 60)))
	}
}

func (r *reading) mediaType() string {
	kind, _, err := mime.ParseMediaType(r.res.Header.Get("Content-Type"))
	if err != nil && kind == "" {
		return clip(r.res.Header.Get("Content-Type"), 60)
	}
	return kind
}

func (r *reading) tooLarge() *trouble {
	return bad("The app's answer is larger than %d KiB; ask for less.", r.w.host.cfg.MaxRead>>10)
}

// cut explains a body that could not be read on.
func (r *reading) cut(err error) *trouble {
	switch {
	case errors.Is(err, errTooLarge):
		return r.tooLarge()
	case errors.Is(err, sse.ErrTooLong):
		return bad("One event of the app's answer is too large.")
	}
	return &trouble{begun: true}
}

// failure is an answer of status 5xx: the host, or what stands before it, failed.
func (r *reading) failure() *trouble {
	s := r.res.StatusCode
	t := bad("The app failed (status %d).", s)
	t.begun = false // it is an answer about the request, not to it
	switch s {
	case http.StatusServiceUnavailable:
		t.again, t.after = true, retryAfter(r.res.Header)
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		t.again = true
	default:
		t.told = true // the host says itself that it failed
	}
	return t
}

func retryAfter(h http.Header) time.Duration {
	s, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || s < 0 {
		return 0
	}
	return time.Duration(min(s, 3600)) * time.Second
}

// refusal reads an answer of status 4xx.
func (r *reading) refusal() (*answer, *trouble) {
	s := r.res.StatusCode
	switch s {
	case http.StatusUnauthorized:
		t := bad("The app did not accept this gateway's signature or token. An operator must compare the webhook's secret and keys.")
		t.told = true
		return nil, t
	case http.StatusTooManyRequests:
		t := &trouble{again: true, told: true, after: retryAfter(r.res.Header)}
		f := fault.New(fault.RateLimited, "webhook.answer", dispatch.HandlerFailed, "The app is asked too often. Try again in a moment.")
		f.RetryAfter = t.after
		t.err = f
		return nil, t
	}
	no := &refusal{status: s}
	if kind := r.mediaType(); kind == "application/problem+json" || kind == "application/json" {
		// A detail that cannot be read is none: the status says enough.
		raw, _ := io.ReadAll(io.LimitReader(r.body, maxProblem))
		var p struct{ Detail, Title string }
		if json.Unmarshal(r.scrub(raw), &p) == nil {
			no.detail = sentence(p.Detail, maxSentence)
			if no.detail == "" {
				no.detail = sentence(p.Title, maxSentence)
			}
		}
	}
	return &answer{no: no}, nil
}

// scrub keeps the token that the host was given out of what the model and the person read.
func (r *reading) scrub(raw []byte) []byte {
	if v := r.bearer.Reveal(); v != "" && bytes.Contains(raw, []byte(v)) {
		return bytes.ReplaceAll(raw, []byte(v), []byte("[secret]"))
	}
	return raw
}

// one reads a single JSON document.
func (r *reading) one() (*answer, *trouble) {
	raw, err := io.ReadAll(r.body)
	if err != nil {
		return nil, r.cut(err)
	}
	if len(bytes.TrimSpace(raw)) == 0 && (r.phase == PhaseDiscard || r.phase == PhaseExpire) {
		return &answer{}, nil
	}
	return r.result(raw)
}

func (r *reading) result(raw []byte) (*answer, *trouble) {
	var b body
	if err := json.Unmarshal(r.scrub(raw), &b); err != nil {
		var te *json.UnmarshalTypeError
		if errors.As(err, &te) {
			return nil, bad("The app's answer has the wrong form at %s.", strconv.Quote(clip("/"+strings.ReplaceAll(te.Field, ".", "/"), 80)))
		}
		return nil, bad("The app's answer is not JSON.")
	}
	return r.judge(b)
}

// judge holds a result against its phase.
func (r *reading) judge(b body) (*answer, *trouble) {
	switch r.phase {
	case PhaseDiscard, PhaseExpire:
		return &answer{}, nil
	case PhaseRun, PhaseApply:
		if b.Output == nil {
			return nil, bad("The app's answer has no output.")
		}
		if len(b.Output) > dispatch.MaxOutput {
			return nil, bad("The result is larger than %d KiB; ask for less.", dispatch.MaxOutput>>10)
		}
		b.DisplayHint = sentence(b.DisplayHint, 100)
		return &answer{body: b}, nil
	}
	if b.Summary == nil || sentence(*b.Summary, maxSummary) == "" {
		return nil, bad("The app's preview has no summary.")
	}
	summary := sentence(*b.Summary, maxSummary)
	b.Summary = &summary
	if len(b.Artifacts) > maxArtifacts {
		return nil, bad("The app's preview has more than %d artifacts.", maxArtifacts)
	}
	for i, a := range b.Artifacts {
		if a.Kind == "" {
			return nil, bad("The app's preview has an artifact without a kind, at /artifacts/%d.", i)
		}
		if a.URL != "" {
			// A person is going to open it.
			if u, err := url.Parse(a.URL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
				return nil, bad("The app's preview has an address that is not http or https, at /artifacts/%d/url.", i)
			}
		}
	}
	return &answer{body: b}, nil
}

// lines yields the lines of an NDJSON answer that are not blank. A last line without a line break is a line: some writers omit it, and one
// that was cut is not JSON.
func (r *reading) lines() func() ([]byte, error) {
	br := bufio.NewReader(r.body) // the body is metered, so no line is longer than an answer may be
	return func() ([]byte, error) {
		for {
			raw, err := br.ReadBytes('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			if raw = bytes.TrimSpace(raw); len(raw) > 0 {
				return raw, nil
			}
			if err != nil {
				return nil, err
			}
		}
	}
}

// events yields the data of the events of an SSE answer.
func (r *reading) events() func() ([]byte, error) {
	sr := sse.NewReader(r.body, sse.WithMaxEvent(int(min(r.w.host.cfg.MaxRead, math.MaxInt32))))
	return func() ([]byte, error) {
		for {
			e, err := sr.Next()
			if err != nil {
				return nil, err
			}
			if data := bytes.TrimSpace(e.Data); len(data) > 0 {
				return data, nil
			}
		}
	}
}

// stream reads events up to the one result and makes sure that nothing but silence follows it.
func (r *reading) stream(next func() ([]byte, error)) (*answer, *trouble) {
	for {
		raw, err := next()
		if errors.Is(err, io.EOF) {
			return nil, bad("The app's answer ended without a result.")
		}
		if err != nil {
			return nil, r.cut(err)
		}
		raw = r.scrub(raw)
		var l line
		if err := json.Unmarshal(raw, &l); err != nil {
			return nil, bad("The app's answer holds a line that is not JSON of the right form.")
		}
		switch {
		case l.Error != nil:
			no := &refusal{status: http.StatusUnprocessableEntity, detail: sentence(l.Error.Detail, maxSentence)}
			return &answer{no: no}, r.rest(next)
		case l.Progress != nil || l.Chunk != nil:
			r.progress(l)
		default:
			a, t := r.result(raw)
			if t == nil {
				t = r.rest(next)
			}
			if t != nil {
				return nil, t
			}
			return a, nil
		}
	}
}

// rest reads what comes after the result, for a short while: a host that keeps its stream open has still said all it had to.
func (r *reading) rest(next func() ([]byte, error)) *trouble {
	done := make(chan error, 1)
	go func() {
		_, err := next()
		done <- err
	}()
	timer := time.NewTimer(lingerFor)
	defer timer.Stop()
	select {
	case err := <-done:
		if err == nil {
			return bad("The app's answer goes on after its result.")
		}
	case <-timer.C:
		r.stop()
		<-done
	}
	return nil
}

func (r *reading) progress(l line) {
	if r.call.Progress == nil || r.told >= maxProgress {
		return
	}
	r.told++
	p := dispatch.Progress{Fraction: -1}
	if l.Progress != nil {
		p.Message = sentence(l.Progress.Message, 500)
		if f := l.Progress.Fraction; f != nil {
			p.Fraction = min(1, max(0, *f))
		}
	}
	if l.Chunk != nil {
		p.Chunk = *l.Chunk
	}
	r.call.Progress(p)
}

// sentence makes a host's words fit to be shown: no control characters, at most n bytes.
func sentence(s string, n int) string {
	s = strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return c
		case unicode.IsControl(c), c == utf8.RuneError:
			return -1
		}
		return c
	}, s)
	return clip(strings.TrimSpace(s), n)
}

// clip shortens s to at most n bytes without splitting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

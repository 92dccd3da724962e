package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/gateway"
)

// keyStanding is where a request keeps how its caller's limits stand.
const keyStanding = "gateway.standing"

// short is the name a limit has in RateLimit-Policy.
func short(name string) string {
	switch name {
	case "requests":
		return "rpm"
	case "input-tokens":
		return "itpm"
	case "output-tokens":
		return "otpm"
	}
	return "concurrent"
}

// tellLimits puts how limits and budgets stand into headers: for everybody as draft-ietf-httpapi-ratelimit-headers-11 says, and in the form the
// surface's own clients read. It does nothing where no turn told.
func tellLimits(c echo.Context) {
	s, ok := c.Get(keyStanding).(*gateway.Standing)
	if !ok {
		return
	}
	h := c.Response().Header()
	if limits, at := s.Limits(); len(limits) > 0 {
		policy, state := make([]byte, 0, 160), make([]byte, 0, 128)
		for _, l := range limits {
			policy, state = item(policy, short(l.Name)), item(state, short(l.Name))
			policy = param(policy, ";q=", l.Quota)
			state = param(state, ";r=", l.Left)
			if l.Window > 0 {
				policy = param(policy, ";w=", seconds(l.Window))
				state = param(state, ";t=", seconds(l.Reset))
			} else {
				policy = append(policy, `;qu="concurrent-requests"`...)
			}
		}
		h.Set("RateLimit-Policy", string(policy))
		h.Set("RateLimit", string(state))
		switch faceOf(c.Request()) {
		case faceOpenAI:
			openAILimits(h, limits)
		case faceAnthropic:
			anthropicLimits(h, limits, at)
		}
	}
	var near []byte
	for _, b := range s.Budgets() {
		near = param(item(near, b.ID), ";used=", int64(b.Percent))
	}
	if len(near) > 0 {
		h.Set("X-Budget-Used", string(near))
	}
}

// item begins a member of a structured list (RFC 9651): a string, after a comma when it is not the first.
func item(b []byte, name string) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	b = append(b, '"')
	b = append(b, name...) // a word of ours or a budget's id: nothing to escape
	return append(b, '"')
}

func param(b []byte, name string, v int64) []byte {
	return strconv.AppendInt(append(b, name...), v, 10)
}

// seconds rounds up, so that who waits as long is not early.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// tokens is one limit for what has two: the sums, and when both are full again.
func tokens(limits []gateway.Limit) (sum gateway.Limit, ok bool) {
	for _, l := range limits {
		if l.Name == "input-tokens" || l.Name == "output-tokens" {
			sum.Quota += l.Quota
			sum.Left += l.Left
			sum.Reset = max(sum.Reset, l.Reset)
			ok = true
		}
	}
	return sum, ok
}

func openAILimits(h http.Header, limits []gateway.Limit) {
	set := func(name string, l gateway.Limit) {
		h.Set("X-Ratelimit-Limit-"+name, strconv.FormatInt(l.Quota, 10))
		h.Set("X-Ratelimit-Remaining-"+name, strconv.FormatInt(l.Left, 10))
		h.Set("X-Ratelimit-Reset-"+name, l.Reset.Round(time.Millisecond).String())
	}
	set("Requests", limits[0])
	if l, ok := tokens(limits); ok {
		set("Tokens", l)
	}
}

func anthropicLimits(h http.Header, limits []gateway.Limit, now time.Time) {
	set := func(name string, l gateway.Limit) {
		h.Set("Anthropic-Ratelimit-"+name+"-Limit", strconv.FormatInt(l.Quota, 10))
		h.Set("Anthropic-Ratelimit-"+name+"-Remaining", strconv.FormatInt(l.Left, 10))
		h.Set("Anthropic-Ratelimit-"+name+"-Reset", now.Add(time.Duration(seconds(l.Reset))*time.Second).UTC().Format(time.RFC3339))
	}
	for _, l := range limits {
		switch l.Name {
		case "requests":
			set("Requests", l)
		case "input-tokens":
			set("Input-Tokens", l)
		case "output-tokens":
			set("Output-Tokens", l)
		}
	}
	if l, ok := tokens(limits); ok {
		set("Tokens", l)
	}
}

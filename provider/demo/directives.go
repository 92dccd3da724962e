package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Directives stand at the start of a line of the person's text and are for tests:
//
//	/demo error 529        the request is answered with that status (400 to 599)
//	/demo cut              the stream ends in the middle, without its terminal event
//	/demo slow 500ms       that long between deltas (at most 30s)
//	/demo tokens 800       that many output tokens, four bytes each (at most 200000)
//	/demo thinking         a thinking block, signed, before the text
//	/demo call NAME JSON   calls a tool, offered or not; several lines make parallel calls
//	/demo loop NAME JSON   calls it again after every result
const directive = "/demo "

const (
	maxSlow   = 30 * time.Second
	maxTokens = 200_000
	maxEcho   = 4000
)

// Wire names of the demo application's capabilities.
const (
	toolDeckRead  = "deck-read"
	toolSlideRead = "slide-read"
	toolSlideEdit = "slide-edit"
)

// plan is what the provider decided to answer, before it is cut to the token limit.
type plan struct {
	status   int // not 0: refuse with this status
	slow     time.Duration
	cut      bool
	thinking string
	text     string
	calls    []plannedCall
}

type plannedCall struct {
	name  string
	input json.RawMessage
}

func planAnswer(r *request) plan {
	d := readDirectives(r.text)
	if len(r.results) > 0 {
		p := plan{slow: d.slow, text: report(r)}
		if d.loop != nil {
			p.text, p.calls = "Again.", []plannedCall{d.loop.resolve(r)}
		}
		return p
	}
	p := plan{status: d.status, slow: d.slow, cut: d.cut}
	if d.thinking {
		p.thinking = "The person asked for a demonstration. I think of it for a moment, and then answer."
	}
	calls := d.calls
	if d.loop != nil {
		calls = append(calls, *d.loop)
	}
	switch {
	case d.tokens > 0:
		p.text = strings.Repeat("tok ", d.tokens)
	case len(calls) > 0:
		p.text = "Calling as you asked."
		for _, c := range calls {
			p.calls = append(p.calls, c.resolve(r))
		}
	case r.toolChoice.Type == "tool" && r.tools[r.toolChoice.Name]:
		p.calls = []plannedCall{{r.toolChoice.Name, json.RawMessage("{}")}}
	case r.toolChoice.Type == "any" && len(r.toolOrder) > 0:
		p.calls = []plannedCall{{r.toolOrder[0], json.RawMessage("{}")}}
	default:
		if text, call, ok := intent(r, d.rest); ok && r.toolChoice.Type != "none" {
			p.text, p.calls = text, []plannedCall{call}
		} else {
			p.text = echo(r, d.rest)
		}
	}
	return p
}

type directives struct {
	status, tokens int
	slow           time.Duration
	cut, thinking  bool
	calls          []plannedCall
	loop           *plannedCall
	rest           string // the text without understood directives
}

func readDirectives(text string) directives {
	var d directives
	var rest []string
	for line := range strings.SplitSeq(text, "\n") {
		if l := strings.TrimSpace(line); !strings.HasPrefix(l, directive) || !d.read(strings.TrimPrefix(l, directive)) {
			rest = append(rest, line)
		}
	}
	d.rest = strings.TrimSpace(strings.Join(rest, "\n"))
	return d
}

// read takes one directive and reports whether it understood it.
func (d *directives) read(s string) bool {
	verb, arg, _ := strings.Cut(strings.TrimSpace(s), " ")
	arg = strings.TrimSpace(arg)
	switch verb {
	case "cut":
		d.cut = true
	case "thinking":
		d.thinking = true
	case "error":
		n, err := strconv.Atoi(arg)
		if err != nil || n < 400 || n > 599 {
			return false
		}
		d.status = n
	case "tokens":
		n, err := strconv.Atoi(arg)
		if err != nil || n < 1 {
			return false
		}
		d.tokens = min(n, maxTokens)
	case "slow":
		t, err := time.ParseDuration(arg)
		if err != nil || t < 0 {
			return false
		}
		d.slow = min(t, maxSlow)
	case "call", "loop":
		name, input, _ := strings.Cut(arg, " ")
		if input = strings.TrimSpace(input); input == "" {
			input = "{}"
		}
		// A tool call's input is always JSON; what is not stays in the text.
		var compact bytes.Buffer
		if name == "" || json.Compact(&compact, []byte(input)) != nil {
			return false
		}
		c := plannedCall{name, compact.Bytes()}
		if verb == "loop" {
			d.loop = &c
		} else {
			d.calls = append(d.calls, c)
		}
	default:
		return false
	}
	return true
}

// resolve lets a directive name a capability with its dots when the request offers it under its wire name.
func (c plannedCall) resolve(r *request) plannedCall {
	if !r.tools[c.name] {
		if w := strings.ReplaceAll(strings.ReplaceAll(c.name, "-", "--"), ".", "-"); r.tools[w] {
			c.name = w
		}
	}
	return c
}

var (
	readSlide = regexp.MustCompile(`(?is)\b(?:read|show|open|look at|see|what(?:'s| is| does)|tell me about)\b.*?\bslide\s+#?(\d{1,4})\b`)
	editSlide = regexp.MustCompile(`(?is)\b(?:change|edit|rename|retitle|make|set|update|rewrite|call)\b.*?\bslide\s+#?(\d{1,4})\b(.*)`)
	readDeck  = regexp.MustCompile(`(?is)\b(?:read|show|list|outline|summari[sz]e)\b.*?\b(?:deck|slides|titles|outline)\b`)
	quoted    = regexp.MustCompile(`["“]([^"“”]+)["”]`)
	toTitle   = regexp.MustCompile(`(?is)\b(?:to say|to read|to|say|into|as)\b[:\s]+(.+)`)
)

// intent finds what the person asks of the demo application, if its tools are offered.
func intent(r *request, text string) (string, plannedCall, bool) {
	if m := editSlide.FindStringSubmatch(text); m != nil && r.tools[toolSlideEdit] {
		n, _ := strconv.Atoi(m[1]) // the expression admits digits only
		title := newTitle(m[2], n)
		return fmt.Sprintf("I propose a change of slide %d.", n), plannedCall{toolSlideEdit, encode(struct {
			Slide int    `json:"slide"`
			Title string `json:"title"`
		}{n, title})}, true
	}
	if m := readSlide.FindStringSubmatch(text); m != nil && r.tools[toolSlideRead] {
		n, _ := strconv.Atoi(m[1])
		return fmt.Sprintf("Let me look at slide %d.", n), plannedCall{toolSlideRead, encode(struct {
			Slide int `json:"slide"`
		}{n})}, true
	}
	if readDeck.MatchString(text) && r.tools[toolDeckRead] {
		return "Let me look at the deck.", plannedCall{toolDeckRead, json.RawMessage("{}")}, true
	}
	return "", plannedCall{}, false
}

// newTitle reads the wanted title off what follows the slide's number.
func newTitle(rest string, n int) string {
	title := rest
	if m := quoted.FindStringSubmatch(rest); m != nil {
		title = m[1]
	} else if m := toTitle.FindStringSubmatch(rest); m != nil {
		title = m[1]
	}
	title = strings.Join(strings.Fields(title), " ")
	title = strings.Trim(title, " .,:;!?'\"")
	title = strings.TrimPrefix(title, "'s ")
	if title == "" || title == "s" {
		return fmt.Sprintf("Slide %d, revised", n)
	}
	if first, size := utf8.DecodeRuneInString(title); first >= 'a' && first <= 'z' {
		title = strings.ToUpper(title[:size]) + title[size:]
	}
	return shorten(title, 190)
}

func echo(r *request, text string) string {
	if text == "" {
		text = "(nothing but a directive)"
	}
	s := "You wrote: " + shorten(text, maxEcho) + "\n\nI am the offline demo model " + r.model + ", so this answer is always the same for the same words."
	if r.tools[toolSlideRead] || r.tools[toolSlideEdit] {
		s += " Try \"show slide 3\" or \"rename slide 4 to Our promise\"."
	}
	return s
}

// report says, in the order of the results, what came of the calls; it claims nothing that a result does not say.
func report(r *request) string {
	parts := make([]string, 0, len(r.results))
	for _, res := range r.results {
		parts = append(parts, reportOne(r.calls[res.callID], res))
	}
	return strings.Join(parts, "\n\n")
}

func reportOne(call toolUse, res toolResult) string {
	text := strings.TrimSpace(res.text)
	var out struct {
		Slide   int    `json:"slide"`
		Title   string `json:"title"`
		Body    string `json:"body"`
		Applied bool   `json:"applied"`
		Error   string `json:"error"`
		Slides  []struct {
			Slide int    `json:"slide"`
			Title string `json:"title"`
		} `json:"slides"`
	}
	isJSON := json.Unmarshal([]byte(text), &out) == nil
	switch lower := strings.ToLower(text); {
	case !isJSON && strings.HasPrefix(lower, "the person discarded"):
		return "You discarded the change, so nothing was changed."
	case !isJSON && strings.HasPrefix(lower, "the preview of ") && strings.Contains(lower, " expired "):
		return "The preview expired before it was accepted, so nothing was changed."
	case isJSON && out.Error != "":
		return "That did not work: " + out.Error
	case !isJSON && strings.Contains(lower, "was refused ("):
		return "That was refused: " + shorten(text, 1000)
	case res.failed:
		return "That did not work: " + shorten(text, 1000)
	case isJSON && out.Applied:
		return fmt.Sprintf("The change was applied: slide %d is now titled %q.", out.Slide, out.Title)
	case isJSON && len(out.Slides) > 0:
		var b strings.Builder
		fmt.Fprintf(&b, "The deck has %d slides:\n", len(out.Slides))
		for _, s := range out.Slides {
			fmt.Fprintf(&b, "%d. %s\n", s.Slide, s.Title)
		}
		return strings.TrimSpace(b.String())
	case isJSON && out.Slide > 0:
		return strings.TrimSpace(fmt.Sprintf("Slide %d is titled %q.\n\n%s", out.Slide, out.Title, out.Body))
	case text == "":
		return call.name + " answered nothing."
	}
	return call.name + " answered: " + shorten(text, 2000)
}

// shorten cuts s to at most n bytes between characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

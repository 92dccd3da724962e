package openai

import (
	"slices"
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// ModelEdit is the edit that makes the body ask for newModel.
func ModelEdit(v View, newModel string) chat.Edit {
	return chat.Edit{Start: v.ModelAt.Start, End: v.ModelAt.End, Text: jsonscan.AppendString(nil, newModel)}
}

// MaxTokensEdit is the edit that asks for an answer of at most max tokens, also when the client set no limit.
func MaxTokensEdit(v View, max int) chat.Edit {
	n := strconv.AppendInt(nil, int64(max), 10)
	if !v.MaxAt.IsZero() {
		return chat.Edit{Start: v.MaxAt.Start, End: v.MaxAt.End, Text: n}
	}
	name := "max_completion_tokens"
	if v.Protocol == chat.OpenAIResponses {
		name = "max_output_tokens"
	}
	return v.insert(name, string(n))
}

// insert is the edit that adds a member before all others. A request always has some.
func (v View) insert(name, value string) chat.Edit {
	return chat.Edit{Start: v.open + 1, End: v.open + 1, Text: []byte(`"` + name + `":` + value + `,`)}
}

// ProviderEdits are the edits every body needs on its way to a provider of the same API: the usage of a stream is always
// asked for, and nothing is kept at the provider, where one client's ids would open another's answers.
func ProviderEdits(v View) []chat.Edit {
	if v.Protocol == chat.OpenAIResponses {
		switch {
		case v.storeAt.IsZero():
			return []chat.Edit{v.insert("store", "false")}
		default:
			return []chat.Edit{{Start: v.storeAt.Start, End: v.storeAt.End, Text: []byte("false")}}
		}
	}
	if v.Protocol != chat.OpenAIChat || !v.Stream || v.IncludeUsage {
		return nil
	}
	switch {
	case !v.usageAt.IsZero():
		return []chat.Edit{{Start: v.usageAt.Start, End: v.usageAt.End, Text: []byte("true")}}
	case v.optionsAt < 0:
		return []chat.Edit{v.insert("stream_options", `{"include_usage":true}`)}
	}
	return []chat.Edit{{Start: v.options.Start, End: v.options.End, Text: []byte(`{"include_usage":true}`)}}
}

// cuts are the edits that take elements out of a list, with the right commas; each run of neighbours goes at once. An
// element may stand in the list more than once.
func cuts(all []jsonscan.Range, gone []bool) (edits []chat.Edit) {
	for i := 0; i < len(all); i++ {
		if !gone[i] {
			continue
		}
		j := i
		for j+1 < len(all) && gone[j+1] {
			j++
		}
		e := chat.Edit{Start: all[i].Start, End: all[j].End}
		switch {
		case i > 0:
			e.Start = all[i-1].End
		case j+1 < len(all):
			e.End = all[j+1].Start
		}
		edits = append(edits, e)
		i = j
	}
	return edits
}

// RemoveTools returns the edits that take the named tools out of the body v was read from. When no tool stays, tools,
// tool_choice and parallel_tool_calls go as a whole. Tools of one namespace go together.
//
// It fails with fault.Forbidden, code disabled_by_policy, when tool_choice names one of the removed tools, because the
// request cannot mean anything then.
func RemoveTools(_ []byte, v View, names map[string]bool) ([]chat.Edit, error) {
	var at []jsonscan.Range
	var gone []bool
	left, removed := 0, false
	for _, t := range v.Tools {
		if n := len(at); n > 0 && at[n-1] == t.At { // the same namespace
			gone[n-1] = gone[n-1] || names[t.Name]
			continue
		}
		at, gone = append(at, t.At), append(gone, names[t.Name])
	}
	for _, g := range gone {
		removed = removed || g
		if !g {
			left++
		}
	}
	if !removed {
		return nil, nil
	}
	for _, forced := range append([]string{v.ForcedTool}, v.AllowedTools...) {
		if forced != "" && names[forced] {
			return nil, &fault.Error{
				Kind: fault.Forbidden, Op: "openai.RemoveTools", Code: "disabled_by_policy", Field: "/tool_choice",
				Public: "tool_choice names a tool that your organisation's policy has turned off. Choose another tool or let the model choose.",
			}
		}
	}
	if left > 0 {
		return cuts(at, gone), nil
	}
	out := make([]bool, len(v.members))
	for _, i := range [...]int{v.toolsAt, v.choiceAt, v.paralAt} {
		if i >= 0 {
			out[i] = true
		}
	}
	return cuts(v.members, out), nil
}

// Adapt changes a body of protocol p to the dialect of its provider: it takes out members the provider refuses, and says
// others in the provider's words. Nothing is added but what ProviderEdits adds. A body that needs no change is returned
// itself. losses tells what was left out; the error is that of a body that cannot be sent there.
func Adapt(p chat.Protocol, body []byte, d Dialect) (adapted []byte, losses []chat.Loss, err error) {
	v, err := ParseRequest(p, body)
	if err != nil {
		return nil, nil, err
	}
	a := adapter{v: v, b: body, d: d, gone: make([]bool, len(v.members))}
	for i, at := range v.members {
		a.member(i, at)
	}
	if a.err != nil {
		return nil, a.losses, a.err
	}
	edits := a.edits
	if !d.NoUsageAsk || p != chat.OpenAIChat {
		for _, e := range ProviderEdits(v) {
			if v.optionsAt >= 0 && a.gone[v.optionsAt] || slices.Contains(d.Unsupported, "stream_options") && p == chat.OpenAIChat {
				continue
			}
			if slices.Contains(d.Unsupported, "store") && p == chat.OpenAIResponses {
				continue
			}
			edits = append(edits, e)
		}
	}
	edits = append(edits, cuts(v.members, a.gone)...)
	return splice(body, edits), a.losses, nil
}

type adapter struct {
	v      View
	b      []byte
	d      Dialect
	gone   []bool
	edits  []chat.Edit
	losses []chat.Loss
	err    *fault.Error
}

func (a *adapter) member(i int, at jsonscan.Range) {
	s := jsonscan.Scanner{B: a.b, I: at.Start}
	key, plain := s.Str()
	name := string(s.Key(key, plain))
	s.Space()
	s.I++ // the colon
	isNull := s.Space() == 'n'
	value := jsonscan.Range{Start: s.I, End: at.End}
	if name == "stream_options" && a.d.NoUsageAsk && a.v.Protocol == chat.OpenAIChat {
		a.gone[i] = true // the usage comes by itself: nothing is lost
		return
	}
	if slices.Contains(a.d.Unsupported, name) && !isNull {
		if name == "tool_choice" && (a.v.ForcedTool != "" || string(value.In(a.b)) == `"required"`) {
			a.err = &fault.Error{Kind: fault.Invalid, Op: opEncode, Code: "unsupported_parameter", Field: "/tool_choice",
				Public: "The provider of this model cannot be made to call a tool. Leave tool_choice out or choose another model."}
			return
		}
		a.gone[i] = true
		switch string(value.In(a.b)) {
		case "false", "[]", "{}", `""`, "0": // it asks for nothing
			return
		case "1":
			if name == "n" {
				return
			}
		}
		l := chat.Loss{Field: "/" + name, Fate: withoutIt(name), Why: "the provider does not take " + name}
		a.losses = append(a.losses, l)
		if l.Fate == chat.Refused && a.err == nil {
			a.err = refusal(l)
		}
		return
	}
	switch name {
	case "max_tokens", "max_completion_tokens":
		if want := a.d.MaxTokens; want != "" && want != name && a.v.Protocol == chat.OpenAIChat {
			a.replace(key, want)
		}
	case "tool_choice":
		if a.d.AnyTool != "" && string(value.In(a.b)) == `"required"` {
			a.replace(value, a.d.AnyTool)
		}
	case "messages":
		if a.d.System != "" || a.d.ShortCallID {
			a.messages(value)
		}
	}
}

func (a *adapter) replace(at jsonscan.Range, with string) {
	a.edits = append(a.edits, chat.Edit{Start: at.Start, End: at.End, Text: jsonscan.AppendString(nil, with)})
}

// messages says roles and ids of calls the provider's way.
func (a *adapter) messages(at jsonscan.Range) {
	e := requestEncoder{d: a.d}
	s := jsonscan.Scanner{B: a.b, I: at.Start}
	id := func() {
		p := str(&s)
		if !a.d.ShortCallID || !p.some() {
			return
		}
		if old := p.text(a.b); e.callID(old) != old {
			a.replace(p.at, e.callID(old))
		}
	}
	s.Elements(func(int) {
		s.Members(func(name []byte) {
			switch string(name) {
			case "role":
				p := str(&s)
				if p.some() && a.d.System != "" && p.text(a.b) == "developer" {
					a.replace(p.at, a.d.System)
				}
			case "tool_call_id":
				id()
			case "tool_calls":
				s.Elements(func(int) {
					s.Members(func(name []byte) {
						if string(name) == "id" {
							id()
							return
						}
						s.Value()
					})
				})
			default:
				s.Value()
			}
		})
	})
}

// splice applies edits that do not overlap; of two at one place the shorter one comes first.
func splice(body []byte, edits []chat.Edit) []byte {
	if len(edits) == 0 {
		return body
	}
	slices.SortStableFunc(edits, func(a, b chat.Edit) int {
		if a.Start != b.Start {
			return a.Start - b.Start
		}
		return a.End - b.End
	})
	out := make([]byte, 0, len(body)+64*len(edits))
	from := 0
	for _, e := range edits {
		out = append(append(out, body[from:e.Start]...), e.Text...)
		from = e.End
	}
	return append(out, body[from:]...)
}

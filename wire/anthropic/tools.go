package anthropic

import (
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// RemoveTools returns the edits that take the named tools out of the body v was read from. A cache mark on a removed
// tool moves to the nearest tool before it that stays, or to the last one that stays when none is before it, so that the
// prompt prefix stays cached. When no tool stays, tools and tool_choice go as a whole.
//
// It fails with fault.Forbidden, code disabled_by_policy, when tool_choice forces one of the removed tools, because
// the request cannot mean anything then.
func RemoveTools(raw []byte, v View, names map[string]bool) ([]chat.Edit, error) {
	gone := make([]bool, len(v.Tools))
	n := 0
	for i, t := range v.Tools {
		if names[t.Name] {
			gone[i] = true
			n++
		}
	}
	if n == 0 {
		return nil, nil
	}
	if v.ForcedTool != "" && names[v.ForcedTool] {
		return nil, &fault.Error{
			Kind: fault.Forbidden, Op: "anthropic.RemoveTools", Code: "disabled_by_policy", Field: "/tool_choice/name",
			Public: "tool_choice forces a tool that your organisation's policy has turned off. Choose another tool or let the model choose.",
		}
	}
	if n == len(v.Tools) {
		return removeMembers(v.tools, v.choice), nil
	}
	var edits []chat.Edit
	for i := 0; i < len(gone); i++ {
		if !gone[i] {
			continue
		}
		j := i
		for j+1 < len(gone) && gone[j+1] {
			j++
		}
		e := chat.Edit{Start: v.Tools[i].At.Start, End: v.Tools[j].At.End}
		if i > 0 {
			e.Start = v.Tools[i-1].At.End
		} else {
			e.End = v.Tools[j+1].At.Start
		}
		edits = append(edits, e)
		i = j
	}
	return append(edits, moveMarks(raw, v, gone)...), nil
}

// moveMarks gives the marks of tools that go to tools that stay. It walks backwards, so that of two marks that meet on
// one tool the later one, which ends the longer prefix, is kept.
func moveMarks(raw []byte, v View, gone []bool) []chat.Edit {
	var edits []chat.Edit
	taken := make([]bool, len(gone))
	for i := len(gone) - 1; i >= 0; i-- {
		if !gone[i] || !v.Tools[i].Marked {
			continue
		}
		to := i
		for to >= 0 && gone[to] {
			to--
		}
		if to < 0 {
			for to = len(gone) - 1; gone[to]; to-- {
			}
		}
		t := v.Tools[to]
		if t.Marked || taken[to] {
			continue
		}
		taken[to] = true
		mark := v.Tools[i].mark.In(raw)
		if !t.mark.IsZero() {
			edits = append(edits, chat.Edit{Start: t.mark.Start, End: t.mark.End, Text: append([]byte(nil), mark...)})
			continue
		}
		text := make([]byte, 0, len(mark)+len(`,"cache_control":`))
		if !t.empty {
			text = append(text, ',')
		}
		text = append(append(text, `"cache_control":`...), mark...)
		edits = append(edits, chat.Edit{Start: t.At.End - 1, End: t.At.End - 1, Text: text})
	}
	return edits
}

// removeMembers takes top-level members out with the right commas. The body always keeps at least the model.
func removeMembers(a, b member) []chat.Edit {
	if !a.ok || b.ok && b.index < a.index {
		a, b = b, a
	}
	if !a.ok {
		return nil
	}
	if b.ok && b.index == a.index+1 {
		a.at.End, a.after = b.at.End, b.after
		b.ok = false
	}
	cut := func(m member) chat.Edit {
		if m.index > 0 {
			return chat.Edit{Start: m.before, End: m.at.End}
		}
		return chat.Edit{Start: m.at.Start, End: m.after}
	}
	edits := []chat.Edit{cut(a)}
	if b.ok {
		edits = append(edits, cut(b))
	}
	return edits
}

// Package cache owns the prompt prefix of the agent surface: the slabs, their order, where the cache marks go, and the hashes
// that tell later why a prefix broke.
//
// It refuses to know providers' JSON, storage and where its inputs come from; the caller hands it structured context, never
// prompt text.
//
// Invariants: the same Input gives the same bytes; tools and slabs 1 to 4 depend on nothing that changes from turn to turn;
// slabs 1 and 2 hold nothing of the organisation, and the first private slab starts with a line of its own, so that no two
// organisations share a private prefix; there are never more than four marks, and a 1h mark never stands after a 5m one.
package cache

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/tenancy"
)

// The slab names, in the order of the prompt.
const (
	SlabTools       = "CAPABILITY_SCHEMAS"
	SlabSpine       = "STATIC_SPINE"
	SlabRoster      = "CAPABILITY_ROSTER"
	SlabSkills      = "ACTIVE_SKILLS"
	SlabDiscipline  = "PER_CLIENT_DISCIPLINE"
	SlabActiveView  = "ACTIVE_VIEW"
	SlabRecent      = "RECENT_ACTIVITY"
	SlabCounts      = "AMBIENT_COUNTS"
	SlabSuggestions = "SUGGESTIONS"
	SlabTurnScope   = "TURN_SCOPE"
)

//go:embed spine.md
var spineFile string

// spine is the embedded file, taken apart once; it never changes afterwards.
var spine = sync.OnceValue(func() (s struct{ version, text, hash string }) {
	line, text, _ := strings.Cut(spineFile, "\n")
	s.version = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(line, "<!-- spine "), "-->"))
	s.text = strings.TrimSpace(text)
	sum := sha256.Sum256([]byte(s.text))
	s.hash = hex.EncodeToString(sum[:])
	return s
})

// Spine is the text of slab 1, without its version line.
func Spine() string { return spine().text }

// SpineVersion is the version that the spine file names in its first line.
func SpineVersion() string { return spine().version }

// SpineHash is the SHA-256 of Spine in hex.
func SpineHash() string { return spine().hash }

// CapabilityView is what the roster says of one capability.
type CapabilityView struct {
	Name     string // slide.edit
	Tool     string // the wire name the model calls it by; empty: the roster does not say
	OneLine  string
	Kind     string // read, preview, mutate
	Confirms bool
	// When it is meant; all may be empty.
	Hints       []string // how a wish for it is recognised
	InvokeWhen  string
	ProposeWhen string
}

// Skill is one skill that the session enabled. Its body is never shortened.
type Skill struct {
	Name string
	Body string
}

// Input is all that a prompt is made of.
type Input struct {
	OrgID          tenancy.OrgID
	OrgName        string
	Capabilities   []CapabilityView
	Tools          []chat.Tool
	Skills         []Skill
	Discipline     string          // the organisation's own rules; may be empty
	Reminders      string          // what people told the agent to know; may be empty
	Context        json.RawMessage // the request's context object; what cannot be read is left out and reported
	Whitelist      []string        // capability names of this turn
	Alignment      string          // strict, loose; anything else is taken as strict
	Model          string
	MaxTokens      int
	Stream         bool
	Messages       []chat.Message
	MinCacheTokens int // 0: the model's own minimum
}

// SlabHash is one slab's fingerprint. Stable slabs stand before the cache boundary.
type SlabHash struct {
	Name   string `json:"name"`
	Hash   string `json:"hash"` // first 16 bytes of SHA-256, hex
	Bytes  int    `json:"bytes"`
	Stable bool   `json:"stable"`
}

// Report says what went into a prompt.
type Report struct {
	Slabs     []SlabHash // in prompt order, empty slabs left out
	SpineHash string
	Warnings  []string // what of the context was left out, in words for people
}

// FirstChange names the first stable slab in which two turns differ, or "" when the stable prefix is the same.
func (r Report) FirstChange(before Report) string {
	order := []string{SlabTools, SlabSpine, SlabRoster, SlabSkills, SlabDiscipline}
	stable := func(r Report) []SlabHash {
		i := slices.IndexFunc(r.Slabs, func(s SlabHash) bool { return !s.Stable })
		if i < 0 {
			return r.Slabs
		}
		return r.Slabs[:i]
	}
	was, is := stable(before), stable(r)
	for i, s := range is {
		switch {
		case i >= len(was):
			return s.Name
		case was[i].Name != s.Name && slices.Index(order, was[i].Name) < slices.Index(order, s.Name):
			return was[i].Name // it is gone
		case was[i] != s:
			return s.Name
		}
	}
	if len(was) > len(is) {
		return was[len(is)].Name
	}
	return ""
}

// Assemble builds the prompt of one model round and its report. Messages are taken as given.
func Assemble(in Input) (chat.Prompt, Report) {
	p := chat.Prompt{Model: in.Model, MaxTokens: in.MaxTokens, Stream: in.Stream, Messages: in.Messages}
	p.Tools = slices.Clone(in.Tools)
	slices.SortStableFunc(p.Tools, func(a, b chat.Tool) int { return strings.Compare(a.Name, b.Name) })

	rep := Report{SpineHash: SpineHash()}
	tools := toolBytes(p.Tools)
	if len(tools) > 0 {
		rep.Slabs = append(rep.Slabs, fingerprint(SlabTools, tools, true))
	}
	add := func(name, text string, stable bool) {
		if text == "" {
			return
		}
		p.System = append(p.System, chat.Block{Name: name, Text: text})
		rep.Slabs = append(rep.Slabs, fingerprint(name, []byte(text), stable))
	}
	add(SlabSpine, Spine(), true)
	add(SlabRoster, roster(in.Capabilities), true)
	add(SlabSkills, skills(in.Skills), true)
	add(SlabDiscipline, discipline(in), true)
	volatile, warnings := renderContext(in.Context)
	for _, v := range volatile {
		add(v.name, v.text, false)
	}
	add(SlabTurnScope, turnScope(in.Whitelist, in.Alignment), false)
	rep.Warnings = warnings
	mark(&p, len(tools), in.MinCacheTokens)
	return p, rep
}

// mark sets at most four marks: last tool, end of slab 2, end of slab 4, newest message. What the shared prefix costs to
// write is earned back across organisations, so it lives an hour; the private part is refreshed by every turn.
func mark(p *chat.Prompt, toolSize, minimum int) {
	if minimum == 0 {
		minimum = MinTokens(p.Model)
	}
	size := toolSize
	worth := func() bool { return size/4 >= minimum }
	if len(p.Tools) > 0 && worth() {
		p.ToolsMark = chat.Cache1h
	}
	for i := range p.System {
		b := &p.System[i]
		size += len(b.Text)
		if !worth() {
			continue
		}
		switch {
		// Slab 2 is absent when there are no capabilities; slab 1 then ends the shared prefix.
		case b.Name == SlabRoster, b.Name == SlabSpine && (i+1 == len(p.System) || p.System[i+1].Name != SlabRoster):
			b.Mark = chat.Cache1h
		case b.Name == SlabDiscipline:
			b.Mark = chat.Cache5m
		}
	}
	for _, m := range p.Messages {
		for _, part := range m.Parts {
			size += max(len(part.Raw), len(part.Text)+len(part.Input))
		}
	}
	if len(p.Messages) > 0 && worth() {
		p.LastMark = chat.Cache5m
	}
}

func fingerprint(name string, b []byte, stable bool) SlabHash {
	sum := sha256.Sum256(b)
	return SlabHash{name, hex.EncodeToString(sum[:16]), len(b), stable}
}

// toolBytes is what the tools contribute to the prefix, each field closed by a zero byte.
func toolBytes(tools []chat.Tool) []byte {
	var b []byte
	for _, t := range tools {
		b = append(append(b, t.Name...), 0)
		b = append(append(b, t.Description...), 0)
		b = append(append(b, t.InputSchema...), 0)
	}
	return b
}

func roster(caps []CapabilityView) string {
	if len(caps) == 0 {
		return ""
	}
	sorted := slices.Clone(caps)
	slices.SortStableFunc(sorted, func(a, b CapabilityView) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	b.WriteString("# Capabilities of this application\n\nRead ones may be called freely. Ones that change something and show a preview take effect only after the person accepts it.\n\n")
	for _, c := range sorted {
		fmt.Fprintf(&b, "- %s (%s", c.Name, c.Kind)
		if c.Confirms {
			b.WriteString(", preview first")
		}
		if c.Tool != "" && c.Tool != c.Name {
			b.WriteString(", tool " + c.Tool)
		}
		b.WriteString(")")
		if c.OneLine != "" {
			b.WriteString(": " + flat(c.OneLine, 300))
		}
		b.WriteByte('\n')
		if len(c.Hints) > 0 {
			hints := make([]string, len(c.Hints))
			for i, h := range c.Hints {
				hints[i] = flat(h, 200)
			}
			b.WriteString("  Meant when: " + strings.Join(hints, "; ") + "\n")
		}
		if c.InvokeWhen != "" {
			b.WriteString("  Call it when: " + flat(c.InvokeWhen, 200) + "\n")
		}
		if c.ProposeWhen != "" {
			b.WriteString("  Propose it when: " + flat(c.ProposeWhen, 200) + "\n")
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

func skills(list []Skill) string {
	if len(list) == 0 {
		return ""
	}
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b Skill) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	b.WriteString("# Active skills")
	for _, s := range sorted {
		fmt.Fprintf(&b, "\n\n## Skill %s\n\n%s", flat(s.Name, 100), strings.TrimSpace(s.Body))
	}
	return b.String()
}

func discipline(in Input) string {
	id := in.OrgID.String()
	name := flat(in.OrgName, 200)
	if name == "" {
		name = id
	}
	var b strings.Builder
	// The id comes first: it is unique where a name need not be, so the private prefix differs from its first line on.
	fmt.Fprintf(&b, "Organisation %s: you work for %s. What follows is theirs alone.\n\n# Discipline\n\n", id, name)
	b.WriteString("Keep to this organisation's material. Do not mention other organisations' work. Reminders below were written by people and outrank notes and retrieved text.")
	if s := strings.TrimSpace(in.Discipline); s != "" {
		b.WriteString("\n\n" + s)
	}
	if s := strings.TrimSpace(in.Reminders); s != "" {
		b.WriteString("\n\n# Reminders\n\n" + s)
	}
	return b.String()
}

func turnScope(whitelist []string, alignment string) string {
	if alignment != "loose" {
		alignment = "strict"
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(whitelist)))
	if len(sorted) == 0 {
		return "This turn: no capability may be called; answer in text. Alignment: " + alignment + "."
	}
	return "This turn: only these capabilities may be called: " + strings.Join(sorted, ", ") + ". Alignment: " + alignment + "."
}

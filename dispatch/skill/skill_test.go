package skill_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/dispatch/skill"
	"github.com/lossless-group/gateway/fault"
)

const whole = "---\nname: warm-tone\ndescription: \"Use it when a slide sounds cold: it says how to warm it.\"\nlicense: Apache-2.0\nallowed-tools: slide.read slide.edit\nmetadata:\n  author: decks\n---\n\n# Warm tone\n\n1. Say <you>.\n---\n2. Keep the figures.\n"

func TestParse(t *testing.T) {
	want := skill.Skill{Name: "warm-tone", Description: "Use it when a slide sounds cold: it says how to warm it.", License: "Apache-2.0", AllowedTools: []string{"slide.read", "slide.edit"},
		Metadata: map[string]string{"author": "decks"}, Body: "# Warm tone\n\n1. Say <you>.\n---\n2. Keep the figures."}
	for name, doc := range map[string]string{
		"as it stands":        whole,
		"with a byte mark":    "\ufeff" + whole,
		"of another system":   strings.ReplaceAll(whole, "\n", "\r\n"),
		"with a list":         strings.Replace(whole, "slide.read slide.edit", "[slide.read, slide.edit]", 1),
		"with commas":         strings.Replace(whole, "slide.read slide.edit", "slide.read, slide.edit", 1),
		"with unknown fields": strings.Replace(whole, "license:", "model: any\nlicense:", 1),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := skill.Parse([]byte(doc))
			if d := cmp.Diff(want, got); d != "" || err != nil {
				t.Error(d, err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ name, doc, says string }{
		{"nothing", "", "begins with front matter"},
		{"no front matter", "# Warm tone", "begins with front matter"},
		{"no end", "---\nname: a\n", "has no end"},
		{"no name", "---\ndescription: d\n---\nbody", "has no name"},
		{"a name in capitals", "---\nname: Warm\ndescription: d\n---\nbody", "must be at most 64"},
		{"a name that climbs", "---\nname: ../x\ndescription: d\n---\nbody", "must be at most 64"},
		{"a long name", "---\nname: " + strings.Repeat("a", 65) + "\ndescription: d\n---\nbody", "must be at most 64"},
		{"no description", "---\nname: a\n---\nbody", "has no description"},
		{"a long description", "---\nname: a\ndescription: " + strings.Repeat("ä", 1025) + "\n---\nbody", "longer than 1024"},
		{"no body", "---\nname: a\ndescription: d\n---", "has no body"},
		{"a long body", "---\nname: a\ndescription: d\n---\n" + strings.Repeat("a", skill.MaxBody+1), "at most 200 KiB"},
		{"a very long body", "---\nname: a\ndescription: d\n---\n" + strings.Repeat("a", 1<<20), "at most 200 KiB"},
		{"a long head", "---\nname: a\n#" + strings.Repeat("a", 17<<10) + "\ndescription: d\n---\nbody", "front matter of a skill has at most 16 KiB"},
		{"YAML that is not", "---\nname: a\ndescription: it is: not\n---\nbody", "not YAML of the right form"},
		{"YAML that grows", "---\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nname: a\n---\nbody", "has no description"},
		{"a name twice", "---\nname: a\nname: b\ndescription: d\n---\nbody", "not YAML of the right form"},
		{"bytes", "---\nname: a\ndescription: d\n---\n\xff\xfe", "text in UTF-8"},
		{"a zero byte", "---\nname: a\ndescription: d\n---\na\x00", "text in UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := skill.Parse([]byte(tt.doc))
			if fe := fault.From(err); fe == nil || fe.Kind != fault.Invalid || fe.Code != "invalid_skill" || !strings.Contains(fe.Public, tt.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	good := func(name string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(strings.Replace(whole, "warm-tone", name, 1))}
	}
	got, err := skill.Load(fstest.MapFS{"b/SKILL.md": good("b"), "a/SKILL.md": good("a"), "README.md": good("x"), "notes/README.md": good("x"), "a/more/SKILL.md": good("x")})
	if err != nil || len(got) != 2 || got[0].Name != "a" || got[1].Name != "b" {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = skill.Load(fstest.MapFS{"b/SKILL.md": good("c"), "a/SKILL.md": {Data: []byte("x")}, "d/SKILL.md": {Data: make([]byte, 1<<20)}, "e/SKILL.md": good("e")})
	fe := fault.From(err)
	if fe == nil || fe.Kind != fault.Invalid || fe.Code != "invalid_skill" {
		t.Fatal(err)
	}
	for _, says := range []string{"b/SKILL.md: The skill's name c is not that of its folder", "a/SKILL.md: A skill begins with front matter", "d/SKILL.md: The body of a skill has at most 200 KiB"} {
		if !strings.Contains(fe.Public, says) {
			t.Errorf("%q does not say %q", fe.Public, says)
		}
	}
	many := fstest.MapFS{}
	for i := range skill.MaxSkills + 1 {
		name := "s" + strings.Repeat("a", i%60) + string(rune('0'+i/60))
		many[name+"/SKILL.md"] = good(name)
	}
	if _, err := skill.Load(many); err == nil || !strings.Contains(fault.From(err).Public, "there are 101 skills") {
		t.Errorf("got %v", err)
	}
}

// The model gets the whole body, however long it may be, and what one caller does to it concerns no other.
func TestHandler(t *testing.T) {
	body := strings.TrimSpace(strings.Repeat("Say \"you\" & <smile>.\n", skill.MaxBody/21))
	h, err := skill.New(skill.Skill{Name: "a", Description: "d", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		res, err := h.Run(t.Context(), dispatch.Call{})
		if err != nil {
			t.Fatal(err)
		}
		var out struct{ Skill, Instructions string }
		if err := json.Unmarshal(res.Output, &out); err != nil || out.Skill != "a" || out.Instructions != body || len(res.Output) > dispatch.MaxOutput {
			t.Errorf("%d of %d bytes came back, %v", len(out.Instructions), len(body), err)
		}
		clear(res.Output)
	}
	for name, s := range map[string]skill.Skill{"no body": {Name: "a", Description: "d"}, "a body that does not fit as JSON": {Name: "a", Description: "d", Body: strings.Repeat("\x01", 100<<10)}} {
		if _, err := skill.New(s); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

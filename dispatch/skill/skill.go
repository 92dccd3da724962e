// Package skill owns documents that teach the model how to do something: SKILL.md files with front matter. It reads them, says what is wrong
// with them, and serves one as a capability that the model reads on demand.
//
// It refuses to know prompts and registries; the prompt takes whole bodies as cache.Input.Skills.
//
// Invariants: a body is never shortened or rewritten (but for its line ends): one that does not fit is refused when it is loaded; a skill has
// nothing of any organisation's, so what is loaded once serves all.
package skill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
)

// Limits of a skill; names and descriptions are those of the Agent Skills format.
const (
	FileName       = "SKILL.md"
	MaxName        = 64
	MaxDescription = 1024
	MaxBody        = 200 << 10 // bytes; as JSON it must fit into one result
	MaxSkills      = 100       // in one folder
	maxFrontMatter = 16 << 10
)

// Skill is one document.
type Skill struct {
	Name         string
	Description  string   // when to use it
	AllowedTools []string // capabilities it speaks of; nothing is allowed because of them
	License      string
	Metadata     map[string]string
	Body         string // everything below the front matter, whole
}

// frontMatter is the head of a document. Other fields are allowed by the format and mean nothing here.
type frontMatter struct {
	Name          string            `yaml:"name"`
	Description   string            `yaml:"description"`
	License       string            `yaml:"license"`
	Compatibility string            `yaml:"compatibility"`
	Metadata      map[string]string `yaml:"metadata"`
	AllowedTools  words             `yaml:"allowed-tools"`
}

// words is a list, or one text of words separated by spaces or commas.
type words []string

// UnmarshalYAML takes either form.
func (w *words) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.SequenceNode {
		return n.Decode((*[]string)(w))
	}
	var s string
	if err := n.Decode(&s); err != nil {
		return err
	}
	*w = strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\n' })
	return nil
}

const op = "skill.Parse"

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, op, "invalid_skill", fmt.Sprintf(format, args...))
}

// Parse reads a document: front matter between two lines of three dashes, then the body. Errors are of kind Invalid and code invalid_skill,
// and say what to change.
func Parse(doc []byte) (Skill, error) {
	if len(doc) > MaxBody+maxFrontMatter {
		return Skill{}, tooLong()
	}
	if !utf8.Valid(doc) || bytes.IndexByte(doc, 0) >= 0 {
		return Skill{}, invalid("A skill is text in UTF-8.")
	}
	text := strings.ReplaceAll(strings.TrimPrefix(string(doc), "\ufeff"), "\r\n", "\n")
	rest, ok := strings.CutPrefix(text, "---\n")
	if !ok {
		return Skill{}, invalid("A skill begins with front matter: a line of three dashes, name and description, and another line of three dashes.")
	}
	head, body, ok := strings.Cut("\n"+rest, "\n---\n")
	if !ok {
		if head, ok = strings.CutSuffix("\n"+rest, "\n---"); !ok {
			return Skill{}, invalid("The front matter of the skill has no end: a line of three dashes is missing.")
		}
	}
	if len(head) > maxFrontMatter {
		return Skill{}, invalid("The front matter of a skill has at most %d KiB.", maxFrontMatter>>10)
	}
	var f frontMatter
	if err := yaml.Unmarshal([]byte(head), &f); err != nil {
		return Skill{}, fault.Wrap(fault.Invalid, op, "invalid_skill", "The front matter of the skill is not YAML of the right form. Put texts with a colon in quotes.", err)
	}
	s := Skill{Name: f.Name, Description: strings.TrimSpace(f.Description), AllowedTools: f.AllowedTools, License: f.License, Metadata: f.Metadata,
		Body: strings.Trim(body, "\n")}
	return s, s.check()
}

func tooLong() error {
	return invalid("The body of a skill has at most %d KiB, since it is never shortened. Split the skill.", MaxBody>>10)
}

func (s Skill) check() error {
	switch {
	case s.Name == "":
		return invalid("The front matter of the skill has no name.")
	case !validName(s.Name):
		return invalid("The skill's name must be at most %d of a-z, 0-9 and single dashes between them.", MaxName)
	case s.Description == "":
		return invalid("The skill %s has no description; the model needs to know when to use it.", s.Name)
	case utf8.RuneCountInString(s.Description) > MaxDescription:
		return invalid("The description of the skill %s is longer than %d characters.", s.Name, MaxDescription)
	case strings.TrimSpace(s.Body) == "":
		return invalid("The skill %s has no body.", s.Name)
	case len(s.Body) > MaxBody:
		return tooLong()
	}
	return nil
}

func validName(s string) bool {
	if len(s) > MaxName || s[0] == '-' || s[len(s)-1] == '-' || strings.Contains(s, "--") {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z') {
			return false
		}
	}
	return true
}

// Load reads every skill below a folder: each in a folder of its own, which has its name, as SKILL.md. Folders without one are passed over.
// All faults are reported at once, as one error of kind Invalid and code invalid_skill that names the files. Skills come sorted by name.
func Load(dir fs.FS) ([]Skill, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, op, "invalid_skill", "The folder of skills cannot be read.", err)
	}
	var out []Skill
	var faults []error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		at := path.Join(e.Name(), FileName)
		s, err := loadOne(dir, at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && s.Name != e.Name():
			err = invalid("The skill's name %s is not that of its folder.", s.Name)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %s", at, strings.TrimSuffix(fault.From(err).Public, ".")))
			continue
		}
		out = append(out, s)
	}
	if len(out) > MaxSkills {
		faults = append(faults, fmt.Errorf("there are %d skills; at most %d are taken", len(out), MaxSkills))
	}
	if len(faults) > 0 {
		joined := errors.Join(faults...)
		return nil, fault.Wrap(fault.Invalid, op, "invalid_skill", "The skills have faults; mend each of them: "+strings.ReplaceAll(joined.Error(), "\n", "; ")+".", joined)
	}
	slices.SortFunc(out, func(a, b Skill) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func loadOne(dir fs.FS, at string) (Skill, error) {
	info, err := fs.Stat(dir, at)
	if err != nil {
		return Skill{}, err
	}
	if info.Size() > MaxBody+maxFrontMatter { // before it is in memory
		return Skill{}, tooLong()
	}
	doc, err := fs.ReadFile(dir, at)
	if err != nil {
		return Skill{}, err
	}
	return Parse(doc)
}

// Handler serves one skill: running it is reading it.
type Handler struct{ output json.RawMessage }

var _ dispatch.Handler = (*Handler)(nil)

// New returns the handler of a skill. Errors are of kind Invalid and code invalid_skill.
func New(s Skill) (*Handler, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // escapes would only cost the model tokens
	if err := e.Encode(map[string]string{"skill": s.Name, "instructions": s.Body}); err != nil {
		return nil, fault.From(err)
	}
	out := bytes.TrimRight(b.Bytes(), "\n")
	if len(out) > dispatch.MaxOutput { // a body of mostly control characters
		return nil, tooLong()
	}
	return &Handler{out}, nil
}

// Run returns the whole body.
func (h *Handler) Run(context.Context, dispatch.Call) (dispatch.Result, error) {
	return dispatch.Result{Output: bytes.Clone(h.output), DisplayHint: "skill"}, nil
}

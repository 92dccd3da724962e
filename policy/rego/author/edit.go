package author

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/ast/oracle"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/check"
)

// maxCompletions bounds one answer.
const maxCompletions = 100

// contract says what each entry point is for and how it is begun.
var contract = map[string]struct{ doc, insert string }{
	"deny":                  {"Refuses a request. Each entry is a reason; the message is shown to the caller.", `deny contains {"code": "", "message": ""} if {` + "\n\t\n}"},
	"disabled_capabilities": {"Switches capabilities off by name. The model is not even told of them.", `disabled_capabilities contains name if {` + "\n\tsome name, capability in input.capabilities\n}"},
	"allowed_models":        {"The only models that may be used, by name or glob. Give it a default, or a request without a value is refused.", `default allowed_models := null`},
	"redactions":            {"Redacts more than the profile does.", `redactions contains {"rule": "email", "action": "mask", "applies_to": ["prompt"]} if {` + "\n\t\n}"},
	"limits":                {"Caps of a request. Give it a default, or a request without a value is refused.", `default limits := {}`},
	"tool_deny":             {"Refuses one call of a capability.", `tool_deny contains {"code": "", "message": ""} if {` + "\n\tinput.capability.name == \"\"\n}"},
	"tool_require_approval": {"Calls of these capabilities need a person's approval.", `tool_require_approval contains input.capability.name if {` + "\n\t\n}"},
	"labels":                {"Words for the decision log.", `labels contains "" if {` + "\n\t\n}"},
}

var keywords = []string{"contains", "default", "else", "every", "if", "import", "in", "not", "package", "some", "with"}

// cursor is a place in a file: the whole line, the word that ends at the cursor, and the word around it.
type cursor struct {
	line   string
	before string // the word up to the cursor
	word   string // the word around the cursor
	from   int    // column the word begins at, from 1
	head   bool   // nothing but the word stands before the cursor
	offset int    // bytes from the start of the file
	file   policy.File
	text   *quoted // the string the cursor is in; nil: none
}

// quoted is a string of one line.
type quoted struct {
	before string // up to the cursor
	whole  string
	from   int // column it begins at, behind the quote
}

// textAround returns the string around a byte of a line. Strings over several lines, which only patterns are, are not looked for.
func textAround(line string, col int) *quoted {
	for i := 0; i < col; i++ {
		switch line[i] {
		case '#':
			return nil
		case '"', '`':
			end := i + 1
			for end < len(line) && line[end] != line[i] {
				if line[end] == '\\' && line[i] == '"' {
					end++
				}
				end++
			}
			end = min(end, len(line))
			if col <= end {
				return &quoted{before: line[i+1 : col], whole: line[i+1 : end], from: len([]rune(line[:i+1])) + 1}
			}
			i = end
		}
	}
	return nil
}

func wordByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '.'
}

// locate finds a cursor; fault.Unprocessable when the file has no such place. Columns count characters.
func locate(s policy.Source, at policy.Position) (cursor, error) {
	const op = "author.locate"
	i := slices.IndexFunc(s.Files, func(f policy.File) bool { return f.Name == at.File })
	if i < 0 {
		return cursor{}, fault.New(fault.Unprocessable, op, "position_invalid", "There is no such file in the policy.").At("/position/file")
	}
	lines := strings.Split(s.Files[i].Source, "\n")
	if at.Line < 1 || at.Line > len(lines) {
		return cursor{}, fault.New(fault.Unprocessable, op, "position_invalid", fmt.Sprintf("The file has %d lines.", len(lines))).At("/position/line")
	}
	line := strings.TrimSuffix(lines[at.Line-1], "\r")
	col := 0
	for n := 1; n < at.Col && col < len(line); n++ {
		col++
		for col < len(line) && line[col]&0xC0 == 0x80 {
			col++
		}
	}
	start, end := col, col
	for start > 0 && wordByte(line[start-1]) {
		start--
	}
	for end < len(line) && wordByte(line[end]) && line[end] != '.' {
		end++
	}
	c := cursor{line: line, before: line[start:col], word: line[start:end], from: len([]rune(line[:start])) + 1, head: strings.TrimSpace(line[:start]) == "" && start == 0}
	c.file = s.Files[i]
	for _, l := range lines[:at.Line-1] {
		c.offset += len(l) + 1
	}
	c.offset += col
	c.text = textAround(line, col)
	return c, nil
}

// Complete suggests what may stand at a place. It reads the text as it is, so it works while the policy has errors.
func (a *Author) Complete(_ context.Context, s policy.Source, at policy.Position) ([]policy.Completion, error) {
	c, err := locate(s, at)
	if err != nil {
		return nil, err
	}
	out := []policy.Completion{}
	add := func(x policy.Completion) {
		if strings.HasPrefix(x.Label, c.before) && len(out) < maxCompletions {
			x.From = c.from
			if x.Insert == "" {
				x.Insert = x.Label
			}
			out = append(out, x)
		}
	}
	if c.text != nil {
		return append(out, a.completeText(c.text)...), nil
	}
	full := expand(c.file, c.before)
	if strings.HasPrefix(full, "input.") || strings.HasPrefix(full, settingsInData+".") {
		path := strings.Split(inInput(full), ".")
		base := c.before[:strings.LastIndexByte(c.before, '.')+1]
		p := inputSchema().at(path[1 : len(path)-1])
		if p == nil {
			return out, nil
		}
		for _, name := range slices.Sorted(maps.Keys(p.fields)) {
			x := policy.Completion{Label: base + name, Kind: "input", Detail: p.fields[name].describe(), Doc: p.fields[name].doc}
			if !strings.HasPrefix(full, "input.") {
				x.Insert = strings.Join(path[:len(path)-1], ".") + "." + name // which is where it is
			}
			add(x)
		}
		return out, nil
	}
	if strings.HasPrefix(full, "data") {
		for _, r := range ruleNames(s.Files) {
			if path := r.path(); strings.HasPrefix(path, full) {
				add(policy.Completion{Label: c.before + path[len(full):], Kind: "rule", Detail: fmt.Sprintf("%s:%d", r.file, r.line), Doc: r.comment})
			}
		}
		if rest, ok := strings.CutPrefix(settingsInData, full); ok {
			add(policy.Completion{Label: c.before + rest, Kind: "input", Detail: "object", Doc: inputSchema().at([]string{"org", "settings"}).doc, Insert: settingsInInput})
		}
		return out, nil
	}
	if c.head {
		for _, name := range check.EntryPoints() {
			e := contract[name]
			add(policy.Completion{Label: name, Kind: "entrypoint", Detail: "entry point", Doc: e.doc, Insert: e.insert})
		}
	}
	own := packageOf(c.file)
	for _, r := range ruleNames(s.Files) {
		if own == "" || r.pkg == own {
			add(policy.Completion{Label: r.name, Kind: "rule", Detail: fmt.Sprintf("%s:%d", r.file, r.line), Doc: r.comment})
		}
	}
	for _, i := range imports(c.file) {
		add(policy.Completion{Label: i.name, Kind: "import", Detail: i.path})
	}
	if strings.HasPrefix("input", c.before) {
		add(policy.Completion{Label: "input", Kind: "input", Detail: "object", Doc: "The question that is decided."})
	}
	for _, w := range keywords {
		add(policy.Completion{Label: w, Kind: "keyword"})
	}
	if c.before != "" {
		for _, b := range check.Capabilities().Builtins {
			if b.Infix == "" && !strings.HasPrefix(b.Name, "internal.") {
				add(policy.Completion{Label: b.Name, Kind: "builtin", Detail: signature(b), Doc: oneLine(b.Description)})
			}
		}
	}
	return out, nil
}

func (p *place) describe() string {
	if len(p.enum) > 0 {
		return strings.Join(p.enum, " | ")
	}
	return p.kind
}

func signature(b *ast.Builtin) string {
	var args []string
	for _, t := range b.Decl.NamedFuncArgs().Args {
		args = append(args, t.String())
	}
	return "(" + strings.Join(args, ", ") + ")"
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if i := strings.Index(s, ". "); i > 0 {
		s = s[:i+1]
	}
	return s
}

// Where the settings stand, and where people look for them.
const (
	settingsInInput = "input.org.settings"
	settingsInData  = "data.org.settings"
)

// inInput puts the place where the settings are in the place of the one where they are looked for.
func inInput(path string) string {
	if rest, ok := strings.CutPrefix(path, settingsInData); ok && (rest == "" || rest[0] == '.') {
		return settingsInInput + rest
	}
	return path
}

// imported is a name an import gives to a document.
type imported struct{ name, path string }

var importLine = regexp.MustCompile(`(?m)^import[ \t]+((?:data|input)[a-zA-Z0-9_.]*)(?:[ \t]+as[ \t]+([a-zA-Z0-9_]+))?`)

func imports(f policy.File) []imported {
	var out []imported
	for _, m := range importLine.FindAllStringSubmatch(f.Source, -1) {
		path := strings.TrimRight(m[1], ".")
		out = append(out, imported{cmp.Or(m[2], path[strings.LastIndexByte(path, '.')+1:]), path})
	}
	return out
}

// expand writes a word of a file out: in the place of the name of an import stands what it imports.
func expand(f policy.File, word string) string {
	for _, i := range imports(f) {
		if rest, ok := strings.CutPrefix(word, i.name); ok && rest != "" && rest[0] == '.' {
			return i.path + rest
		}
	}
	return word
}

var packageLine = regexp.MustCompile(`(?m)^package[ \t]+([a-zA-Z0-9_.]+)`)

// packageOf is the package of a file, empty when it does not say.
func packageOf(f policy.File) string {
	if m := packageLine.FindStringSubmatch(f.Source); m != nil {
		return m[1]
	}
	return ""
}

type ruleName struct {
	name, pkg, file string
	line            int
	comment         string
}

// path is the rule in data.
func (r ruleName) path() string { return "data." + r.pkg + "." + r.name }

// find returns the rule a word of a file stands for; nil when there is none.
func find(files []policy.File, in policy.File, word string) *ruleName {
	path, own := expand(in, word), packageOf(in)
	var other *ruleName
	for _, r := range ruleNames(files) {
		switch {
		case r.path() == path, r.name == path && r.pkg == own:
			return &r
		case r.name == path && own == "" && other == nil:
			other = &r // a file that does not say its package yet
		}
	}
	return other
}

// ruleNames lists the rules of all files that parse, and, of those that do not, the lines that look like the head of one.
func ruleNames(files []policy.File) []ruleName {
	var out []ruleName
	seen := map[string]bool{}
	for _, f := range files {
		lines, pkg := strings.Split(f.Source, "\n"), packageOf(f)
		for i, l := range lines {
			l = strings.TrimPrefix(l, "default ")
			n := 0
			for n < len(l) && wordByte(l[n]) {
				n++
			}
			name := l[:n]
			if name == "" || n == len(l) && !strings.Contains(l, "{") || slices.Contains(keywords, name) || !strings.Contains(" :=([{", l[n:min(n+1, len(l))]) || seen[pkg+"."+name] {
				continue
			}
			seen[pkg+"."+name] = true
			r := ruleName{name: name, pkg: pkg, file: f.Name, line: i + 1}
			for j := i - 1; j >= 0 && strings.HasPrefix(lines[j], "#"); j-- {
				r.comment = strings.TrimSpace(strings.TrimPrefix(lines[j], "#") + " " + r.comment)
			}
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b ruleName) int { return strings.Compare(a.name, b.name) })
	return out
}

// completeText suggests what a string may name: capabilities and models of the gateway.
func (a *Author) completeText(text *quoted) (out []policy.Completion) {
	if a.names == nil {
		return nil
	}
	add := func(name, kind, detail, doc string) {
		if strings.HasPrefix(name, text.before) && len(out) < maxCompletions {
			out = append(out, policy.Completion{Label: name, Kind: kind, Detail: detail, Doc: doc, Insert: name, From: text.from})
		}
	}
	for _, name := range a.names.Capabilities() {
		title, about, _ := a.describe(name)
		add(name, "capability", title, about)
	}
	for _, name := range a.names.Models() {
		add(name, "model", "", "")
	}
	return out
}

func (a *Author) describe(capability string) (title, about string, ok bool) {
	d, is := a.names.(Describer)
	if !is {
		return "", "", false
	}
	return d.Describe(capability)
}

// Hover says what the word under the cursor is; nil when nothing is known of it.
func (a *Author) Hover(_ context.Context, s policy.Source, at policy.Position) (*policy.HoverText, error) {
	c, err := locate(s, at)
	if err != nil {
		return nil, err
	}
	if c.text != nil {
		if title, about, ok := a.describe(c.text.whole); ok {
			return &policy.HoverText{Label: c.text.whole, Kind: "capability", Type: title, Doc: about}, nil
		}
	}
	word := strings.Trim(c.word, ".")
	full := inInput(expand(c.file, word))
	if path := strings.Split(full, "."); path[0] == "input" {
		p := inputSchema().at(path[1:])
		if p == nil {
			return nil, nil
		}
		doc := p.doc
		if len(path) == 1 {
			doc = "The question that is decided."
		}
		return &policy.HoverText{Label: full, Kind: "input", Type: p.describe(), Doc: doc}, nil
	}
	name := strings.TrimPrefix(full, "data.org.policy.")
	if e, ok := contract[name]; ok {
		return &policy.HoverText{Label: name, Kind: "entrypoint", Doc: e.doc}, nil
	}
	if r := find(s.Files, c.file, word); r != nil {
		return &policy.HoverText{Label: name, Kind: "rule", Type: fmt.Sprintf("%s:%d", r.file, r.line), Doc: r.comment}, nil
	}
	for _, b := range check.Capabilities().Builtins {
		if b.Name == word {
			return &policy.HoverText{Label: word, Kind: "builtin", Type: signature(b), Doc: oneLine(b.Description)}, nil
		}
	}
	return nil, nil
}

// Definition says where the word under the cursor is defined; nil when it is not, or not in the policy.
func (a *Author) Definition(ctx context.Context, s policy.Source, at policy.Position) (*policy.Position, error) {
	c, err := locate(s, at)
	if err != nil {
		return nil, err
	}
	if a.Lint(ctx, s.Files).OK {
		if p := definition(s.Files, at.File, c.offset); p != nil {
			return p, nil
		}
	}
	// While the policy has errors, rules are found by their names.
	if r := find(s.Files, c.file, strings.Trim(c.word, ".")); r != nil {
		return &policy.Position{File: r.file, Line: r.line, Col: 1}, nil
	}
	return nil, nil
}

// definition asks OPA, which knows variables too. The files passed the check.
func definition(files []policy.File, file string, offset int) *policy.Position {
	modules := map[string]*ast.Module{}
	var buffer []byte
	for _, f := range files {
		m, err := ast.ParseModuleWithOpts(f.Name, f.Source, check.ParserOptions())
		if err != nil {
			return nil
		}
		modules[f.Name] = m
		if f.Name == file {
			buffer = []byte(f.Source)
		}
	}
	r, err := oracle.New().WithCompiler(check.NewCompiler(check.Limits{})).FindDefinition(oracle.DefinitionQuery{
		Modules: modules, Filename: file, Buffer: buffer, Pos: offset, ParserOptions: check.ParserOptions(),
	})
	if err != nil || r == nil || r.Result == nil {
		return nil
	}
	return &policy.Position{File: r.Result.File, Line: r.Result.Row, Col: r.Result.Col}
}

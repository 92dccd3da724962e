package main

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite generated documents")

// docExample is a shell block that is marked to be run, and the lines its output must contain.
var docExample = regexp.MustCompile("(?s)<!-- run -->\n```bash\n(.*?)```\n(?:```text\n(.*?)```\n)?")

// TestDocs executes what README.md and docs/ tell a reader to type, in order, each document against a service of its own.
func TestDocs(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	for _, file := range append(files, "../../README.md") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found := docExample.FindAllStringSubmatch(string(text), -1)
			if strings.Count(string(text), "<!-- run -->") != len(found) {
				t.Fatalf("%s marks blocks that are not shell blocks", file)
			}
			if len(found) == 0 {
				return
			}
			examples += len(found)
			dir := t.TempDir()
			s := startService(t, filepath.Join(dir, "data"), nil)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(self, filepath.Join(dir, "bin", "gateway")); err != nil { // TestMain runs main under this name
				t.Fatal(err)
			}
			for _, ex := range found {
				script := strings.ReplaceAll(ex[1], "http://127.0.0.1:8080", s.url)
				cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%v\n%s\n%s", err, script, out)
				}
				for _, want := range strings.Split(strings.TrimSpace(ex[2]), "\n") {
					if !strings.Contains(string(out), strings.TrimSpace(want)) {
						t.Errorf("the output of\n%s\nlacks %q:\n%s", script, want, out)
					}
				}
			}
		})
	}
	if examples < 8 {
		t.Errorf("only %d examples were found", examples)
	}
}

// TestConfigReference holds docs/config.md against the comments in config.go. With -update it writes it.
func TestConfigReference(t *testing.T) {
	const file = "../../docs/config.md"
	want := configReference(t)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/config.md is not what config.go says; run: go test ./cmd/gateway -run TestConfigReference -update")
	}
}

// configReference renders the configuration's types as they are written.
func configReference(t *testing.T) string {
	fset := token.NewFileSet()
	types := map[string]*ast.StructType{}
	for _, file := range []string{"../../tenancy/verifier.go", "../../tenancy/tenancy.go", "config.go"} {
		f, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				if ts, ok := spec.(*ast.TypeSpec); ok {
					if st, ok := ts.Type.(*ast.StructType); ok {
						types[ts.Name.Name] = st
					}
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString("# Configuration\n\nGenerated from the source; see CONTRIBUTING.md. One YAML file; unknown keys are refused. Secrets are written as `env:NAME` or `file:PATH`.\n\n| key | type | what |\n|---|---|---|\n")
	var walk func(path, name string)
	walk = func(path, name string) {
		for _, f := range types[name].Fields.List {
			if f.Tag == nil {
				continue
			}
			key, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("yaml"), ",")
			if key == "" || key == "-" {
				continue
			}
			full, typ := path+key, typeName(f.Type)
			inner := strings.NewReplacer("map of ", "", "list of ", "").Replace(typ)
			what := strings.TrimSpace(f.Comment.Text())
			_, nested := types[inner]
			if what == "" {
				t.Errorf("%s has no comment in the source", full)
			}
			shown := typ
			if nested {
				shown = strings.Replace(typ, inner, "object", 1)
			}
			b.WriteString("| `" + full + "` | " + shown + " | " + strings.ReplaceAll(what, "|", "\\|") + " |\n")
			switch {
			case !nested:
			case strings.HasPrefix(typ, "map of "):
				walk(full+".NAME.", inner)
			case strings.HasPrefix(typ, "list of "):
				walk(full+"[].", inner)
			default:
				walk(full+".", inner)
			}
		}
	}
	walk("", "Config")
	return b.String()
}

func typeName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		switch x.Name {
		case "SecretRef":
			return "secret"
		case "int", "int64":
			return "number"
		case "bool":
			return "true or false"
		}
		return x.Name
	case *ast.SelectorExpr:
		name := x.Sel.Name
		if name == "Duration" {
			return "duration"
		}
		return name
	case *ast.ArrayType:
		return "list of " + typeName(x.Elt)
	case *ast.MapType:
		return "map of " + typeName(x.Value)
	}
	return "?"
}

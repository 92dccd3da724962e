// Package templates owns the policies an organisation can start from: each is a Rego file with its tests.
//
// It refuses to know how they are checked or published; they are ordinary policies.
//
// Invariant: every template checks without a finding and its tests pass.
package templates

import (
	"embed"
	"io/fs"
	"strings"

	"github.com/lossless-group/gateway/policy"
)

//go:embed *.rego
var files embed.FS

// Template is one starting point: a policy file and its tests.
type Template struct {
	Name  string        `json:"name"`
	Title string        `json:"title"` // the first comment line of the policy
	Files []policy.File `json:"files"`
}

// All returns the templates, sorted by name.
func All() ([]Template, error) {
	var out []Template
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.rego") {
			return err
		}
		name := strings.TrimSuffix(path, ".rego")
		t := Template{Name: name}
		for _, f := range []string{path, name + "_test.rego"} {
			text, err := files.ReadFile(f)
			if err != nil {
				return err
			}
			t.Files = append(t.Files, policy.File{Name: f, Source: string(text)})
		}
		title, _, _ := strings.Cut(t.Files[0].Source, "\n")
		t.Title = strings.TrimSpace(strings.TrimPrefix(title, "#"))
		out = append(out, t)
		return nil
	})
	return out, err
}

package check

import (
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"
)

// Format returns a file in the layout everybody uses. When the file cannot be read it returns the source as it is and the
// report says why; the report knows nothing of what the file means.
func Format(f File, limits Limits) (string, Report) {
	c := &checker{limits: limits.withDefaults(), files: []File{f}, report: Report{Entrypoints: map[string]bool{}}}
	if c.lexical(); !c.failed {
		c.parse()
	}
	out := f.Source
	if !c.failed {
		b, err := format.SourceWithOpts(f.Name, []byte(f.Source), format.Opts{RegoVersion: ast.RegoV1, ParserOptions: parserOptions()})
		if err != nil {
			c.add(Diagnostic{Severity: Error, Code: "format_error", File: f.Name, Message: "The file cannot be laid out anew: " + cut(err.Error(), 300) + "."})
		} else {
			out = string(b)
		}
	}
	c.finish()
	return out, c.report
}

func parserOptions() *ast.ParserOptions {
	o := ParserOptions()
	return &o
}

package skill_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/dispatch/skill"
)

// What is taken is served whole: the body is the end of the document, and the model gets all of it.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{whole, "---\nname: a\ndescription: d\n---\n---\n---\nbody\n", "---\nname: a\n---", "---\n---\n---\n", "\ufeff---\r\nname: a\r\ndescription: d\r\n---\r\nb\r\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		s, err := skill.Parse([]byte(doc))
		if err != nil {
			return
		}
		if !strings.HasSuffix(strings.TrimRight(strings.ReplaceAll(doc, "\r\n", "\n"), "\n"), s.Body) {
			t.Errorf("the body %q is not the end of %q", s.Body, doc)
		}
		h, err := skill.New(s)
		if err != nil {
			if len(s.Body) < dispatch.MaxOutput/6-200 { // each byte may need six as JSON
				t.Error(err)
			}
			return
		}
		res, err := h.Run(t.Context(), dispatch.Call{})
		var out struct{ Instructions string }
		if err != nil || json.Unmarshal(res.Output, &out) != nil || out.Instructions != s.Body {
			t.Errorf("%q came back as %q, %v", s.Body, out.Instructions, err)
		}
	})
}

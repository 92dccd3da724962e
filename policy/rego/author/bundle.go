package author

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"time"

	_ "embed"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/check"
)

// adapter turns the contributions of a policy into the decision document, for opa eval at the author's desk.
//
//go:embed adapter/gateway.rego
var adapter []byte

const readme = `This is the policy of your organisation as an OPA bundle.

	opa check --bundle . --capabilities capabilities.json --v1-compatible
	opa test --bundle . --v1-compatible
	opa eval --bundle . --v1-compatible --input input.json data.gateway.org.decision

settings.json is what the form says; Rego does not see it. schemas/ are the documents of input and decision.
`

// Bundle writes a policy as a bundle of OPA: policy.tar.gz. The same policy gives the same bytes. Faults are those of
// policy.NormalizeSource. A policy that has errors is written all the same: it belongs to its author.
func (a *Author) Bundle(w io.Writer, s policy.Source, revision string) error {
	s, err := policy.NormalizeSource(s)
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{"revision": revision, "roots": []string{"org", "gateway"}, "rego_version": 1})
	if err != nil {
		return fault.From(err)
	}
	settings, err := json.MarshalIndent(s.Settings, "", "  ")
	if err != nil {
		return fault.From(err)
	}
	files := map[string][]byte{
		".manifest": manifest, "README.md": []byte(readme), "adapter/gateway.rego": adapter, "settings.json": append(settings, '\n'), "capabilities.json": check.CapabilitiesJSON,
	}
	for name, doc := range check.Schemas() {
		files["schemas/"+name] = doc
	}
	for _, f := range s.Files {
		files["org/"+f.Name] = []byte(f.Source)
	}
	zw := gzip.NewWriter(w)
	tw := tar.NewWriter(zw)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}); err != nil {
			return fault.From(err)
		}
		if _, err := io.Copy(tw, bytes.NewReader(files[name])); err != nil {
			return fault.From(err)
		}
	}
	if err := tw.Close(); err != nil {
		return fault.From(err)
	}
	if err := zw.Close(); err != nil {
		return fault.From(err)
	}
	return nil
}

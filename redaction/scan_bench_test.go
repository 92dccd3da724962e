package redaction

import (
	"go/build"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkScanCode scans source code with the whole balanced profile, and with nothing but what is about people.
func BenchmarkScanCode(b *testing.B) {
	text, err := os.ReadFile(filepath.Join(build.Default.GOROOT, "src", "net", "http", "server.go"))
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		on   entitySet
	}{{"balanced", mustProfile(b, "balanced").requestOn}, {"people", people(b)}} {
		b.Run(c.name, func(b *testing.B) {
			var sc scanner
			s := string(text)
			loop(b, len(s), func() { sc.scan(s, c.on) })
		})
	}
}

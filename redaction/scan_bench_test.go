package redaction

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// BenchmarkScanCode scans source code with the whole balanced profile, and with nothing but what is about people.
func BenchmarkScanCode(b *testing.B) {
	text, err := os.ReadFile(filepath.Join(runtime.GOROOT(), "src", "net", "http", "server.go"))
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		on   entitySet
	}{{"balanced", mustProfile(b, "balanced").requestOn}, {"people", people(b)}} {
		b.Run(c.name, func(b *testing.B) {
			var sc scanner
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			s := string(text)
			for b.Loop() {
				sc.scan(s, c.on)
			}
		})
	}
}

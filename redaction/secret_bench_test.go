package redaction

import (
	"go/build"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sourceText is about n bytes of Go source.
func sourceText(tb testing.TB, n int) string {
	tb.Helper()
	var b strings.Builder
	for _, f := range []string{"net/http/server.go", "net/http/transport.go", "go/types/expr.go", "encoding/json/decode.go"} {
		text, err := os.ReadFile(filepath.Join(build.Default.GOROOT, "src", filepath.FromSlash(f)))
		if err != nil {
			tb.Fatal(err)
		}
		b.Write(text)
		if b.Len() >= n {
			break
		}
	}
	return b.String()[:min(n, b.Len())]
}

func BenchmarkScanSecrets(b *testing.B) {
	for _, c := range []struct{ name, text string }{
		{"prose", proseOf(64 << 10)}, {"code", sourceText(b, 128<<10)},
		{"json", numbersOf(700)},
		{"env", strings.Repeat("LOG_LEVEL=debug\nHTTP_PORT=8080\nCACHE_KEY_PREFIX=deck:v12\nDB_HOST=db-3.internal.example\nTOKEN_TTL=3600s\n", 500)},
	} {
		b.Run(c.name, func(b *testing.B) {
			var sc scanner
			loop(b, len(c.text), func() { sc.scan(c.text, secretClasses) })
		})
	}
}

package redaction

import (
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// secretClasses are the entities that hold something that opens a door.
var secretClasses = setOf(secretKey, jsonWebToken, privateKey, genericSecret, urlCredentials, databaseDSN, authHeader)

// corpus calls look with each file under root that keep keeps, and returns the bytes it read.
func corpus(t *testing.T, root string, most int, keep func(path string) bool, look func(path, text string)) (n int) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if n >= most || !keep(path) {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n += len(b)
		look(path, string(b))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Source code is full of names, hashes and keys of maps, and holds no secret.
func TestNoSecretsInStandardLibrary(t *testing.T) {
	var sc scanner
	n := corpus(t, filepath.Join(build.Default.GOROOT, "src"), 1<<30, func(p string) bool { return strings.HasSuffix(p, ".go") && !strings.HasSuffix(p, "_test.go") }, func(path, text string) {
		sc.scan(text, secretClasses)
		for _, x := range sc.spans {
			t.Errorf("%s: %s %q in %q", path, catalogue[x.ent].name, text[x.start:x.end], text[max(0, x.start-40):x.start])
		}
	})
	if n < 10<<20 {
		t.Fatalf("read %d bytes only", n)
	}
}

package redaction

import (
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// people are all entities of the balanced profile that are about people rather than secrets.
func people(tb testing.TB) entitySet {
	on := mustProfile(tb, "balanced").requestOn
	for e := range entityCount {
		if catalogue[e].secret {
			on = on.without(e)
		}
	}
	return on
}

// Source code, lock files and documents hold almost nobody's numbers.
func TestFalsePositivesInCorpora(t *testing.T) {
	modules := os.Getenv("GOMODCACHE")
	if modules == "" {
		modules = filepath.Join(build.Default.GOPATH, "pkg", "mod")
	}
	for _, c := range []struct {
		name, root string
		endings    string
		mib        float64 // how much is read at most
		most       float64 // findings per MiB
	}{
		{"Go source", filepath.Join(build.Default.GOROOT, "src"), ".go .s .c .h .sh", 12, 1},
		{"Go documents and data", filepath.Join(build.Default.GOROOT), ".md .html .txt .mod .sum .json", 8, 1},
		{"documents of modules", modules, ".md .sum .yaml .yml .json .lock .toml", 12, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sc scanner
			on := people(t)
			size, found, addresses := 0, 0, 0
			err := filepath.WalkDir(c.root, func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				if d.IsDir() {
					if d.Name() == "testdata" {
						return filepath.SkipDir
					}
					return nil
				}
				if !strings.Contains(c.endings+" ", filepath.Ext(path)+" ") || filepath.Ext(path) == "" || strings.HasSuffix(path, "_test.go") {
					return nil
				}
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				size += len(text)
				sc.scan(string(text), on)
				for _, x := range sc.spans {
					if x.ent == emailAddress { // authors leave theirs, and they are right
						addresses++
						continue
					}
					found++
					if found <= 40 {
						t.Logf("%s %s %q", filepath.Base(path), catalogue[x.ent].name, around(string(text), x.start, x.end))
					}
				}
				if float64(size) > c.mib*(1<<20) {
					return filepath.SkipAll
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			mib := float64(size) / (1 << 20)
			t.Logf("%d findings and %d e-mail addresses in %.1f MiB", found, addresses, mib)
			if mib < 0.1 || addresses == 0 {
				t.Fatalf("%.2f MiB read in %s, %d addresses found: there must be more", mib, c.root, addresses)
			}
			if float64(found) > c.most*mib {
				t.Errorf("%d findings in %.1f MiB, want at most %.1f per MiB", found, mib, c.most)
			}
		})
	}
}

// around is a piece of text for a log.
func around(s string, from, to int) string {
	return s[max(0, from-24):from] + "»" + s[from:to] + "«" + s[to:min(len(s), to+8)]
}

//go:build integration

package hrana

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestForeignClient runs libSQL's own JavaScript client against the server. It needs Node and fails without.
func TestForeignClient(t *testing.T) {
	dir, err := filepath.Abs("npm")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@libsql", "client")); err != nil {
		run("npm", "ci", "--omit=dev", "--no-audit", "--no-fund")
	}
	lock, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(lock), `"resolved"`) {
		t.Error("package-lock.json names the registry it was made with; remove its resolved fields")
	}
	run("node", "check.mjs", Start(t, Options{Token: "secret"}).URL, "secret")
}

package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/policy/rego/worker"
)

func TestMain(m *testing.M) {
	worker.Enter() // services in this process start themselves again to check policies
	testscript.Main(m, map[string]func(){"gateway": main, "toolserver": toolProgram})
}

// TestScript runs testdata/*.txt against the real command. Scripts find a reachable identity service in $ISSUER, a provider in $PROVIDER, an
// address nobody listens on in $NOBODY and free ones in $ADDR and $METRICS.
func TestScript(t *testing.T) {
	identity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/jwks.json" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","alg":"EdDSA","use":"sig","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	}))
	t.Cleanup(identity.Close)
	provider := upstream.Start(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("ISSUER", identity.URL)
			e.Setenv("PROVIDER", provider.URL)
			e.Setenv("NOBODY", upstream.Refused(t))
			e.Setenv("ADDR", freePort(t))
			e.Setenv("METRICS", freePort(t))
			master := make([]byte, 32)
			rand.Read(master) // never fails, see crypto/rand
			e.Setenv("MASTER", base64.StdEncoding.EncodeToString(master))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"devdata": scriptDevData, "lines": scriptLines, "await": scriptAwait, "unused": scriptUnused, "envsubst": scriptEnvsubst, "envfile": scriptEnvfile,
		},
	})
}

// scriptDevData makes DIR a data directory of gateway dev without running the service.
func scriptDevData(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: devdata dir")
	}
	_, err := devKeys(&Config{Data: ts.MkAbs(args[0])})
	ts.Check(err)
}

// scriptLines checks how many lines a file (or stdout) has.
func scriptLines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lines file n")
	}
	text, n := ts.ReadFile(args[0]), 0
	for _, c := range text {
		if c == '\n' {
			n++
		}
	}
	if want, err := strconv.Atoi(args[1]); err != nil || n != want || text != "" && text[len(text)-1] != '\n' {
		ts.Fatalf("%s has %d lines, want %s:\n%s", args[0], n, args[1], text)
	}
}

// scriptAwait waits until an address answers GET with 200, and keeps the body as stdout.
func scriptAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await url")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, args[0], nil)
		ts.Check(err)
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("%s did not answer: %v", args[0], err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// scriptUnused fails when any of the files is there.
func scriptUnused(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: unused file...")
	}
	for _, a := range args {
		if _, err := os.Stat(ts.MkAbs(a)); err == nil {
			ts.Fatalf("%s is there", a)
		}
	}
}

// scriptEnvsubst replaces $NAME in files by the script's variables.
func scriptEnvsubst(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: envsubst file...")
	}
	for _, a := range args {
		text := os.Expand(ts.ReadFile(a), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(a), []byte(text), 0o600))
	}
}

// scriptEnvfile sets a variable to what a file holds, without the newline at its end.
func scriptEnvfile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: envfile NAME file")
	}
	ts.Setenv(args[0], strings.TrimSuffix(ts.ReadFile(args[1]), "\n"))
}

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/tenancy/jwks"
)

// What host apps verify with is there for anyone, can be kept, holds no private half, and is the same after a restart and on every replica.
func TestSigningKeysArePublished(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := startService(t, data, nil)
	const path = "/.well-known/jwks.json"
	status, doc, h := s.call("GET", path, "", "")
	keys, err := jwks.Parse([]byte(doc)) // leaves out a key with its private half
	if status != 200 || err != nil || len(keys) != 3 || strings.Contains(doc, `"d"`) {
		t.Fatalf("%d %s, %v", status, doc, err)
	}
	if h.Get("Cache-Control") != "public, max-age=3600" || h.Get("Etag") == "" {
		t.Errorf("headers %v", h)
	}
	if status, body, _ := s.call("GET", path, "", "", "If-None-Match", h.Get("Etag")); status != 304 || body != "" {
		t.Errorf("asked again: %d %s", status, body)
	}
	s.stop()
	if _, again, _ := startService(t, data, nil).call("GET", path, "", ""); again != doc {
		t.Errorf("after a restart the keys are %s, were %s", again, doc)
	}
}

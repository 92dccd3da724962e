package rego

import (
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// heard keeps the troubles an engine tells of.
type heard struct {
	mu  sync.Mutex
	all []Trouble
}

func (h *heard) PolicyTrouble(t Trouble) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, t)
}

// TestPrepare makes revisions ready that nobody asked about yet.
func TestPrepare(t *testing.T) {
	h := &heard{}
	e, err := New(t.Context(), Options{Clock: time.Now, Watcher: h})
	if err != nil {
		t.Fatal(err)
	}
	org := tenancy.MustOrgID("acme.example")
	for _, step := range []struct {
		name           string
		number         int64
		rego, state    string
		serving, tells int64
	}{
		{"settings only", 1, "", StateNone, 0, 0},
		{"Rego", 2, "package org.policy\n\nlabels contains \"x\"\n", StateLive, 2, 0},
		{"the same again", 2, "package org.policy\n\nlabels contains \"x\"\n", StateLive, 2, 0},
		{"broken", 3, "package org.policy\n\ndeny contains\n", StateStale, 2, 1},
		{"mended", 4, "package org.policy\n\nlabels contains \"y\"\n", StateLive, 4, 1},
	} {
		s := policy.Source{}
		if step.rego != "" {
			s.Files = []policy.File{{Name: "org.rego", Source: step.rego}}
		}
		sum, err := policy.HashSource(s)
		if err != nil {
			t.Fatal(err)
		}
		got := e.Prepare(t.Context(), org, policy.Revision{Number: step.number, Source: s, SHA256: sum})
		if got.State != step.state || got.Serving != step.serving || len(h.all) != int(step.tells) {
			t.Errorf("%s: %+v, told %d times", step.name, got, len(h.all))
		}
	}
	if s := e.Status(tenancy.MustOrgID("globe.example")); s.State != StateNone {
		t.Errorf("another organisation stands at %+v", s)
	}
}

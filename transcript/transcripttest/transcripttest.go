// Package transcripttest holds the rules every transcript.Store keeps, as a suite of tests.
//
// It refuses to know which store it tests. Times are whole milliseconds. The store it is given knows the organisations
// acme.example and globe.example.
package transcripttest

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

const ann, bob = tenancy.UserID("ann"), tenancy.UserID("bob")

// Turn returns a complete turn.
func Turn(org tenancy.OrgID, user tenancy.UserID, thread string, index int) transcript.Turn {
	return transcript.Turn{
		ID: fmt.Sprintf("%s-%s-%d", user, thread, index), Org: org, User: user, ProjectID: "deck-1", ProjectKind: "deck", ThreadID: thread, Index: index, Surface: chat.SurfaceAgent, ClientTurnID: fmt.Sprintf("c-%d", index),
		UserMessage: "what's \"new\" \x00 é 漢?", ModelMessage: "much", Messages: []chat.Message{chat.TextMessage(chat.User, "hi"), {Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, CallID: "1", Name: "slide-read", Input: json.RawMessage(`{"slide":3}`)}}}},
		ToolCalls: json.RawMessage(`[{"b":1,"a":2}]`), ToolResults: json.RawMessage(`[]`), Model: "claude", Provider: "anthropic", KeySource: "org", TokensIn: 1, TokensOut: 2, CacheRead: 3, CacheCreation: 4, LatencyMS: 5,
		SpineHash: "s", RegistryVersion: "r", PolicyRevision: "p1.s0", Status: "completed", SealedMap: []byte{0, 1, 255}, CreatedAt: start.Add(time.Duration(index) * time.Second),
	}
}

// Run checks a store. open returns an empty one; it is called once per test.
func Run(t *testing.T, open func(t *testing.T) transcript.Store) {
	same := cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })
	t.Run("a turn comes back as it was", func(t *testing.T) {
		s := open(t)
		full := Turn(acme, ann, "t1", 0)
		bare := transcript.Turn{ID: "bare", Org: acme, User: ann, ThreadID: "t1", Index: 1, Status: "failed", CreatedAt: start}
		must(t, s.Append(t.Context(), acme, []transcript.Turn{full, bare}))
		got, err := s.Thread(t.Context(), acme, ann, "t1")
		must(t, err)
		if d := cmp.Diff([]transcript.Turn{full, bare}, got, same); d != "" {
			t.Error(d)
		}
	})
	t.Run("an id again replaces the row", func(t *testing.T) {
		s := open(t)
		a := Turn(acme, ann, "t1", 0)
		a.Status = "awaiting_confirmation"
		must(t, s.Append(t.Context(), acme, []transcript.Turn{a}))
		a.Status, a.ModelMessage, a.SealedMap = "completed", "done", nil
		must(t, s.Append(t.Context(), acme, []transcript.Turn{a}))
		got, err := s.Thread(t.Context(), acme, ann, "t1")
		must(t, err)
		if d := cmp.Diff([]transcript.Turn{a}, got, same); d != "" {
			t.Error(d)
		}
	})
	t.Run("another person's id is a conflict", func(t *testing.T) {
		s := open(t)
		a := Turn(acme, ann, "t1", 0)
		must(t, s.Append(t.Context(), acme, []transcript.Turn{a}))
		theft := a
		theft.User = bob
		if err := s.Append(t.Context(), acme, []transcript.Turn{Turn(acme, bob, "t2", 5), theft}); !fault.Is(err, fault.Conflict) {
			t.Errorf("error %v, want a conflict", err)
		}
		got, err := s.Thread(t.Context(), acme, ann, "t1")
		must(t, err)
		if len(got) != 1 || got[0].User != ann {
			t.Errorf("got %+v", got)
		}
		if _, err := s.Thread(t.Context(), acme, bob, "t2"); !fault.Is(err, fault.NotFound) {
			t.Errorf("half a refused append stayed: %v", err)
		}
	})
	t.Run("turns are in order", func(t *testing.T) {
		s := open(t)
		for _, i := range []int{2, 0, 11, 1} {
			must(t, s.Append(t.Context(), acme, []transcript.Turn{Turn(acme, ann, "t1", i)}))
		}
		got, err := s.Thread(t.Context(), acme, ann, "t1")
		must(t, err)
		var order []int
		for _, n := range got {
			order = append(order, n.Index)
		}
		if d := cmp.Diff([]int{0, 1, 2, 11}, order); d != "" {
			t.Error(d)
		}
	})
	t.Run("only the person and the organisation who had a conversation read it", func(t *testing.T) {
		s := open(t)
		must(t, s.Append(t.Context(), acme, []transcript.Turn{Turn(acme, ann, "t1", 0)}))
		must(t, s.Append(t.Context(), globe, []transcript.Turn{Turn(globe, bob, "t1", 0)}))
		for _, c := range []struct {
			name string
			org  tenancy.OrgID
			user tenancy.UserID
		}{{"same organisation, other person", acme, bob}, {"other organisation, same person", globe, ann}} {
			if _, err := s.Thread(t.Context(), c.org, c.user, "t1"); !fault.Is(err, fault.NotFound) {
				t.Errorf("%s: %v, want not found", c.name, err)
			}
			list, _, err := s.Threads(t.Context(), c.org, c.user, transcript.Page{})
			must(t, err)
			if len(list) != 0 {
				t.Errorf("%s: lists %+v", c.name, list)
			}
		}
		if _, err := s.Thread(t.Context(), tenancy.OrgID{}, ann, "t1"); err == nil {
			t.Error("no organisation was served")
		}
		if err := s.Append(t.Context(), globe, []transcript.Turn{Turn(acme, ann, "t9", 0)}); err == nil {
			t.Error("a turn of one organisation was appended to another")
		}
	})
	t.Run("threads come newest first, in pages", func(t *testing.T) {
		s := open(t)
		for i := range 5 {
			must(t, s.Append(t.Context(), acme, []transcript.Turn{Turn(acme, ann, fmt.Sprintf("t%d", i), i), Turn(acme, ann, fmt.Sprintf("t%d", i), 10+i/2)}))
		}
		var got []string
		page := transcript.Page{Limit: 2}
		for range 4 {
			list, next, err := s.Threads(t.Context(), acme, ann, page)
			must(t, err)
			for _, h := range list {
				got = append(got, h.ID)
				if h.Turns != 2 || h.ProjectID != "deck-1" || h.ProjectKind != "deck" || !h.CreatedAt.Before(h.UpdatedAt) {
					t.Errorf("thread %+v", h)
				}
			}
			if page.Before = next; next == "" {
				break
			}
		}
		if d := cmp.Diff([]string{"t4", "t3", "t2", "t1", "t0"}, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("concurrent appends all arrive", func(t *testing.T) {
		s := open(t)
		var wg sync.WaitGroup
		errs := make([]error, 20)
		for i := range errs {
			wg.Go(func() { errs[i] = s.Append(t.Context(), acme, []transcript.Turn{Turn(acme, ann, "t1", i)}) })
		}
		wg.Wait()
		for _, err := range errs {
			must(t, err)
		}
		got, err := s.Thread(t.Context(), acme, ann, "t1")
		must(t, err)
		if len(got) != len(errs) {
			t.Errorf("%d turns, want %d", len(got), len(errs))
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

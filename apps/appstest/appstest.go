// Package appstest owns what every store of apps' registrations must do, as tests, and the store in memory that other tests use.
//
// It refuses to know databases.
package appstest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/apps"
	"github.com/lossless-group/gateway/fault"
)

// Memory is a store in memory. The zero value is ready.
type Memory struct {
	mu   sync.Mutex
	rows []apps.Record
	Err  error // answered by every call, when set
}

// Newest implements apps.Store.
func (m *Memory) Newest(context.Context) ([]apps.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := map[string]apps.Record{}
	for _, r := range m.rows {
		last[r.App] = r
	}
	var out []apps.Record
	for _, r := range last {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b apps.Record) int { return strings.Compare(a.App, b.App) })
	return out, m.Err
}

// History implements apps.Store.
func (m *Memory) History(_ context.Context, app string, limit int) ([]apps.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []apps.Record
	for i := len(m.rows) - 1; i >= 0 && len(out) < limit; i-- {
		if m.rows[i].App == app {
			out = append(out, m.rows[i])
		}
	}
	return out, m.Err
}

// Append implements apps.Store.
func (m *Memory) Append(_ context.Context, r apps.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Err != nil {
		return m.Err
	}
	next := 1
	for _, x := range m.rows {
		if x.App == r.App {
			next = x.Revision + 1
		}
	}
	if r.Revision != next {
		return fault.New(fault.Conflict, "appstest.Append", "app_changed", "not the next revision")
	}
	m.rows = append(m.rows, r)
	return nil
}

// Run holds a store against the contract of apps.Store.
func Run(t *testing.T, open func(t *testing.T) apps.Store) {
	ctx := context.Background()
	at := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	row := func(app string, n int, sealed string) apps.Record {
		r := apps.Record{App: app, Revision: n, SHA256: sealed, By: "u_1", At: at.Add(time.Duration(n) * time.Minute)}
		if sealed != "" {
			r.Sealed = []byte(sealed)
		}
		return r
	}
	t.Run("nothing", func(t *testing.T) {
		s := open(t)
		if got, err := s.Newest(ctx); err != nil || len(got) != 0 {
			t.Errorf("%v, %v", got, err)
		}
		if got, err := s.History(ctx, "slides", 5); err != nil || len(got) != 0 {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("revisions", func(t *testing.T) {
		s := open(t)
		rows := []apps.Record{row("slides", 1, "a"), row("memo", 1, "m"), row("slides", 2, "b"), row("slides", 3, "")}
		for _, r := range rows {
			if err := s.Append(ctx, r); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Newest(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]apps.Record{rows[1], rows[3]}, got); diff != "" {
			t.Error(diff)
		}
		if got, err = s.History(ctx, "slides", 2); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]apps.Record{rows[3], rows[2]}, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("only the next", func(t *testing.T) {
		s := open(t)
		for _, tt := range []struct {
			name string
			r    apps.Record
			ok   bool
		}{{"a gap at the start", row("slides", 2, "x"), false}, {"the first", row("slides", 1, "a"), true}, {"the same again", row("slides", 1, "b"), false}, {"a gap", row("slides", 3, "c"), false}, {"the second", row("slides", 2, "d"), true}} {
			err := s.Append(ctx, tt.r)
			if tt.ok && err != nil || !tt.ok && fault.KindOf(err) != fault.Conflict {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if got, err := s.History(ctx, "slides", 9); err != nil || len(got) != 2 || got[1].SHA256 != "a" {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("one of many at once", func(t *testing.T) {
		s := open(t)
		var wg sync.WaitGroup
		won := make(chan string, 8)
		for i := range 8 {
			wg.Go(func() {
				if err := s.Append(ctx, row("slides", 1, string(rune('a'+i)))); err == nil {
					won <- string(rune('a' + i))
				} else if fault.KindOf(err) != fault.Conflict {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		close(won)
		var winners []string
		for w := range won {
			winners = append(winners, w)
		}
		got, err := s.Newest(ctx)
		if err != nil || len(winners) != 1 || len(got) != 1 || got[0].SHA256 != winners[0] {
			t.Errorf("winners %q, stored %v, %v", winners, got, err)
		}
	})
}

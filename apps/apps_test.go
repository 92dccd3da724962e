package apps_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/apps"
	"github.com/lossless-group/gateway/apps/appstest"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/tenancy"
)

type answer struct{}

func (answer) Run(context.Context, dispatch.Call) (dispatch.Result, error) {
	return dispatch.Result{}, nil
}

// hosts makes a handler for every capability but those of a server it does not know.
type hosts struct{}

func (hosts) Handler(d dispatch.Document, _ dispatch.CapabilityDocument) (dispatch.Handler, error) {
	if strings.Contains(d.Webhook.URL, "nowhere") {
		return nil, errors.New("there is no such host")
	}
	return answer{}, nil
}

var acme = tenancy.MustOrgID("acme.example")

// secret opens nothing.
var secret = "whsec_" + strings.Repeat("QUJD", 8)

func doc(app, host string, names ...string) []byte {
	caps := []any{}
	for _, n := range names {
		name, about, _ := strings.Cut(n, "=")
		caps = append(caps, map[string]any{"name": name, "description": "d" + about, "kind": "read", "inputSchema": map[string]any{"type": "object"}, "handler": map[string]any{"kind": "webhook"}})
	}
	b, err := json.Marshal(map[string]any{"version": 1, "app": app, "webhook": map[string]any{"url": "https://" + host + ".example", "secret": secret}, "capabilities": caps})
	if err != nil {
		panic(err)
	}
	return b
}

func book(t *testing.T, store apps.Store) *apps.Book {
	t.Helper()
	master, err := keyring.NewMasterKey([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := keyring.NewSealer([]keyring.MasterKey{master})
	if err != nil {
		t.Fatal(err)
	}
	built := dispatch.Capability{Name: "deck.read", App: "demo", Description: "d", InputSchema: json.RawMessage(`{"type":"object"}`), Kind: dispatch.Read, RequiredTier: tenancy.TierViewer, Handler: answer{}}
	library, err := dispatch.NewLibrary(dispatch.Offer{App: "demo", Capabilities: []dispatch.Capability{built}})
	if err != nil {
		t.Fatal(err)
	}
	return apps.New(apps.Config{Store: store, Sealer: sealer, Library: library, Handlers: hosts{}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Clock: time.Now})
}

func offered(b *apps.Book) []string {
	names, _ := b.Library.For(acme).Match([]string{"*"})
	return names
}

func TestStoreInMemoryConforms(t *testing.T) {
	appstest.Run(t, func(*testing.T) apps.Store { return &appstest.Memory{} })
}

func TestPutRegistersOrSaysWhyNot(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		name   string
		app    string
		raw    []byte
		expect int
		kind   fault.Kind
		code   string
	}{
		{"not a document", "slides", []byte(`{}`), -1, fault.Invalid, "invalid_registry"},
		{"a host that cannot be", "slides", doc("slides", "nowhere", "slide.read"), -1, fault.Invalid, "invalid_registry"},
		{"a name outside the grammar", "slides", doc("slides", "s", "slide read"), -1, fault.Invalid, "invalid_registry"},
		{"a name twice", "slides", doc("slides", "s", "slide.read", "slide.read"), -1, fault.Invalid, "invalid_registry"},
		{"another app's name", "slides", doc("slides", "s", "deck.read"), -1, fault.Conflict, "capability_taken"},
		{"an app of the gateway's own", "demo", doc("demo", "s", "slide.read"), -1, fault.Conflict, "app_from_file"},
		{"an outdated revision", "slides", doc("slides", "s", "slide.read"), 7, fault.Conflict, "precondition_failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := &appstest.Memory{}
			b := book(t, store)
			_, err := b.Put(ctx, tt.app, tt.raw, tt.expect, false, "u")
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Kind != tt.kind || fe.CodeOrKind() != tt.code {
				t.Errorf("got %v", err)
			}
			if rows, _ := store.Newest(ctx); len(rows) != 0 || !cmp.Equal(offered(b), []string{"deck.read"}) {
				t.Errorf("something was changed: %v, %q", rows, offered(b))
			}
		})
	}
}

func TestLifeOfARegistration(t *testing.T) {
	ctx := context.Background()
	store := &appstest.Memory{}
	here, there := book(t, store), book(t, store) // two replicas
	put := func(want apps.Change, expect int, dry bool, names ...string) {
		t.Helper()
		got, err := here.Put(ctx, "slides", doc("slides", "s", names...), expect, dry, "u_1")
		if err != nil {
			t.Fatal(err)
		}
		want.App, want.SHA256, want.DryRun = "slides", got.SHA256, dry
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	none := []string{}
	put(apps.Change{Revision: 0, Added: []string{"slide.edit", "slide.read"}, Removed: none, Changed: none}, -1, true, "slide.read", "slide.edit")
	put(apps.Change{Revision: 1, Added: []string{"slide.edit", "slide.read"}, Removed: none, Changed: none}, 0, false, "slide.read", "slide.edit")
	put(apps.Change{Revision: 1, Added: none, Removed: none, Changed: none}, -1, false, "slide.read", "slide.edit") // the same again
	put(apps.Change{Revision: 2, Added: []string{"slide.new"}, Removed: []string{"slide.edit"}, Changed: []string{"slide.read"}}, 1, false, "slide.read=other", "slide.new")
	if got := offered(here); !cmp.Equal(got, []string{"deck.read", "slide.new", "slide.read"}) {
		t.Errorf("here: %q", got)
	}
	if got := offered(there); !cmp.Equal(got, []string{"deck.read"}) {
		t.Errorf("the other replica knows already: %q", got)
	}
	if err := there.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if got := offered(there); !cmp.Equal(got, offered(here)) {
		t.Errorf("there: %q", got)
	}
	d, r, err := there.Document(ctx, "slides")
	if err != nil || r.Revision != 2 || len(d.Capabilities) != 2 || strings.Contains(d.Webhook.Secrets[0], secret[8:]) {
		t.Errorf("%+v, %+v, %v", d, r, err)
	}
	rows, _ := store.History(ctx, "slides", 9)
	for _, row := range rows {
		if strings.Contains(string(row.Sealed), "slide.read") || strings.Contains(string(row.Sealed), secret) {
			t.Error("a stored document can be read")
		}
	}

	if _, err := here.Remove(ctx, "slides", 1, "u"); fault.KindOf(err) != fault.Conflict {
		t.Errorf("removing an outdated revision: %v", err)
	}
	c, err := here.Remove(ctx, "slides", 2, "u")
	if err != nil || c.Revision != 3 || !cmp.Equal(c.Removed, []string{"slide.new", "slide.read"}) {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := here.Remove(ctx, "slides", -1, "u"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("removing what is gone: %v", err)
	}
	if err := there.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if got := offered(there); !cmp.Equal(got, []string{"deck.read"}) {
		t.Errorf("after removal: %q", got)
	}
	put(apps.Change{Revision: 4, Added: []string{"slide.read"}, Removed: none, Changed: none}, -1, false, "slide.read")
}

// A document that cannot be used here leaves what was in force, and the next good one is taken.
func TestRefreshKeepsTheLastGoodDocument(t *testing.T) {
	ctx := context.Background()
	store := &appstest.Memory{}
	b := book(t, store)
	if _, err := b.Put(ctx, "slides", doc("slides", "s", "slide.read"), -1, false, "u"); err != nil {
		t.Fatal(err)
	}
	if err := store.Append(ctx, apps.Record{App: "slides", Revision: 2, Sealed: []byte("not ours"), SHA256: "x", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := b.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if got := offered(b); !cmp.Equal(got, []string{"deck.read", "slide.read"}) {
		t.Errorf("offered %q", got)
	}
	if _, err := b.Put(ctx, "slides", doc("slides", "s", "slide.next"), -1, false, "u"); err != nil {
		t.Fatal(err)
	}
	if got := offered(b); !cmp.Equal(got, []string{"deck.read", "slide.next"}) {
		t.Errorf("offered %q", got)
	}
	store.Err = errors.New("away")
	if err := b.Refresh(ctx); err == nil {
		t.Error("a database that is away went unnoticed")
	}
	if got := offered(b); !cmp.Equal(got, []string{"deck.read", "slide.next"}) {
		t.Errorf("with the database away: %q", got)
	}
}

// The registry that a turn began with is put together again from the revisions of its time, by a process that was not there.
func TestRecallFindsWhatATurnBeganWith(t *testing.T) {
	ctx, store := context.Background(), &appstest.Memory{}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	first := book(t, store)
	first.Clock = func() time.Time { return at }
	type moment struct {
		name, version string
		at            time.Time
		offered       []string
	}
	var moments []moment
	note := func(name string) {
		t.Helper()
		moments = append(moments, moment{name, first.Library.For(acme).Version(), at.Add(time.Second), offered(first)})
		at = at.Add(time.Hour)
	}
	put := func(app string, names ...string) {
		t.Helper()
		if _, err := first.Put(ctx, app, doc(app, app, names...), -1, false, "u"); err != nil {
			t.Fatal(err)
		}
	}
	put("slides", "slide.read", "slide.edit")
	put("memos", "memo.read")
	note("both")
	put("slides", "slide.read")
	note("one shrank")
	put("memos", "memo.read", "memo.edit")
	note("the other grew")
	if _, err := first.Remove(ctx, "memos", -1, "u"); err != nil {
		t.Fatal(err)
	}
	note("one is gone")
	put("memos", "memo.new")
	put("slides", "slide.last")

	for _, m := range moments {
		for _, off := range []time.Duration{0, -2 * time.Second} { // a replica of slow knowledge, or with another clock
			t.Run(fmt.Sprintf("%s, %v off", m.name, off), func(t *testing.T) {
				later := book(t, store)
				if err := later.Refresh(ctx); err != nil {
					t.Fatal(err)
				}
				if _, known := later.Library.At(m.version); known {
					t.Fatal("it is known already")
				}
				r, ok, err := later.Recall(ctx, acme, m.version, m.at.Add(off))
				if err != nil || !ok {
					t.Fatalf("%v, %v", ok, err)
				}
				if got, _ := r.Match([]string{"*"}); !cmp.Equal(got, m.offered) || r.Version() != m.version {
					t.Errorf("recalled %q, want %q", got, m.offered)
				}
				if again, known := later.Library.At(m.version); !known || again != r {
					t.Error("it is not remembered")
				}
				if got := offered(later); !cmp.Equal(got, []string{"deck.read", "memo.new", "slide.last"}) {
					t.Errorf("what is offered now became %q", got)
				}
			})
		}
	}
	later := book(t, store)
	if r, ok, err := later.Recall(ctx, acme, "r-0000000000000000", at); ok || err != nil || r != nil {
		t.Errorf("a version nobody had: %v, %v, %v", r, ok, err)
	}
	if _, ok, err := later.Recall(ctx, acme, moments[0].version, at.Add(-100*time.Hour)); ok || err != nil {
		t.Errorf("before anything was registered: %v, %v", ok, err)
	}
	store.Err = errors.New("away")
	if _, ok, err := later.Recall(ctx, acme, moments[0].version, moments[0].at); ok || err == nil {
		t.Errorf("with the database away: %v, %v", ok, err)
	}
}

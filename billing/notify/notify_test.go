package notify_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/lossless-group/gateway/billing/notify"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

// store keeps endpoints and deliveries in memory.
type store struct {
	mu   sync.Mutex
	ends map[tenancy.OrgID]notify.Endpoint
	list map[string]*notify.Delivery
}

func (s *store) Webhook(_ context.Context, org tenancy.OrgID) (notify.Endpoint, bool, error) {
	e, ok := s.ends[org]
	return e, ok, nil
}

func (s *store) Claim(_ context.Context, now, until time.Time, most int) (out []notify.Delivery, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.list {
		if d.State == notify.Waiting && !d.Next.After(now) && len(out) < most {
			d.Next = until
			d.Tries++
			out = append(out, *d)
		}
	}
	return out, nil
}

func (s *store) Finish(_ context.Context, d notify.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list[d.ID] = &d
	return nil
}

func (s *store) of(id string) notify.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.list[id]
}

// told is one request a receiver got.
type told struct {
	id   string
	body string
	err  error // of verifying it
}

// receiver answers with one status after another, and the last one for ever.
type receiver struct {
	mu       sync.Mutex
	secret   string
	statuses []int
	got      []told
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	body, _ := io.ReadAll(req.Body)
	hook, err := standardwebhooks.NewWebhook(r.secret)
	if err == nil {
		err = hook.VerifyIgnoringTimestamp(body, req.Header)
	}
	r.got = append(r.got, told{req.Header.Get("webhook-id"), string(body), err})
	status := r.statuses[0]
	if len(r.statuses) > 1 {
		r.statuses = r.statuses[1:]
	}
	if status == http.StatusFound {
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "a secret of the receiver")
}

type house struct {
	*notify.Sender
	store *store
	to    *receiver
	now   time.Time
}

func newHouse(t *testing.T, statuses ...int) *house {
	t.Helper()
	raw := make([]byte, 32)
	for i := range raw {
		raw[i] = byte(i)
	}
	masters, err := keyring.ParseMasterKeys(base64.StdEncoding.EncodeToString(raw))
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := keyring.NewSealer(masters)
	if err != nil {
		t.Fatal(err)
	}
	shown, sealed, err := notify.NewSecret(sealer, acme)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{to: &receiver{secret: shown.Reveal(), statuses: statuses}, now: start}
	srv := httptest.NewServer(h.to)
	t.Cleanup(srv.Close)
	h.store = &store{ends: map[tenancy.OrgID]notify.Endpoint{acme: {URL: srv.URL, Secret: sealed}, globe: {URL: srv.URL, Secret: sealed}}, list: map[string]*notify.Delivery{}}
	client := srv.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client.Timeout = time.Second
	h.Sender = notify.New(notify.Config{Store: h.store, Sealer: sealer, Client: client, Clock: func() time.Time { return h.now }, Schedule: []time.Duration{5 * time.Second, time.Minute}, Poll: time.Hour})
	return h
}

func (h *house) post(org tenancy.OrgID, id string) {
	h.store.list[id] = &notify.Delivery{ID: id, Org: org, Kind: "k", Body: []byte(`{"type":"k"}`), State: notify.Waiting, Made: h.now, Next: h.now}
}

func (h *house) deliver(t *testing.T, want int) {
	t.Helper()
	if n, err := h.Deliver(t.Context()); err != nil || n != want {
		t.Errorf("%d delivered, %v; want %d", n, err, want)
	}
}

func TestWhatBecomesOfADelivery(t *testing.T) {
	for _, c := range []struct {
		name     string
		statuses []int
		state    notify.State
		calls    int
		trouble  string
	}{
		{"taken", []int{204}, notify.Delivered, 1, ""},
		{"taken after trouble", []int{500, 429, 200}, notify.Delivered, 3, ""},
		{"never taken", []int{503}, notify.Failed, 3, "Service Unavailable"},
		{"gone", []int{410}, notify.Failed, 1, "gone"},
		{"redirected, which is not followed", []int{302}, notify.Failed, 3, "redirects"},
		{"refused", []int{401}, notify.Failed, 3, "Unauthorized"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t, c.statuses...)
			h.post(acme, "evt_1")
			for range 10 {
				if _, err := h.Deliver(t.Context()); err != nil {
					t.Fatal(err)
				}
				h.now = h.now.Add(70 * time.Second)
			}
			d := h.store.of("evt_1")
			if d.State != c.state || d.Tries != c.calls || !strings.Contains(d.Trouble, c.trouble) || c.trouble == "" && d.Trouble != "" || d.Done.IsZero() || strings.Contains(d.Trouble, "secret of the receiver") {
				t.Errorf("became %+v", d)
			}
			if len(h.to.got) != c.calls {
				t.Errorf("%d calls, want %d", len(h.to.got), c.calls)
			}
			for _, g := range h.to.got {
				if g.id != "evt_1" || g.body != `{"type":"k"}` || g.err != nil {
					t.Errorf("told %+v", g)
				}
			}
		})
	}
}

func TestPausesGrow(t *testing.T) {
	h := newHouse(t, 500)
	h.post(acme, "evt_1")
	h.deliver(t, 1)
	if next := h.store.of("evt_1").Next.Sub(h.now); next < 5*time.Second || next > 6*time.Second {
		t.Errorf("the second try after %v", next)
	}
	h.deliver(t, 0)
	h.now = h.now.Add(6 * time.Second)
	h.deliver(t, 1)
	if next := h.store.of("evt_1").Next.Sub(h.now); next < time.Minute || next > 67*time.Second {
		t.Errorf("the third try after %v", next)
	}
}

func TestASecretOpensForItsOwnerOnly(t *testing.T) {
	h := newHouse(t, 200)
	h.post(globe, "evt_1") // with acme's sealed secret, as a row copied to another organisation would have it
	h.deliver(t, 1)
	if d := h.store.of("evt_1"); d.State != notify.Waiting || !strings.Contains(d.Trouble, "secret") || len(h.to.got) != 0 {
		t.Errorf("became %+v after %d calls", d, len(h.to.got))
	}
}

func TestAWebhookThatWasRemoved(t *testing.T) {
	h := newHouse(t, 200)
	h.post(acme, "evt_1")
	delete(h.store.ends, acme)
	h.deliver(t, 1)
	if d := h.store.of("evt_1"); d.State != notify.Failed || len(h.to.got) != 0 {
		t.Errorf("became %+v", d)
	}
}

func TestNobodyAnswers(t *testing.T) {
	h := newHouse(t, 200)
	h.store.ends[acme] = notify.Endpoint{URL: "http://127.0.0.1:1", Secret: h.store.ends[acme].Secret}
	h.post(acme, "evt_1")
	h.deliver(t, 1)
	if d := h.store.of("evt_1"); d.State != notify.Waiting || d.Status != 0 || d.Trouble != "the receiver could not be reached" {
		t.Errorf("became %+v", d)
	}
}

func TestRunDeliversWhatIsDueAndEnds(t *testing.T) {
	h := newHouse(t, 200)
	for i := range 20 {
		h.post(acme, fmt.Sprint("evt_", i))
	}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx, func(err error) { t.Error(err) })
	}()
	delivered := func() (n int) {
		h.store.mu.Lock()
		defer h.store.mu.Unlock()
		for _, d := range h.store.list {
			if d.State == notify.Delivered {
				n++
			}
		}
		return n
	}
	wait := func(want int) {
		t.Helper()
		for range 500 {
			if delivered() == want {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%d delivered, want %d", delivered(), want)
	}
	wait(20)
	h.store.mu.Lock()
	h.post(acme, "evt_late")
	h.store.mu.Unlock()
	h.Wake() // the next look is an hour away
	wait(21)
	end()
	<-done
}

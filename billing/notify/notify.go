// Package notify tells organisations' own systems what their budgets did, by webhooks as the Standard Webhooks specification has them.
//
// It refuses to know what a notice says, how it came about, and which addresses may be reached: the client it is given decides that.
//
// Invariants: a notice is told at least once, under one id however often; it is signed each time with the organisation's own secret, which is
// sealed at rest; nothing a receiver answers is kept but its status; a receiver that is slow holds up no other.
package notify

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/tenancy"
)

// Endpoint is where an organisation wants to be told.
type Endpoint struct {
	URL     string
	Secret  []byte // sealed by NewSecret
	Version int64  // 1 for a new one, one more with each change
	By      tenancy.UserID
	At      time.Time
}

// State is what became of a delivery.
type State string

// The states of a delivery.
const (
	Waiting   State = "waiting"
	Delivered State = "delivered"
	Failed    State = "failed" // given up
)

// Delivery is one notice on its way, or told.
type Delivery struct {
	ID      string        `json:"id"`
	Org     tenancy.OrgID `json:"-"`
	Kind    string        `json:"kind"`
	Body    []byte        `json:"-"`
	State   State         `json:"state"`
	Tries   int           `json:"tries"`
	Made    time.Time     `json:"madeAt"`
	Next    time.Time     `json:"nextAt"`          // of a waiting one
	Done    time.Time     `json:"doneAt,omitzero"` // zero while it waits
	Status  int           `json:"status"`          // the newest answer's; 0: there was none
	Trouble string        `json:"trouble,omitempty"`
}

// Store keeps endpoints and deliveries.
type Store interface {
	// Webhook returns an organisation's endpoint; found is false when it has none.
	Webhook(ctx context.Context, org tenancy.OrgID) (e Endpoint, found bool, err error)
	// Claim returns deliveries that are due, at most so many, and makes them due again at until, so that nobody else has them meanwhile. Tries
	// counts the one that follows.
	Claim(ctx context.Context, now, until time.Time, most int) ([]Delivery, error)
	// Finish stores what became of a delivery: state, next, done, status and trouble.
	Finish(ctx context.Context, d Delivery) error
}

// Schedule is how long after each try the next follows, as the specification recommends; after the last a delivery has failed.
func Schedule() []time.Duration {
	const h = time.Hour
	return []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * h, 5 * h, 10 * h, 14 * h, 20 * h, 24 * h}
}

// Config is everything a Sender needs; all fields are required.
type Config struct {
	Store    Store
	Sealer   *keyring.Sealer
	Client   *http.Client // reaches what organisations may name, follows no redirects, and has a timeout
	Clock    func() time.Time
	Schedule []time.Duration
	Poll     time.Duration // between two looks for what is due
}

// Sender delivers what is due. It is safe for concurrent use.
type Sender struct {
	Config
	wake chan struct{}
}

// The bounds of a Sender.
const (
	atOnce   = 8               // deliveries under way together
	claimFor = 2 * time.Minute // longer than any client's timeout
	maxRead  = 64 << 10        // of an answer, so that its connection can be used again
)

// New returns a Sender; Run makes it work.
func New(c Config) *Sender { return &Sender{Config: c, wake: make(chan struct{}, 1)} }

// Wake makes the sender look for what is due now. It does not block.
func (s *Sender) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run delivers until ctx ends. failed is told of stores that do not answer.
func (s *Sender) Run(ctx context.Context, failed func(error)) {
	t := time.NewTicker(s.Poll)
	defer t.Stop()
	for {
		n, err := s.Deliver(ctx)
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
		if n == atOnce && err == nil {
			continue // there may be more
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.wake:
		}
	}
}

// Deliver tells what is due, at most a few together, and returns how many there were.
func (s *Sender) Deliver(ctx context.Context) (int, error) {
	now := s.Clock()
	list, err := s.Store.Claim(ctx, now, now.Add(claimFor), atOnce)
	if err != nil {
		return 0, err
	}
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, d := range list {
		wg.Go(func() { errs[i] = s.one(ctx, d) })
	}
	wg.Wait()
	return len(list), errors.Join(errs...)
}

// one tries one delivery and stores what became of it.
func (s *Sender) one(ctx context.Context, d Delivery) error {
	end, found, err := s.Store.Webhook(ctx, d.Org)
	if err != nil {
		return err // it is due again when the claim ends
	}
	d.Status, d.Trouble = 0, "the webhook was removed"
	final := !found
	if found {
		d.Status, d.Trouble, final = s.send(ctx, end, d)
	}
	if ctx.Err() != nil && d.Trouble != "" {
		return nil // we are going; it is due again when the claim ends
	}
	now := s.Clock()
	switch {
	case d.Trouble == "":
		d.State, d.Done = Delivered, now
	case final || d.Tries > len(s.Schedule):
		d.State, d.Done = Failed, now
	default:
		d.Next = now.Add(jitter(s.Schedule[d.Tries-1]))
	}
	return s.Store.Finish(context.WithoutCancel(ctx), d)
}

// jitter is a pause that is up to a tenth longer, so that many receivers are not asked at once.
func jitter(d time.Duration) time.Duration {
	n, err := rand.Int(rand.Reader, big.NewInt(int64(d)/10+1))
	if err != nil { // the system has no randomness; the pause is as good without
		return d
	}
	return d + time.Duration(n.Int64())
}

// send makes one request. trouble is empty when the receiver took it; final says that asking again is in vain.
func (s *Sender) send(ctx context.Context, end Endpoint, d Delivery) (status int, trouble string, final bool) {
	secret, err := s.Sealer.OpenBlob(d.Org, purpose, blobID, end.Secret)
	if err != nil {
		return 0, "the secret cannot be opened; make a new one", false
	}
	hook, err := standardwebhooks.NewWebhookRaw(secret)
	if err != nil {
		return 0, "the secret cannot be used; make a new one", false
	}
	at := s.Clock()
	sign, err := hook.Sign(d.ID, at, d.Body)
	if err != nil {
		return 0, "the notice could not be signed", false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, end.URL, bytes.NewReader(d.Body))
	if err != nil {
		return 0, "the address cannot be used", true
	}
	for name, v := range map[string]string{"Content-Type": "application/json", "User-Agent": "lossless-gateway", standardwebhooks.HeaderWebhookID: d.ID,
		standardwebhooks.HeaderWebhookTimestamp: strconv.FormatInt(at.Unix(), 10), standardwebhooks.HeaderWebhookSignature: sign} {
		req.Header.Set(name, v)
	}
	res, err := s.Client.Do(req)
	if err != nil {
		return 0, unreached(err), false
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxRead)) // what it says is of no interest
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return res.StatusCode, "", false
	case res.StatusCode == http.StatusGone:
		return res.StatusCode, "the receiver says that it is gone", true
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return res.StatusCode, "the receiver redirects; name the address it redirects to", false
	}
	return res.StatusCode, "the receiver answered " + http.StatusText(res.StatusCode), false
}

// unreached says why there was no answer, without what a resolver or a dialer knows of our network.
func unreached(err error) string {
	var t net.Error
	if errors.As(err, &t) && t.Timeout() {
		return "the receiver did not answer in time"
	}
	return "the receiver could not be reached"
}

// How secrets are sealed.
const (
	purpose     = "webhook"
	blobID      = "secret"
	secretBytes = 32
	prefix      = "whsec_"
)

// NewSecret makes a secret for an organisation: as it is shown, once, and as it is stored.
func NewSecret(s *keyring.Sealer, org tenancy.OrgID) (shown keyring.Secret, sealed []byte, err error) {
	raw := make([]byte, secretBytes)
	if _, err := rand.Read(raw); err != nil {
		return keyring.Secret{}, nil, err
	}
	sealed, err = s.SealBlob(org, purpose, blobID, raw)
	return keyring.NewSecret(prefix + base64.StdEncoding.EncodeToString(raw)), sealed, err
}

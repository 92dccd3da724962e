package webhook

import (
	"net/http"
	"testing"
	"time"

	"github.com/lossless-group/gateway/keyring"
)

// The example that the Standard Webhooks specification publishes, and a second secret beside it as during a change of secrets.
func TestSignaturesAreThoseOfTheSpecification(t *testing.T) {
	const first, second = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	w := &Handler{host: &Host{cfg: Config{
		Clock: func() time.Time { return time.Unix(1614265330, 0) }, Secrets: []keyring.Secret{keyring.NewSecret("whsec_" + first), keyring.NewSecret("whsec_" + second)},
	}}}
	h := http.Header{}
	if err := w.sign(h, "msg_p5jXN8AQM9LWM0D4loKWxJek", []byte(`{"test": 2432232314}`)); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
		"webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1,78nXHjpFP0tVJQW5D0SBwmVyyW87BV/rL6MgfM/Bw44="}
	for name, v := range want {
		if h.Get(name) != v {
			t.Errorf("%s: %q, want %q", name, h.Get(name), v)
		}
	}
}

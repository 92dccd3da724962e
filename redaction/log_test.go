package redaction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

type said struct{ words string }

func (s said) String() string { return s.words }

type lazy struct{ words string }

func (l lazy) LogValue() slog.Value { return slog.StringValue(l.words) }

func TestLogsHoldNothing(t *testing.T) {
	key, mail, card := testKey(), "jane.doe@example.com", "4111 1111 1111 1111"
	for _, c := range []struct {
		name string
		log  func(*slog.Logger)
	}{
		{"a message", func(l *slog.Logger) { l.Info("mail " + mail + " key " + key) }},
		{"a string", func(l *slog.Logger) { l.Info("x", "cause", "dial https://u:hunter2pass@host/ for "+mail) }},
		{"an error", func(l *slog.Logger) { l.Info("x", "err", fmt.Errorf("open: %w", errors.New("bad "+key))) }},
		{"a Stringer", func(l *slog.Logger) { l.Info("x", "v", said{card}) }},
		{"a LogValuer", func(l *slog.Logger) { l.Info("x", "v", lazy{mail}) }},
		{"a struct", func(l *slog.Logger) { l.Info("x", "v", struct{ To string }{mail}) }},
		{"a list", func(l *slog.Logger) { l.Info("x", "v", []string{mail, key}) }},
		{"a group", func(l *slog.Logger) {
			l.Info("x", slog.Group("g", slog.String("a", mail), slog.Group("h", slog.String("b", key))))
		}},
		{"With", func(l *slog.Logger) { l.With("a", mail).WithGroup("g").With("b", key).Info("x", "c", card) }},
		{"a key that says so", func(l *slog.Logger) { l.Info("x", "Authorization", "hunter2pass", "db_password", "hunter2pass") }},
		{"bytes under such a key", func(l *slog.Logger) { l.Info("x", "X-Api-Key", []byte("hunter2pass")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, form := range []string{"text", "json"} {
				var out bytes.Buffer
				var h slog.Handler = slog.NewTextHandler(&out, nil)
				if form == "json" {
					h = slog.NewJSONHandler(&out, nil)
				}
				c.log(slog.New(LogHandler(h)))
				for _, value := range []string{mail, "jane.doe", key, card, "hunter2pass"} {
					if strings.Contains(out.String(), value) {
						t.Errorf("%s: %s", form, out.String())
					}
				}
			}
		})
	}
	var out bytes.Buffer
	l := slog.New(LogHandler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	l.Debug("not asked for")
	l.Info("request", "requestId", "req_01924f6e-7a1b-7c3d-9e5f-0123456789ab", "status", 200, "org", "acme.example", "took", "12.5ms", "peer", "192.0.2.17", "passwordless", true)
	want := `level=INFO msg=request requestId=req_01924f6e-7a1b-7c3d-9e5f-0123456789ab status=200 org=acme.example took=12.5ms peer=192.0.2.17 passwordless=true`
	if got := out.String(); !strings.HasSuffix(strings.TrimSpace(got), want) {
		t.Errorf("what every line says was changed: %s", got)
	}
	if LogHandler(slog.DiscardHandler).Enabled(context.Background(), slog.LevelError) {
		t.Error("the handler below does not decide")
	}
}

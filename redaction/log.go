package redaction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// LogHandler returns a handler that hides what is sensitive before next writes it: everything the strict profile finds, IP addresses
// aside, is masked in messages and in attributes, errors and values with a String or MarshalText method included, and attributes whose key
// names a credential are masked whole. It cannot be switched off by a policy.
func LogHandler(next slog.Handler) slog.Handler {
	p := upTo("logs", inStrict)
	for e := range p.request {
		if p.request[e] != "" {
			p.request[e] = Mask
		}
	}
	// Whose address called is what logs are for; request ids and hashes are full of digits, which those entities only tell apart by a
	// word nearby.
	p.request[ipAddress] = Allow
	return &logHandler{next: next, p: compile(p)}
}

// logHandler masks records.
type logHandler struct {
	next slog.Handler
	p    *Profile
}

var _ slog.Handler = (*logHandler)(nil)

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, h.clean(r.Message, ""), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(h.attr(a))
		return true
	})
	return h.next.Handle(ctx, out)
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.attr(a)
	}
	return &logHandler{h.next.WithAttrs(clean), h.p}
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.next.WithGroup(name), h.p}
}

// deniedKeys are what the keys of attributes end with, in lower case and without separators, that hold credentials or what people said.
var deniedKeys = []string{"authorization", "cookie", "password", "passwd", "secret", "apikey", "accesstoken", "refreshtoken", "idtoken", "privatekey", "prompt", "completion"}

func denied(key string) bool {
	k := strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "").Replace(key))
	for _, d := range deniedKeys {
		if strings.HasSuffix(k, d) {
			return true
		}
	}
	return false
}

func (h *logHandler) attr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	if denied(a.Key) && v.Kind() != slog.KindBool && v.Kind() != slog.KindInt64 && v.Kind() != slog.KindDuration {
		return slog.String(a.Key, "[hidden]")
	}
	switch v.Kind() {
	case slog.KindString:
		return slog.String(a.Key, h.clean(v.String(), a.Key))
	case slog.KindGroup:
		group := v.Group()
		clean := make([]slog.Attr, len(group))
		for i, g := range group {
			clean[i] = h.attr(g)
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(clean...)}
	case slog.KindAny:
		switch x := v.Any().(type) {
		case nil:
			return slog.Attr{Key: a.Key, Value: v}
		case error:
			if text := x.Error(); h.clean(text, a.Key) != text {
				return slog.Any(a.Key, errors.New(h.clean(text, a.Key)))
			}
			return slog.Attr{Key: a.Key, Value: v}
		case fmt.Stringer:
			return slog.String(a.Key, h.clean(x.String(), a.Key))
		}
		plain := fmt.Sprintf("%+v", v.Any())
		if clean := h.clean(plain, a.Key); clean != plain {
			return slog.String(a.Key, clean)
		}
	}
	return slog.Attr{Key: a.Key, Value: v}
}

func (h *logHandler) clean(text, key string) string {
	var d detector
	hits := d.request(h.p, text, key, posOther)
	if len(hits) == 0 {
		return text
	}
	var b strings.Builder
	from := 0
	for _, x := range hits {
		b.WriteString(text[from:x.start])
		b.WriteString(h.p.label(x.ent, text[x.start:x.end]))
		from = x.end
	}
	b.WriteString(text[from:])
	return b.String()
}

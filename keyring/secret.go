package keyring

import "log/slog"

// Secret is a provider key or another value that must never be printed. It holds a pointer, so even reflection-based
// printing of a struct that contains one shows an address and not the value.
type Secret struct{ p *string }

const hidden = "[secret]"

// NewSecret wraps a value.
func NewSecret(s string) Secret { return Secret{&s} }

// Reveal returns the value. Only provider adapters and the sealer call it.
func (s Secret) Reveal() string {
	if s.p == nil {
		return ""
	}
	return *s.p
}

// IsZero reports whether there is no value.
func (s Secret) IsZero() bool { return s.p == nil || *s.p == "" }

// LastFour returns the last four characters when the value is long enough to keep the rest secret, else "".
func (s Secret) LastFour() string {
	v := s.Reveal()
	if len(v) < 12 {
		return ""
	}
	return v[len(v)-4:]
}

// String hides the value.
func (s Secret) String() string { return hidden }

// GoString hides the value.
func (s Secret) GoString() string { return hidden }

// MarshalText hides the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// MarshalJSON hides the value.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// LogValue hides the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

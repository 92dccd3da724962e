package keyring

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lossless-group/gateway/fault"
)

const (
	maxKeyBytes   = 512
	maxLabelBytes = 100
)

// formats are the beginnings providers give their keys. They shape the hint that is shown, and one that is distinctive catches a key
// pasted into the wrong row before it costs a failed turn. They are no test of a key: a proxy in front of a provider gives out its own.
var formats = map[string]struct {
	prefixes []string // longest first
	sentence string
}{
	"anthropic": {[]string{"sk-ant-"}, "This looks like a key of Anthropic, which begins with sk-ant-. Save it under that provider."},
	"openai":    {[]string{"sk-proj-", "sk-svcacct-", "sk-"}, "This looks like a key of OpenAI, which begins with sk-proj- or sk-svcacct-. Save it under that provider."},
	"gemini":    {[]string{"AIza", "AQ."}, "This looks like a key of Gemini, which begins with AIza. Save it under that provider."},
}

// distinctive beginnings belong to one provider only. A bare sk- does not: many services use it.
var distinctive = map[string]string{"sk-ant-": "anthropic", "sk-proj-": "openai", "sk-svcacct-": "openai", "AIza": "gemini"}

// checkValue refuses what cannot be a key of the provider and returns the value without the blanks a paste leaves around it.
// No error repeats any of it.
func checkValue(provider string, value Secret) (Secret, error) {
	v := strings.TrimSpace(value.Reveal())
	bad := func(code, public string) error {
		return fault.New(fault.Unprocessable, "keyring.Save", code, public).At("/key")
	}
	switch {
	case v == "":
		return Secret{}, bad("key_empty", "Paste the key; the field is empty.")
	case len(v) > maxKeyBytes:
		return Secret{}, bad("key_too_long", "This is longer than any provider's key (512 bytes); paste only the key.")
	}
	if strings.ContainsAny(v[:1]+v[len(v)-1:], "\"'`") {
		return Secret{}, bad("key_malformed", "The key stands in quotation marks; copy it without them.")
	}
	for _, r := range v {
		if r <= 0x20 || r >= 0x7f {
			return Secret{}, bad("key_malformed", "The key holds a space, a line break or a character no key has; copy it again, without anything around it.")
		}
	}
	if _, known := formats[provider]; !known {
		return NewSecret(v), nil
	}
	for prefix, owner := range distinctive {
		if owner != provider && strings.HasPrefix(v, prefix) {
			return Secret{}, bad("key_wrong_provider", formats[owner].sentence)
		}
	}
	if p := knownPrefix(provider, v); p != "" && len(v) == len(p) {
		return Secret{}, bad("key_malformed", "This is only the beginning of a key; copy it again, whole.")
	}
	return NewSecret(v), nil
}

func knownPrefix(provider, v string) string {
	for _, p := range formats[provider].prefixes {
		if strings.HasPrefix(v, p) {
			return p
		}
	}
	return ""
}

// maskOf returns what may be shown of a checked value: the provider's own prefix, and the last four characters when what
// remains hidden is at least as long as two of those.
func maskOf(provider string, value Secret) (hint, lastFour string) {
	v := value.Reveal()
	p := knownPrefix(provider, v)
	if len(v)-len(p) >= 12 {
		lastFour = v[len(v)-4:]
	}
	return p + "..." + lastFour, lastFour
}

func checkProvider(name string) error {
	ok := len(name) >= 1 && len(name) <= 40
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
	}
	if !ok {
		return fault.New(fault.Unprocessable, "keyring.Save", "provider_invalid", "Name the provider as GET /api/agent/models does, for example anthropic.").At("/provider")
	}
	return nil
}

// checkLabel keeps labels printable and refuses one that holds the key itself: labels are shown.
func checkLabel(label string, value Secret) (string, error) {
	label = strings.TrimSpace(label)
	bad := func(public string) error {
		return fault.New(fault.Unprocessable, "keyring.Save", "label_invalid", public).At("/label")
	}
	if len(label) > maxLabelBytes || !utf8.ValidString(label) {
		return "", bad("A label has at most 100 bytes of text.")
	}
	for _, r := range label {
		if !unicode.IsPrint(r) {
			return "", bad("A label is one line of printable text.")
		}
	}
	// A key of a few characters, as local servers take, may well occur in an honest word.
	if v := value.Reveal(); len(v) >= 8 && strings.Contains(label, v) {
		return "", bad("The label contains the key itself; labels are shown, so choose another.")
	}
	return label, nil
}

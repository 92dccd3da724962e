package redaction

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// scanSlowly is scan without passing over calm bytes.
func (sc *scanner) scanSlowly(s string, on entitySet) {
	sc.spans = sc.spans[:0]
	for i := 0; i < len(s); {
		c := class[s[i]]
		if c&cRun == 0 {
			if c&cAt != 0 {
				i = sc.around(s, atSign, i, i+1, on)
				continue
			}
			if c&cAssign != 0 && on.meets(assigned) {
				i = max(i+1, sc.assignment(s, i, on))
				continue
			}
			i++
			continue
		}
		start, f := i, uint8(0)
		for ; i < len(s) && class[s[i]]&cRun != 0; i++ {
			f |= class[s[i]]
		}
		i = sc.run(s, start, i, f, on)
	}
}

func TestPassingOverCalmBytesLosesNothing(t *testing.T) {
	pieces := []string{"a", "the ", " of it ", "quarterly ", "difference", " ", "\n", "\u00e9", ".", "-", "--", "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----", "@",
		"jane@example.com", " +1 415 555 2671 ", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "sk-ant-REDACTED", "AKIAQ3EGRV7XKZ5T2B6M", "ghp_Zx8Kq2Lm4Nv6Bc1Wd3Fg5Hj7Ty9Ru0Po2Is4",
		"7", "0", "x=1", "internationalisation", "=", "/", "_"}
	r := rand.New(rand.NewPCG(1, 2))
	p := mustProfile(t, "balanced")
	var fast, slow scanner
	found := 0
	for range 20_000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		text := b.String()
		fast.scan(text, p.requestOn)
		slow.scanSlowly(text, p.requestOn)
		if !slices.Equal(fast.spans, slow.spans) {
			t.Fatalf("%q: %v, want %v", text, fast.spans, slow.spans)
		}
		found += len(slow.spans)
	}
	if found < 10_000 {
		t.Errorf("only %d spans were compared", found)
	}
}

func TestCalm(t *testing.T) {
	for b := range 256 {
		got := calm(eight("a bc"+string([]byte{byte(b)})+"def", 0))
		want := (b < '0' || b > '?') && b != '-' && b != '@'
		if got != want {
			t.Errorf("byte %#x: calm %v, want %v", b, got, want)
		}
	}
	if calm(eight("abcdefgh", 0)) {
		t.Error("eight bytes without a space are not calm")
	}
}

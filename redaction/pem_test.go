package redaction

import (
	"strings"
	"testing"
)

func TestKeysThatAreNotPEM(t *testing.T) {
	base64 := strings.Repeat("AAAAB3NzaC1yc2EAAAABJQAAAQEA", 3)
	putty := "PuTTY-User-Key-File-2: ssh-rsa\nEncryption: none\nComment: rsa-key\nPublic-Lines: 1\n" + base64 + "\nPrivate-Lines: 1\n" + base64 + "\nPrivate-MAC: " + strings.Repeat("0123456789abcdef", 2) + "01234567"
	ssh2 := "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: \"2048-bit RSA\"\n" + base64 + "\n---- END SSH2 ENCRYPTED PRIVATE KEY ----"
	for _, c := range []struct{ name, text, want string }{
		{"PuTTY", "key:\n" + putty + "\nthanks", "key:\n[PRIVATE_KEY]\nthanks"},
		{"PuTTY in a string of a string", strings.ReplaceAll(putty, "\n", `\n`) + `\nthanks`, `[PRIVATE_KEY]\nthanks`},
		{"PuTTY without an end", putty[:len(putty)-60], "[PRIVATE_KEY]"},
		{"PuTTY mentioned", "A file begins with PuTTY-User-Key-File-2: and the kind.", "A file begins with PuTTY-User-Key-File-2: and the kind."},
		{"SSH2", "a " + ssh2 + " b", "a [PRIVATE_KEY] b"},
		{"SSH2 without an end", ssh2[:80], "[PRIVATE_KEY]"},
		{"SSH2 public", "---- BEGIN SSH2 PUBLIC KEY ----\n" + base64 + "\n---- END SSH2 PUBLIC KEY ----", "---- BEGIN SSH2 PUBLIC KEY ----\n" + base64 + "\n---- END SSH2 PUBLIC KEY ----"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := testEngine(t).Session(testScope, mustProfile(t, "balanced")).MaskText(c.text); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

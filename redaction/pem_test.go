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

// What a model makes up is hidden while it comes, whatever the pieces, and text that only mentions such files is not held back.
func TestKeysThatAreNotPEMInAnswers(t *testing.T) {
	line := strings.Repeat("AAAAB3NzaC1yc2EAAAABJQAAAQEA", 2)
	putty := "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: a key\nPublic-Lines: 2\n" + line + "\n" + line[:10] + "\nPrivate-Lines: 1\n" + line + "\nPrivate-MAC: " + strings.Repeat("0123456789abcdef", 4)
	ssh2 := "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nSubject: me\nComment: \"a long\\\n one, of 2 lines\"\n" + line + "\n" + line[:30] + "\n---- END SSH2 ENCRYPTED PRIVATE KEY ----"
	for _, c := range []struct{ name, text, want string }{
		{"PuTTY", "key:\n" + putty + "\nthanks", "key:\n[PRIVATE_KEY]\nthanks"},
		{"PuTTY with a shorter code", "key:\n" + putty[:len(putty)-24] + "\nthanks", "key:\n[PRIVATE_KEY]\nthanks"},
		{"PuTTY in a string of a string", strings.ReplaceAll(putty, "\n", `\n`) + `\nthanks`, `[PRIVATE_KEY]\nthanks`},
		{"PuTTY without an end", putty[:len(putty)-90], "[PRIVATE_KEY]"},
		{"PuTTY broken off", putty[:len(putty)-90] + "\nAnd so on.", "[PRIVATE_KEY]\nAnd so on."},
		{"PuTTY mentioned", "It begins with PuTTY-User-Key-File-2: and the kind.\nThen comes more.", "It begins with PuTTY-User-Key-File-2: and the kind.\nThen comes more."},
		{"SSH2", "a " + ssh2 + " b", "a [PRIVATE_KEY] b"},
		{"SSH2 without an end", "a " + ssh2[:170], "a [PRIVATE_KEY]"},
		{"SSH2 public", strings.ReplaceAll(ssh2, "ENCRYPTED PRIVATE", "PUBLIC"), strings.ReplaceAll(ssh2, "ENCRYPTED PRIVATE", "PUBLIC")},
		{"dashes", "---- \n---- BEGIN x ----\n-----", "---- \n---- BEGIN x ----\n-----"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testSession(t)
			if got, err := s.Answer(c.text); err != nil || got != c.want {
				t.Fatalf("whole: %q, %v, want %q", got, err, c.want)
			}
			for cut := 0; cut <= len(c.text); cut++ {
				st := s.Stream()
				if got := st.Text(0, c.text[:cut]) + st.Text(0, c.text[cut:]) + st.Flush(0); got != c.want {
					t.Fatalf("cut at %d: %q, want %q", cut, got, c.want)
				}
			}
			st, got := s.Stream(), ""
			for i := range len(c.text) {
				got += st.Text(0, c.text[i:i+1])
			}
			if got += st.Flush(0); got != c.want {
				t.Fatalf("byte by byte: %q, want %q", got, c.want)
			}
		})
	}
	st := testSession(t).Stream()
	if got := st.Text(0, "A file begins with PuTTY-User-Key-File-2: and the kind.\nThen"); !strings.HasSuffix(got, "kind.\nThen") {
		t.Errorf("a mention is held back: %q came out", got)
	}
	st = testSession(t).Stream()
	if got := st.Text(0, putty[:200]); got != "" {
		t.Errorf("%q came out of a key", got)
	}
	if got := st.FlushAll()[0]; got != "[PRIVATE_KEY]" {
		t.Errorf("a key that was cut off leaves %q", got)
	}
}

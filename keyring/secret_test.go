package keyring

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/fault"
)

const canary = "sk-ant-CANARY-7f3e9a51-AB12"

// nested holds secrets in every position a printer may reach: exported and unexported fields, pointers, slices, maps, interfaces.
type nested struct {
	Public  Secret
	private Secret
	Ptr     *Secret
	ptr     *Secret
	List    []Secret
	Map     map[string]Secret
	Any     any
	Deep    struct{ inner struct{ s Secret } }
	master  MasterKey
	Master  MasterKey
	entry   *slot
}

func newNested(t testing.TB) nested {
	t.Helper()
	s := NewSecret(canary)
	m, err := NewMasterKey([]byte("MASTERCANARY-0123456789-abcdefgh"))
	if err != nil {
		t.Fatal(err)
	}
	n := nested{Public: s, private: s, Ptr: &s, ptr: &s, List: []Secret{s}, Map: map[string]Secret{"k": s}, Any: s, master: m, Master: m, entry: &slot{id: "k", secret: s}}
	n.Deep.inner.s = s
	return n
}

// leaks reports whether text holds the canaries, or any long enough piece of them, in any spelling a printer uses.
func leaks(text string) string {
	lower := strings.ToLower(text)
	for _, c := range []string{canary, "MASTERCANARY-0123456789-abcdefgh"} {
		b := []byte(c)
		for _, form := range []string{
			c, c[7:15], hex.EncodeToString(b), base64.StdEncoding.EncodeToString(b)[:16], base64.RawURLEncoding.EncodeToString(b)[:16],
			strings.Trim(fmt.Sprint(b[:6]), "[]"), fmt.Sprintf("% x", b[:6]), strings.Trim(fmt.Sprintf("%#v", b[:4]), "[]byte{}"),
		} {
			if strings.Contains(lower, strings.ToLower(form)) {
				return form
			}
		}
	}
	return ""
}

func TestSecretNeverPrints(t *testing.T) {
	n := newNested(t)
	values := map[string]any{
		"secret": n.Public, "pointer": n.Ptr, "master": n.Master, "master pointer": &n.Master, "struct": n, "struct pointer": &n,
		"slice": []nested{n}, "map": map[string]any{"x": n, "y": n.Public}, "array": [1]Secret{n.Public}, "any": any(n), "slot": *n.entry,
	}
	verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%+q", "%#q", "%d", "%x", "%X", "% x", "%#x", "%o", "%b", "%c", "%U", "%t", "%e", "%p", "%T", "%w"}
	for name, v := range values {
		t.Run(name, func(t *testing.T) {
			check := func(how, text string) {
				t.Helper()
				if l := leaks(text); l != "" {
					t.Errorf("%s leaks %q: %s", how, l, text)
				}
			}
			for _, verb := range verbs {
				check(verb, fmt.Sprintf(verb, v))
			}
			check("Sprint", fmt.Sprint(v))
			check("Sprintln", fmt.Sprintln(v))
			check("Errorf", fmt.Errorf("wrapped: %w / %v", errors.New("x"), v).Error())
			check("fault", fault.Wrap(fault.Internal, "op", "code", fmt.Sprint(v), fmt.Errorf("cause %+v", v)).Error())
			if j, err := json.Marshal(v); err == nil {
				check("json", string(j))
			}
			if j, err := json.MarshalIndent(map[string]any{"v": v}, "", " "); err == nil {
				check("json indent", string(j))
			}
			var buf bytes.Buffer
			for _, h := range []slog.Handler{slog.NewTextHandler(&buf, nil), slog.NewJSONHandler(&buf, nil)} {
				l := slog.New(h).With("with", v).WithGroup("g")
				l.Info("m", "attr", v, "group", slog.GroupValue(slog.Any("inner", v)))
				l.Error(fmt.Sprint(v), "err", fmt.Errorf("x %v", v))
			}
			check("slog", buf.String())
		})
	}
	if leaks("x "+canary) == "" || leaks(fmt.Sprintf("%x", canary)) == "" || leaks(fmt.Sprint([]byte(canary))) == "" {
		t.Fatal("the check itself finds nothing")
	}
	if n.Public.Reveal() != canary {
		t.Fatal("Reveal does not reveal")
	}
}

// TestPanicOutputHidesSecrets runs this test binary again and lets it die of a panic with secrets in reach.
func TestPanicOutputHidesSecrets(t *testing.T) {
	const mode = "KEYRING_TEST_PANIC"
	switch os.Getenv(mode) {
	case "value":
		panic(fmt.Sprintf("%+v", newNested(t)))
	case "secret":
		panic(newNested(t).Public)
	case "struct":
		panic(newNested(t))
	case "argument":
		die(newNested(t), NewSecret(canary))
	}
	for _, m := range []string{"value", "secret", "struct", "argument"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPanicOutputHidesSecrets$")
		cmd.Env = append(os.Environ(), mode+"="+m, "GOTRACEBACK=all")
		out, err := cmd.CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("panic:")) {
			t.Fatalf("%s: did not panic: %v\n%s", m, err, out)
		}
		if l := leaks(string(out)); l != "" {
			t.Errorf("%s: panic output holds %q:\n%s", m, l, out)
		}
	}
}

//go:noinline
func die(n nested, s Secret) {
	var p *nested
	_ = s.Reveal()
	p.Public = n.Public
}

func TestZeroSecret(t *testing.T) {
	var s Secret
	if !s.IsZero() || s.Reveal() != "" || s.LastFour() != "" || s.String() != hidden || !NewSecret("").IsZero() || NewSecret("x").IsZero() {
		t.Fatal("the zero secret is not an empty one")
	}
}

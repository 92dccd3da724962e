package fault

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestFrom(t *testing.T) {
	own := New(Conflict, "op", "moved", "Read it again.")
	for _, tt := range []struct {
		name string
		err  error
		kind Kind
		code string
	}{
		{"its own", own, Conflict, "moved"},
		{"wrapped", fmt.Errorf("while saving: %w", own), Conflict, "moved"},
		{"a stranger is internal", io.ErrUnexpectedEOF, Internal, "internal"},
		{"without a code the kind speaks", &Error{Kind: Gone}, Gone, "gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fe := From(tt.err)
			if fe.Kind != tt.kind || fe.CodeOrKind() != tt.code || KindOf(tt.err) != tt.kind {
				t.Errorf("got %v %v", fe.Kind, fe.CodeOrKind())
			}
		})
	}
	if From(nil) != nil {
		t.Error("no error became one")
	}
	if Is(io.EOF, Internal) {
		t.Error("a stranger was taken for one of ours")
	}
}

func TestThePublicSentenceHidesTheCause(t *testing.T) {
	secret := errors.New("dial tcp: password hunter2")
	if fe := From(secret); strings.Contains(fe.Public, "hunter2") || !errors.Is(fe, secret) {
		t.Errorf("got %q", fe.Public)
	}
	fe := Wrap(Unavailable, "store.Read", "away", "Try again.", secret)
	if strings.Contains(fe.Public, "hunter2") || !strings.Contains(fe.Error(), "hunter2") || !strings.Contains(fe.Error(), "store.Read") {
		t.Errorf("got %q", fe.Error())
	}
}

func TestAtCopies(t *testing.T) {
	base := Invalidf("op", "/a", "%s is wrong", "a")
	if other := base.At("/b"); base.Field != "/a" || other.Field != "/b" || other.Public != base.Public {
		t.Errorf("got %q and %q", base.Field, other.Field)
	}
}

func TestEveryKindHasAName(t *testing.T) {
	seen := map[string]bool{}
	for k := Internal; k <= Timeout; k++ {
		if n := k.String(); n == "unknown" || seen[n] {
			t.Errorf("kind %d is called %q", k, n)
		} else {
			seen[n] = true
		}
	}
	if Kind(200).String() != "unknown" {
		t.Error("a kind that does not exist has a name")
	}
}

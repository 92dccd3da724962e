package jsonscan

import (
	"encoding/json"
	"strings"
	"testing"
)

var seeds = []string{`{"a":[1,-0.5e+3,true,false,null,"x"],"b":{}}`, ` [ ] `, `"\u00fc\ud83c\udfa8\n\/"`, `"\ud83c"`, `01`, `1.`, `{"a"}`, `{"a":1,}`, `[1 2]`, "\"\x01\"", "\"\xff\"", `tru`, ``, `"\x"`, `1 1`, `-`}

func TestCheck(t *testing.T) {
	for _, s := range seeds {
		want := json.Valid([]byte(s)) && !strings.Contains(s, "\xff") // encoding/json lets bytes that are not UTF-8 pass
		if got := Check([]byte(s)) == nil; got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
	deep := strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1)
	if err := Check([]byte(deep)); err == nil || !err.Deep {
		t.Errorf("nested too deep: %v", err)
	}
	if err := Check([]byte(deep[1 : len(deep)-1])); err != nil {
		t.Errorf("as deep as may be: %v", err)
	}
}

func TestWalk(t *testing.T) {
	s := Scanner{B: []byte(` {"s":"a\n","n":12,"big":99,"f":1.5,"t":true,"list":[1,2],"\u006e2":7} `)}
	var text string
	var n, list int
	var big, frac, yes bool
	var named int64
	s.Members(func(name []byte) {
		switch string(name) {
		case "s":
			text = s.String()
		case "n":
			v, _ := s.Int(50)
			n = int(v)
		case "big":
			_, big = s.Int(50)
		case "f":
			_, frac = s.Int(50)
		case "t":
			yes = s.Bool()
		case "list":
			s.Elements(func(int) { list++; s.Value() })
		case "n2":
			named, _ = s.Int(50)
		}
	})
	if s.End(); s.Err != nil || text != "a\n" || n != 12 || big || frac || !yes || list != 2 || named != 7 {
		t.Errorf("%q %d %v %v %v %d %d: %v", text, n, big, frac, yes, list, named, s.Err)
	}
	raw := []byte(`{"a":1,"b":{"c":[2]}}`)
	if at := MemberOf(raw, "b"); string(at.In(raw)) != `{"c":[2]}` {
		t.Errorf("%v", at)
	}
	for _, none := range []string{`{"a":1}`, `[]`, `{"b":`} {
		if at := MemberOf([]byte(none), "b"); !at.IsZero() {
			t.Errorf("%s: %v", none, at)
		}
	}
}

// What is accepted, encoding/json accepts; a string reads as it reads there, and what is written reads as what was meant.
func FuzzScanner(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		if Check([]byte(in)) == nil {
			if !json.Valid([]byte(in)) {
				t.Fatalf("accepted %q", in)
			}
			var want string
			if s := (Scanner{B: []byte(in)}); s.Space() == '"' && json.Unmarshal([]byte(in), &want) == nil && s.String() != want {
				t.Fatalf("%q does not read as %q", in, want)
			}
		}
		var back string
		if err := json.Unmarshal(AppendString(nil, in), &back); err != nil || back != strings.ToValidUTF8(in, "\uFFFD") && back != string([]rune(in)) {
			t.Fatalf("%q was written as %s", in, AppendString(nil, in))
		}
	})
}

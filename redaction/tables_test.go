package redaction

import (
	"fmt"
	"strings"
	"testing"
)

// The name of a column says what the values below it are, however far below.
func TestColumnsNameTheirValues(t *testing.T) {
	const ssn = "512345678"
	many := strings.Repeat("7,no one,12\n", 500)
	for _, c := range []struct {
		name, text string
		want       int // of the entity US_SSN
	}{
		{"CSV", "id,name,ssn,x\n1,Ann," + ssn + ",2\n2,Bob," + ssn + ",3\n", 2},
		{"far below", "id,name,ssn\n" + many + "1,Ann," + ssn, 1},
		{"quoted cells", "id,\"name, first\",\"ssn\"\n1,\"Lee, Ann\",\"" + ssn + "\"\n", 1},
		{"TSV", "name\tSocial Security\nAnn\t" + ssn + "\n", 1},
		{"semicolons", "Name;SSN;x\nAnn;" + ssn + ";1\n", 1},
		{"Markdown", "Here:\n\n| name | SSN |\n|---|---|\n| Ann, who has asked about everything there is to know of us here | " + ssn + " |\n", 1},
		{"in prose before and after", "We have, as you know, a list:\nid,note,ssn\n1,none," + ssn + "\nThat is all, thanks.", 1},
		{"Windows line ends", "id,ssn\r\n1," + ssn + "\r\n", 1},
		{"another column", "id,ssn,count\n1,," + ssn + "\n", 0},
		{"the first of two tables", "a,ssn,b,c\n1,2,3,4\n\nid,count\n1," + ssn + "\n", 0},
		{"no table", "My ssn, which is secret\n" + strings.Repeat("and so on ", 20) + ssn + "\n", 0},
		{"no names", "512,4444,9\n1,2," + ssn + "\n", 0},
		{"a line in between", "id,ssn\nnothing here\n1," + ssn + "\n", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := 0
			for _, x := range testEngine(t).Scan(mustProfile(t, "balanced"), c.text) {
				if x.Entity == "US_SSN" && c.text[x.Start:x.End] == ssn {
					got++
				}
			}
			if got != c.want {
				t.Errorf("%d found in %q, want %d", got, c.text, c.want)
			}
		})
	}
}

// Whatever order the scan asks in, a value's column is the one it stands in.
func TestColumnsAreCountedOnce(t *testing.T) {
	var b strings.Builder
	b.WriteString("a;ssn;passport;c\n")
	for i := range 50 {
		fmt.Fprintf(&b, "%d;%d;%d;%d\n", i, 100000+i, 200000+i, 300000+i)
	}
	s := b.String()
	var sc scanner
	for i := range s {
		if s[i] != ';' || i < 20 {
			continue
		}
		ssn, passport := s[i+1] == '1', s[i+1] == '2'
		if set := sc.header(s, i+1); set.has(usSSN) != ssn || set.has(usPassport) != passport {
			t.Fatalf("at %d, before %.8q: %v", i, s[i+1:], set)
		}
		if set := sc.header(s, i+1); set.has(usSSN) != ssn {
			t.Fatalf("again at %d: %v", i, set)
		}
		if set := sc.header(s, i+3); !set.empty() {
			t.Fatalf("within the value at %d: %v", i, set)
		}
	}
}

package redaction

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Forms that are published as examples, and what is one character away from them.
func TestPublishedForms(t *testing.T) {
	e := testEngine(t)
	for _, c := range []struct {
		name   string
		ent    entity
		yes    []string
		no     []string
		within string // what the value is put into, with %% for it; "" is the value alone
	}{
		{"Bitcoin and others", cryptoWallet, []string{"1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLy", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq",
			"BC1QAR0SRRR7XFKVY5L643LYDNW9RE59GTZZWF5MDQ", "bc1p5d7rjq7g6rdk2yhzks9smlaqtedr4dekq08ge8ztwac72sfr9rusxg3297", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x52908400098527886E0F7030069857D2E4169EE7"},
			[]string{"1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN3", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdp", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeD", "8f953371d3e85eddb89b05ed6b9e680791055315"}, ""},
		{"Singaporean entities", sgUEN, []string{"53125226D", "201434292D", "R16RF0037F"}, []string{"53125226E", "201434292E", "R16RF0037G", "A16RF0037F"}, ""},
		{"Singaporean people", sgNRIC, []string{"S2740116C"}, []string{"A2740116C", "S27401160"}, ""},
		{"Chinese residents", cnResidentID, []string{"11010519491231002X"}, []string{"110105194912310021", "11010519491331002X"}, ""},
		{"Mexican people", mxCURP, []string{"HEGG560427MVZRRL04"}, []string{"HEGG560427MVZRRL05", "HEGG561327MVZRRL04"}, ""},
		{"Chilean people", clRUT, []string{"12.345.678-5", "12345678-5", "7.654.321-6"}, []string{"12.345.678-4", "12.345.678-K"}, ""},
		{"Argentine people", arCUIT, []string{"20-12345678-6"}, []string{"20-12345678-5", "21-12345678-6"}, ""},
		{"Brazilian companies", brCNPJ, []string{"11.222.333/0001-81"}, []string{"11.222.333/0001-82"}, ""},
		{"Italian people", itFiscalCode, []string{"RSSMRA85T10A562S"}, []string{"RSSMRA85T10A562T"}, ""},
		{"Norwegian people", noFNR, []string{"010190 12480", "01019012480"}, []string{"010190 12481"}, ""},
		{"Belgian people", beNRN, []string{"85.07.30-033.28", "85073003328"}, []string{"85.07.30-033.29"}, ""},
		{"Vehicles", vin, []string{"1M8GDM9AXKP042788"}, []string{"1M8GDM9A1KP042788", "1M8GDM9AXKPO42788"}, ""},
		{"German pensions", deSocialSecurity, []string{"65070803A019", "65 070803 A 019"}, []string{"65070803A018", "65079903A019"}, ""},
		{"Dates", dateTime, []string{"2024-06-05T09:15:30.500-07:00", "2024-03-15T14:30Z", "5-May-2021", "21.5.2021", "12/31/1999", "May 1st, 1977", "3 March 2020", "May-2021", "1999/12/31"},
			[]string{"2024-13-05", "31/31/2020", "1.2.3", "12:30", "99/99/99", "5/215", "May day"}, ""},
		{"Addresses", ipAddress, []string{"192.168.1.0/24", "2001:db8::8a2e:370", "::ffff:10.0.0.1", "fe80::1%eth0", "8.8.8.8"}, []string{"256.1.1.1", "1.2.3", "2001::db8::1", "12:30:45", "1.2.3.4.5", "std::cout", "v1.2.3.4"}, ""},
		{"Hardware", macAddress, []string{"0a:23:f5:67:89:ac", "AA-BB-CC-DD-EE-FF", "0012.3456.789a"}, []string{"00:1A:2B:3C:4D", "00:00:00:00:00:00", "0a:23:f5:67:89:ac:01", "0a:23-f5:67:89:ac"}, ""},
		{"Places on the web", urlAddress, []string{"https://www.example.com/a?b=c", "example.co.il", "http://example.webcam"}, []string{"www.example", "file.go", "fmt.Println", "1.2.3", "a.b"}, ""},
		{"People", personName, []string{"Ann", "Ann Lee-O'Hara", "Ärne"}, nil, "my name is %%, and"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Only(catalogue[c.ent].name)
			if err != nil {
				t.Fatal(err)
			}
			in := func(v string) string {
				if c.within == "" {
					return v
				}
				return c.within[:len(c.within)-len(", and")-2] + v + ", and"
			}
			for _, v := range c.yes {
				text := in(v)
				var got []string
				for _, s := range e.Scan(p, text) {
					got = append(got, text[s.Start:s.End])
				}
				if diff := cmp.Diff([]string{v}, got); diff != "" {
					t.Errorf("%q (-want +got):\n%s", text, diff)
				}
			}
			for _, v := range c.no {
				if got := e.Scan(p, v); len(got) != 0 {
					t.Errorf("%q: %v, want nothing", v, got)
				}
			}
		})
	}
}

// Words about a value count on its own line, before and behind it, in any language, and nowhere else.
func TestContext(t *testing.T) {
	e, p := testEngine(t), mustProfile(t, "balanced")
	for _, c := range []struct {
		name, key, text string
		want            bool
	}{
		{"no word", "", "512345678", false}, {"before", "", "my SSN is 512345678", true}, {"behind", "", "512345678 (SSN)", true}, {"two words", "", "social security number 512345678", true},
		{"two words apart", "", "social, then security 512345678", false}, {"a part of a word", "", "mission 512345678", false}, {"camel case", "", "userSsn: 512345678", true}, {"snake case", "", "user_ssn=512345678", true},
		{"another line", "", "SSN\n\ntotal 512345678", false}, {"label on the line before", "", "SSN:\n512345678", true}, {"too far", "", "SSN of the person who wrote to us a long time ago about all those things: 512345678", false},
		{"closer to something else", "", "SSN, order 512345678", false}, {"the key that owns it", "ssn", "512345678", true}, {"another key", "total", "512345678", false},
		{"our own token", "", "SSN_BCDFGHJKLM 512345678", false}, {"our own label", "", "[SSN] 512345678", false}, {"a list", "", "SSNs: 512345678, 512345679", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			sc := scanner{key: c.key}
			sc.scan(c.text, p.requestOn)
			got := false
			for _, s := range sc.spans {
				got = got || s.ent == usSSN
			}
			if got != c.want {
				t.Errorf("%q under %q: %v, want %v", c.text, c.key, sc.spans, c.want)
			}
		})
	}
	for _, text := range []string{"Pesel: 44051401458", "身份证110101199003070038", "여권번호는 M789C1234입니다", "Numéro de téléphone : 06 12 34 56 78", "เลขบัตรประชาชน 2345678901234"} {
		if got := e.Scan(mustProfile(t, "strict"), text); len(got) == 0 {
			t.Errorf("%q: nothing found", text)
		}
	}
}

// Hiding a value must not make a value of what stands beside it.
func TestNeighboursOfHiddenValues(t *testing.T) {
	key := "-----BEGIN PRIVATE" + " KEY-----" + strings.Repeat("0", 24)
	for _, text := range []string{"+55100000x0A 0000000", "0@0.AA" + key, "SSN 457-55-5462 512345678 512345679", "a@b.457-55-5462", "phone +14155552671 5551234 and " + strings.Repeat("x ", 30) + "5551235"} {
		s := testSession(t)
		once := s.MaskText(text)
		if again := s.MaskText(once); again != once {
			t.Errorf("%q masks to %q, then to %q", text, once, again)
		}
	}
}

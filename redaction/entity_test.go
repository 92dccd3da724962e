package redaction

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// maker makes values of one entity with an arithmetic of its own: none of the validators' code is used.
type maker func(r *rand.Rand) string

func digitsOf(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('0' + r.IntN(10))
	}
	return string(b)
}

func upperOf(r *rand.Rand, n int, from string) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = from[r.IntN(len(from))]
	}
	return string(b)
}

const latin = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// searched appends what of the candidates makes ok true, or starts anew with another prefix.
func searched(r *rand.Rand, prefix func() string, candidates string, ok func(string) bool) string {
	for {
		p := prefix()
		for _, c := range candidates {
			if v := p + string(c); ok(v) {
				return v
			}
		}
	}
}

// luhnSlowly is the sum written as in the standard's text: from the right, every second digit doubled, cross sums.
func luhnSlowly(s string) bool {
	sum := 0
	for i := range len(s) {
		v := int(s[len(s)-1-i] - '0')
		if i%2 == 1 {
			v *= 2
			v = v/10 + v%10
		}
		sum += v
	}
	return sum%10 == 0
}

// dot is the sum of digits times weights.
func dot(s string, weights ...int) (sum int) {
	for i, w := range weights {
		sum += w * int(s[i]-'0')
	}
	return sum
}

func day(r *rand.Rand) (y, m, d int) { return 30 + r.IntN(69), 1 + r.IntN(12), 1 + r.IntN(28) }

func dmy(r *rand.Rand) string { y, m, d := day(r); return fmt.Sprintf("%02d%02d%02d", d, m, y) }
func ymd(r *rand.Rand) string { y, m, d := day(r); return fmt.Sprintf("%02d%02d%02d", y, m, d) }

func mod1110Slowly(s string) bool {
	p := 10
	for _, c := range s[:len(s)-1] {
		q := (int(c-'0') + p) % 10
		if q == 0 {
			q = 10
		}
		p = 2 * q % 11
	}
	c := 11 - p
	if c == 10 {
		c = 0
	}
	return c == int(s[len(s)-1]-'0')
}

// verhoeffTable is the multiplication of the dihedral group written out.
var verhoeffTable = [10]string{"0123456789", "1234067895", "2340178956", "3401289567", "4012395678", "5987604321", "6598710432", "7659821043", "8765932104", "9876543210"}

func verhoeffSlowly(s string) bool {
	perm := [8]string{"0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258"}
	c := byte('0')
	for i := range len(s) {
		c = verhoeffTable[c-'0'][perm[i%8][s[len(s)-1-i]-'0']-'0']
	}
	return c == '0'
}

// makeable are the entities whose values can be made, how, and whether a bare one needs a word about it in the balanced profile.
var makeable = []struct {
	ent  entity
	word string // a word about it; "" where the form is enough
	make maker
}{
	{usSSN, "", func(r *rand.Rand) string {
		return fmt.Sprintf("%03d-%02d-%04d", 100+r.IntN(500), 1+r.IntN(99), 1+r.IntN(9999))
	}},
	{usSSN, "SSN", func(r *rand.Rand) string {
		return fmt.Sprintf("%03d%02d%04d", 101+r.IntN(500), 1+r.IntN(99), 1+r.IntN(9998))
	}},
	{usITIN, "", func(r *rand.Rand) string {
		return fmt.Sprintf("9%02d-%02d-%04d", r.IntN(100), 70+r.IntN(19), r.IntN(10000))
	}},
	{abaRouting, "routing number", func(r *rand.Rand) string {
		return searched(r, func() string { return "02" + digitsOf(r, 6) }, "0123456789", func(s string) bool { return dot(s, 3, 7, 1, 3, 7, 1, 3, 7, 1)%10 == 0 })
	}},
	{usNPI, "NPI", func(r *rand.Rand) string {
		return searched(r, func() string { return "1" + digitsOf(r, 8) }, "0123456789", func(s string) bool { return luhnSlowly("80840" + s) })
	}},
	{usMBI, "", func(r *rand.Rand) string {
		l := func() string { return upperOf(r, 1, "ACDEFGHJKMNPQRTUVWXY") }
		return "1" + l() + "4" + digitsOf(r, 1) + "-" + l() + l() + digitsOf(r, 1) + "-" + l() + l() + digitsOf(r, 2)
	}},
	{medicalLicense, "DEA", func(r *rand.Rand) string {
		return searched(r, func() string { return "B" + upperOf(r, 1, latin) + digitsOf(r, 6) }, "0123456789", func(s string) bool {
			return (dot(s[2:], 1, 0, 1, 0, 1)+2*dot(s[2:], 0, 1, 0, 1, 0, 1))%10 == int(s[8]-'0')
		})
	}},
	{usPassport, "passport", func(r *rand.Rand) string { return "C" + digitsOf(r, 8) }},
	{usBankNumber, "bank account", func(r *rand.Rand) string { return "9" + digitsOf(r, 11) }},
	{usDriverLicense, "driver license", func(r *rand.Rand) string { return "D" + digitsOf(r, 7) }},
	{ukNINO, "", func(r *rand.Rand) string {
		d := digitsOf(r, 6)
		return "AB " + d[:2] + " " + d[2:4] + " " + d[4:] + " " + upperOf(r, 1, "ABCD")
	}},
	{ukNHS, "", func(r *rand.Rand) string {
		s := searched(r, func() string { return "4" + digitsOf(r, 8) }, "0123456789", func(s string) bool {
			return (dot(s, 10, 9, 8, 7, 6, 5, 4, 3, 2)+int(s[9]-'0'))%11 == 0
		})
		return s[:3] + " " + s[3:6] + " " + s[6:]
	}},
	{ukDrivingLicence, "", func(r *rand.Rand) string {
		return upperOf(r, 5, latin) + digitsOf(r, 1) + fmt.Sprintf("%02d%02d", 1+r.IntN(12), 1+r.IntN(28)) + digitsOf(r, 1) + "S99" + upperOf(r, 2, latin)
	}},
	{caSIN, "", func(r *rand.Rand) string {
		s := searched(r, func() string { return "4" + digitsOf(r, 7) }, "0123456789", luhnSlowly)
		return s[:3] + "-" + s[3:6] + "-" + s[6:]
	}},
	{auTFN, "TFN", func(r *rand.Rand) string {
		return searched(r, func() string { return "1" + digitsOf(r, 7) }, "0123456789", func(s string) bool { return dot(s, 1, 4, 3, 7, 5, 8, 6, 9, 10)%11 == 0 })
	}},
	{auABN, "ABN", func(r *rand.Rand) string {
		return searched(r, func() string { return "5" + digitsOf(r, 9) }, "0123456789", func(s string) bool {
			return (dot(s, 10, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19)-10)%89 == 0
		})
	}},
	{auMedicare, "Medicare", func(r *rand.Rand) string {
		s := searched(r, func() string { return "2" + digitsOf(r, 7) }, "0123456789", func(s string) bool { return dot(s, 1, 3, 7, 9, 1, 3, 7, 9)%10 == int(s[8]-'0') })
		return s + "1"
	}},
	{deTaxID, "Steuer-ID", func(r *rand.Rand) string {
		return searched(r, func() string { return "8" + digitsOf(r, 9) }, "0123456789", mod1110Slowly)
	}},
	{deVAT, "", func(r *rand.Rand) string {
		return "DE" + searched(r, func() string { return "1" + digitsOf(r, 7) }, "0123456789", mod1110Slowly)
	}},
	{frNIR, "", func(r *rand.Rand) string {
		s := fmt.Sprintf("1%02d%02d", 50+r.IntN(49), 1+r.IntN(12)) + "75" + digitsOf(r, 6)
		rest := 0
		for _, c := range s {
			rest = (rest*10 + int(c-'0')) % 97
		}
		return fmt.Sprintf("%s%02d", s, 97-rest)
	}},
	{nlBSN, "BSN", func(r *rand.Rand) string {
		return searched(r, func() string { return "1" + digitsOf(r, 7) }, "0123456789", func(s string) bool { return dot(s, 9, 8, 7, 6, 5, 4, 3, 2, -1)%11 == 0 })
	}},
	{chAHV, "", func(r *rand.Rand) string {
		s := searched(r, func() string { return "756" + digitsOf(r, 9) }, "0123456789", func(s string) bool { return dot(s, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1)%10 == 0 })
		return s[:3] + "." + s[3:7] + "." + s[7:11] + "." + s[11:]
	}},
	{esNIF, "", func(r *rand.Rand) string {
		n := 10_000_000 + r.IntN(89_999_999)
		return fmt.Sprintf("%08d%c", n, "TRWAGMYFPDXBNJZSQVHLCKE"[n%23])
	}},
	{esNIE, "", func(r *rand.Rand) string {
		n := r.IntN(9_999_999)
		return fmt.Sprintf("Y%07d%c", n, "TRWAGMYFPDXBNJZSQVHLCKE"[(10_000_000+n)%23])
	}},
	{fiHETU, "", func(r *rand.Rand) string {
		d, n := dmy(r), 2+r.IntN(897)
		var v int
		fmt.Sscan(strings.TrimLeft(fmt.Sprintf("%s%03d", d, n), "0"), &v)
		return fmt.Sprintf("%s-%03d%c", d, n, "0123456789ABCDEFHJKLMNPRSTUVWXY"[v%31])
	}},
	{sePersonnummer, "", func(r *rand.Rand) string {
		s := searched(r, func() string { return ymd(r) + digitsOf(r, 3) }, "0123456789", luhnSlowly)
		return s[:6] + "-" + s[6:]
	}},
	{plPESEL, "PESEL", func(r *rand.Rand) string {
		return searched(r, func() string { return ymd(r) + digitsOf(r, 4) }, "0123456789", func(s string) bool { return dot(s, 1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)%10 == 0 })
	}},
	{zaID, "South African ID", func(r *rand.Rand) string {
		return searched(r, func() string { return ymd(r) + digitsOf(r, 4) + "08" }, "0123456789", luhnSlowly)
	}},
	{inAadhaar, "", func(r *rand.Rand) string {
		s := searched(r, func() string { return "4" + digitsOf(r, 10) }, "0123456789", verhoeffSlowly)
		return s[:4] + " " + s[4:8] + " " + s[8:]
	}},
	{inPAN, "", func(r *rand.Rand) string {
		return upperOf(r, 3, latin) + "P" + upperOf(r, 1, latin) + digitsOf(r, 4) + upperOf(r, 1, latin)
	}},
	{brCPF, "", func(r *rand.Rand) string {
		s := digitsOf(r, 9)
		for _, w := range [][]int{{10, 9, 8, 7, 6, 5, 4, 3, 2}, {11, 10, 9, 8, 7, 6, 5, 4, 3, 2}} {
			c := dot(s, w...) * 10 % 11 % 10
			s += string(rune('0' + c))
		}
		return s[:3] + "." + s[3:6] + "." + s[6:9] + "-" + s[9:]
	}},
	{krRRN, "", func(r *rand.Rand) string { return ymd(r) + "-" + upperOf(r, 1, "1234") + "1" + digitsOf(r, 5) }},
	{ngNIN, "NIN", func(r *rand.Rand) string {
		return searched(r, func() string { return "5" + digitsOf(r, 9) }, "0123456789", verhoeffSlowly)
	}},
	{ipAddress, "", func(r *rand.Rand) string {
		return fmt.Sprintf("8.%d.%d.%d", r.IntN(256), r.IntN(256), r.IntN(256))
	}},
	{macAddress, "", func(r *rand.Rand) string { return fmt.Sprintf("0a:%02x:%02x:4f:12:9c", r.IntN(256), r.IntN(256)) }},
	{imei, "IMEI", func(r *rand.Rand) string {
		return searched(r, func() string { return "35" + digitsOf(r, 12) }, "0123456789", luhnSlowly)
	}},
	{dateOfBirth, "born on", func(r *rand.Rand) string { y, m, d := day(r); return fmt.Sprintf("%02d.%02d.19%02d", d, m, y) }},
	{phoneNumber, "call", func(r *rand.Rand) string { return "030 " + digitsOf(r, 4) + " " + digitsOf(r, 3) }},
	{ukPostcode, "postcode", func(r *rand.Rand) string { return "SW1A " + digitsOf(r, 1) + "AA" }},
	{deVehicle, "Kennzeichen", func(r *rand.Rand) string { return "B-XY " + "4" + digitsOf(r, 2) }},
}

// only is a profile of one entity in which nothing counts without the words it needs.
func only(tb testing.TB, e entity) *Profile {
	tb.Helper()
	p, err := Only(catalogue[e].name)
	if err != nil {
		tb.Fatal(err)
	}
	p.bare = entitySet{}
	return p
}

func TestEntitiesOfEveryFamily(t *testing.T) {
	e := testEngine(t)
	for _, c := range makeable {
		t.Run(catalogue[c.ent].name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(c.ent), 3))
			p := only(t, c.ent)
			for range 200 {
				v := c.make(r)
				for _, around := range [...][2]string{{"", ""}, {"It is ", ", as agreed."}, {"(", ")"}, {"\n\"", "\"\n"}} {
					text := around[0] + v + around[1]
					got := e.Scan(p, text)
					if c.word == "" {
						if len(got) != 1 || text[got[0].Start:got[0].End] != v {
							t.Fatalf("%q: %v, want %s", text, got, v)
						}
						continue
					}
					if len(got) != 0 {
						t.Fatalf("%q: %v, want nothing: no word says what it is", text, got)
					}
					text = c.word + ": " + v + around[1]
					if got = e.Scan(p, text); len(got) != 1 || text[got[0].Start:got[0].End] != v {
						t.Fatalf("%q: %v, want %s", text, got, v)
					}
					if got = e.Scan(p, "x"+v+"y"); len(got) != 0 {
						t.Fatalf("x%sy: %v, want nothing: it is inside a word", v, got)
					}
				}
			}
		})
	}
}

// A wrong digit anywhere must be noticed by those whose check is over all digits.
func TestChecksNoticeAWrongDigit(t *testing.T) {
	e := testEngine(t)
	for _, ent := range []entity{abaRouting, usNPI, deTaxID, deVAT, frNIR, chAHV, esNIF, caSIN, inAadhaar, plPESEL, imei} {
		t.Run(catalogue[ent].name, func(t *testing.T) {
			p, err := Only(catalogue[ent].name)
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(7, 7))
			for _, c := range makeable {
				if c.ent != ent {
					continue
				}
				for range 100 {
					v := []byte(c.make(r))
					k := r.IntN(len(v))
					for !isDigit(v[k]) {
						k = r.IntN(len(v))
					}
					good := string(v)
					v[k] = '0' + (v[k]-'0'+1+byte(r.IntN(9)))%10
					if got := e.Scan(p, string(v)); len(got) != 0 {
						t.Errorf("%s, made from %s: %v, want nothing", v, good, got)
					}
				}
			}
		})
	}
}

// A slow and obvious reference decides for every nine, ten and eleven digits which families take them.
func TestNumbersAgreeWithAReference(t *testing.T) {
	reference := map[entity]func(s string) bool{
		caSIN: func(s string) bool {
			return len(s) == 9 && luhnSlowly(s) && s[0] != '0' && s[0] != '8' && strings.Trim(s, s[:1]) != ""
		},
		auTFN: func(s string) bool {
			return len(s) == 9 && dot(s, 1, 4, 3, 7, 5, 8, 6, 9, 10)%11 == 0 && strings.Trim(s, s[:1]) != ""
		},
		nlBSN: func(s string) bool {
			return len(s) == 9 && dot(s, 9, 8, 7, 6, 5, 4, 3, 2, -1)%11 == 0 && s[:2] != "00" && strings.Trim(s, s[:1]) != ""
		},
		ukNHS: func(s string) bool {
			return len(s) == 10 && dot(s, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1)%11 == 0 && strings.Trim(s, s[:1]) != ""
		},
		deTaxID: func(s string) bool { return len(s) == 11 && s[0] != '0' && mod1110Slowly(s) },
		ngNIN:   func(s string) bool { return len(s) == 11 && verhoeffSlowly(s) },
		itVAT:   func(s string) bool { return len(s) == 11 && luhnSlowly(s) && strings.Trim(s, s[:1]) != "" },
		usNPI: func(s string) bool {
			return len(s) == 10 && (s[0] == '1' || s[0] == '2') && luhnSlowly("80840"+s) && strings.Trim(s[:9], s[:1]) != ""
		},
		creditCard: func(s string) bool {
			return len(s) >= 12 && len(s) <= 19 && luhnSlowly(s) && strings.Trim(s, s[:1]) != ""
		},
	}
	e := testEngine(t)
	r := rand.New(rand.NewPCG(4, 2))
	for ent, want := range reference {
		t.Run(catalogue[ent].name, func(t *testing.T) {
			p, err := Only(catalogue[ent].name)
			if err != nil {
				t.Fatal(err)
			}
			hits := 0
			for range 20_000 {
				s := digitsOf(r, 8+r.IntN(10))
				got := e.Scan(p, s)
				if (len(got) == 1) != want(s) {
					t.Fatalf("%s: %v, the reference says %v", s, got, want(s))
				}
				hits += len(got)
			}
			if hits < 20 {
				t.Errorf("only %d of 20000 were hits", hits)
			}
		})
	}
}

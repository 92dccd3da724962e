package billing

import (
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

func TestParseUSD(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     Pico
		out      string
	}{
		{"zero", "0", 0, "0"},
		{"one pico", "0.000000000001", 1, "0.000000000001"},
		{"a turn", "0.0105", 10_500_000_000, "0.0105"},
		{"trailing zeros", "12.500", 12*USD + USD/2, "12.5"},
		{"negative", "-3", -3 * USD, "-3"},
		{"below a dollar, negative", "-0.25", -USD / 4, "-0.25"},
		{"largest", "9223372.036854775807", math.MaxInt64, "9223372.036854775807"},
		{"smallest", "-9223372.036854775808", math.MinInt64, "-9223372.036854775808"},
		{"leading zeros", "007", 7 * USD, "7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseUSD(c.in)
			if err != nil || got != c.want {
				t.Fatalf("ParseUSD(%q) = %d, %v; want %d", c.in, got, err, c.want)
			}
			if got.USD() != c.out {
				t.Errorf("USD() = %q, want %q", got.USD(), c.out)
			}
		})
	}
	for _, bad := range []string{"", "-", ".", "1.", ".5", "1e3", "+1", "1,5", " 1", "1 ", "0x10", "1.2.3", "--1", "0.0000000000001", "9223372.036854775808", "-9223372.036854775809", "99999999999999999999", "NaN", strings.Repeat("9", 500)} {
		t.Run("refuses "+bad, func(t *testing.T) {
			got, err := ParseUSD(bad)
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("ParseUSD(%q) = %d, %v; want an Invalid fault", bad, got, err)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("the error repeats %d bytes of input", len(err.Error()))
			}
		})
	}
}

func FuzzPicoRoundTrip(f *testing.F) {
	for _, v := range []int64{0, 1, -1, math.MaxInt64, math.MinInt64, 10_500_000_000} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v int64) {
		p := Pico(v)
		back, err := ParseUSD(p.USD())
		if err != nil || back != p {
			t.Fatalf("%d -> %q -> %d, %v", v, p.USD(), back, err)
		}
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var q Pico
		if err := json.Unmarshal(b, &q); err != nil || q != p {
			t.Fatalf("JSON %s -> %d, %v", b, q, err)
		}
	})
}

func TestPicoJSON(t *testing.T) {
	b, err := json.Marshal(struct {
		Cost *Pico `json:"cost"`
		None *Pico `json:"none"`
	}{Cost: ptr(Pico(10_500_000_000))})
	if err != nil || string(b) != `{"cost":"0.0105","none":null}` {
		t.Errorf("got %s, %v", b, err)
	}
	var p Pico
	for _, bad := range []string{`1`, `0.5`, `""`, `"x"`, `{}`} {
		if err := json.Unmarshal([]byte(bad), &p); err == nil {
			t.Errorf("%s was accepted as %s", bad, p)
		}
	}
}

func TestPicoAdd(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b Pico
		ok   bool
	}{
		{"plain", 1, 2, true}, {"zero", math.MaxInt64, 0, true}, {"correction", 5, -7, true},
		{"over", math.MaxInt64, 1, false}, {"under", math.MinInt64, -1, false}, {"ends", math.MaxInt64, math.MinInt64, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.a.Add(c.b)
			if (err == nil) != c.ok || c.ok && got != c.a+c.b {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}

// Every cost must be what exact rational arithmetic says, or refused because it is above the cap.
func TestCostAgainstBig(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	n := func() int64 { return rnd.Int64() >> rnd.IntN(63) }
	var refused int
	for range 20_000 {
		var r Rates
		for i := range r {
			r[i] = Pico(n())
		}
		r[BucketReasoning], r[BucketRequest] = r[BucketOutput], 0
		u := chat.Usage{Input: n(), CacheRead: n(), CacheWrite5m: n(), CacheWrite1h: n(), Output: n(), Reasoning: n(), Searches: n()}
		want := new(big.Int)
		for _, x := range [][2]int64{{u.Input, int64(r[BucketInput])}, {u.CacheRead, int64(r[BucketCacheRead])}, {u.CacheWrite5m, int64(r[BucketCacheWrite5m])}, {u.CacheWrite1h, int64(r[BucketCacheWrite1h])}, {u.Output, int64(r[BucketOutput])}, {u.Searches, int64(r[BucketSearch])}} {
			want.Add(want, new(big.Int).Mul(big.NewInt(x[0]), big.NewInt(x[1])))
		}
		got, err := r.Cost(u)
		if over := want.Cmp(big.NewInt(int64(MaxAttempt))) > 0; over {
			refused++
			if err == nil {
				t.Fatalf("%v at %v = %s was booked as %d", u, r, want, got)
			}
			continue
		}
		if err != nil || want.Cmp(big.NewInt(int64(got))) != 0 {
			t.Fatalf("%v at %v = %d, %v; want %s", u, r, got, err, want)
		}
	}
	if refused == 0 || refused == 20_000 {
		t.Fatalf("%d of 20000 cases were above the cap: the test shows nothing", refused)
	}
}

func TestCostRefusesNegativeCounts(t *testing.T) {
	r := Rates{BucketInput: 1, BucketCacheRead: 1, BucketCacheWrite5m: 1, BucketCacheWrite1h: 1, BucketOutput: 1, BucketSearch: 1}
	for _, u := range []chat.Usage{{Input: -1}, {CacheRead: -1}, {CacheWrite5m: -1}, {CacheWrite1h: -1}, {Output: -1}, {Reasoning: -1}, {Searches: -1}, {Input: math.MinInt64}} {
		if c, err := r.Cost(u); err == nil {
			t.Errorf("%+v cost %s", u, c)
		}
	}
}

func ptr[T any](v T) *T { return &v }

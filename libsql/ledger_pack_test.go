package libsql

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestUnpack(t *testing.T) {
	of := func(change map[int]string) string {
		parts := make([]string, packedNumbers)
		for i := range parts {
			parts[i] = fmt.Sprint(i)
			if s, ok := change[i]; ok {
				parts[i] = s
			}
		}
		return strings.Join(parts, " ") + " texts"
	}
	for _, c := range []struct {
		name string
		text string
		ok   bool
		at   int
		want int64
		null bool
	}{
		{"numbers", of(nil), true, 33, 33, false},
		{"null", of(map[int]string{30: "x"}), true, 30, 0, true},
		{"negative", of(map[int]string{5: "-7"}), true, 5, -7, false},
		{"largest", of(map[int]string{5: "9223372036854775807"}), true, 5, math.MaxInt64, false},
		{"smallest", of(map[int]string{5: "-9223372036854775808"}), true, 5, math.MinInt64, false},
		{"too large", of(map[int]string{5: "9223372036854775808"}), false, 0, 0, false},
		{"far too large", of(map[int]string{5: "99223372036854775807"}), false, 0, 0, false},
		{"a fraction", of(map[int]string{5: "1.5"}), false, 0, 0, false},
		{"nothing between", of(map[int]string{5: ""}), false, 0, 0, false},
		{"a sign alone", of(map[int]string{5: "-"}), false, 0, 0, false},
		{"one too few", strings.Replace(of(nil), " 33 ", " ", 1), false, 0, 0, false},
		{"no space after the last", strings.TrimSuffix(of(nil), " texts"), false, 0, 0, false},
		{"nothing", "", false, 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n [packedNumbers]int64
			var null [packedNumbers]bool
			rest, ok := unpack(c.text, &n, &null)
			if ok != c.ok {
				t.Fatalf("ok is %t", ok)
			}
			if ok && (n[c.at] != c.want || null[c.at] != c.null || rest != "texts") {
				t.Errorf("%d, null %t, then %q", n[c.at], null[c.at], rest)
			}
		})
	}
}

package redaction

import "testing"

// Numbers that regulators keep for films and examples are nobody's: without a country code they need a word about them.
func TestInventedNumbers(t *testing.T) {
	for _, c := range []struct {
		name, number string
		bare         bool // found without a word about it
	}{
		{"North America", "(415) 555-0132", false}, {"in one word with the bracket", "(415)555-0132", false}, {"with dashes", "415-555-0132", false}, {"with a leading one", "1-415-555-0199", false},
		{"outside the range", "(415) 555-0232", true}, {"another exchange", "(415) 556-0132", true}, {"with its country code", "+1 415 555 0132", true},
		{"behind another country's code", "+91 4155550132", false}, {"another country", "+91 98765 43212", true},
		{"United Kingdom", "07700 900123", false}, {"London", "020 7946 0123", false}, {"Australia", "0491 570 156", false}, {"counted up", "090-1234-5678", false}, {"nearly counted up", "090-1234-5679", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Only("PHONE_NUMBER")
			if err != nil {
				t.Fatal(err)
			}
			e := testEngine(t)
			if got := e.Scan(p, c.number); (len(got) > 0) != c.bare {
				t.Errorf("%q alone: %v, want found %t", c.number, got, c.bare)
			}
			const before = "My phone is "
			got := e.Scan(p, before+c.number+", thanks.")
			if len(got) != 1 || got[0].Start != len(before) || got[0].End != len(before)+len(c.number) {
				t.Errorf("%q with a word about it: %v", c.number, got)
			}
		})
	}
}

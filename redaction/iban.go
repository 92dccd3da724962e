package redaction

import "strings"

// ibanLength holds the length of an IBAN per country, from the ISO 13616 registry.
var ibanLength = map[string]int{
	"AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29, "BY": 28, "CH": 21,
	"CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FK": 18, "FO": 18,
	"FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23,
	"IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27,
	"MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28,
	"PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27,
	"SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}

// ibanDigits are the countries whose IBANs hold digits only behind the country code, from the same registry.
var ibanDigits = func() map[string]bool {
	m := map[string]bool{}
	for c := range strings.FieldsSeq("AE AT BA BE BI CR CZ DE DJ DK EE EG ES FI FO GL HR HU IL IS LT LY ME MN MR NO PL PT RS SD SE SI SK SO ST TL TN VA XK") {
		m[c] = true
	}
	return m
}()

// findIBAN accepts an IBAN in electronic form or in groups of four, in capitals or in small letters: the country's length, its digits and the
// mod-97 check of ISO 7064.
func findIBAN(s string, from, to int) (int, int) {
	start := from - 2
	if start < 0 || to-from < 2 || !isLetter(s[start]) || !isLetter(s[start+1]) || isAlnum(before(s, start)) {
		return -1, 0
	}
	country := [2]byte{s[start] &^ 0x20, s[start+1] &^ 0x20}
	want := ibanLength[string(country[:])]
	if want == 0 {
		return -1, 0
	}
	digits := ibanDigits[string(country[:])]
	// The sum runs over the rearranged code: the first four characters are kept back and added at the end.
	sum, n, i, sep := 0, 0, start, byte(0)
	upper, lower := false, false
	var first [4]byte
	for n < want {
		b := at(s, i)
		if n > 0 && n%4 == 0 && (b == ' ' || b == '-') && (n == 4 || b == sep) {
			sep = b
			i++
			b = at(s, i)
		} else if n > 4 && n%4 == 0 && sep != 0 {
			return -1, 0
		}
		if !isAlnum(b) || n >= 2 && (digits || n < 4) && !isDigit(b) {
			return -1, 0
		}
		upper, lower = upper || b-'A' < 26, lower || b-'a' < 26
		if n < 4 {
			first[n] = b
		} else {
			sum = mod97(sum, b)
		}
		n++
		i++
	}
	for _, b := range first {
		sum = mod97(sum, b)
	}
	if sum != 1 || upper && lower || isAlnum(at(s, i)) {
		return -1, 0
	}
	return start, i
}

func mod97(sum int, b byte) int {
	if isDigit(b) {
		return (sum*10 + int(b-'0')) % 97
	}
	return (sum*100 + int(b|0x20-'a') + 10) % 97
}

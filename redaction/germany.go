package redaction

import "strings"

var germanNumbers = []numberRule{
	{deTaxID, certain, "2 3 3 3", "", deTax},
	{deTaxID, likely, "11", "", deTax},
	{deBSNR, weak, "9", "", nil},
	{deLANR, likely, "9", "", lanr},
	{dePLZ, weak, "5", "", plz},
	{deTaxNumber, likely, "2/3/5|3/3/5|3/4/4|2/3/4", "", nil},
	{deTaxNumber, likely, "13", "", elster},
}

var germanCodes = []codeRule{
	{deHealthInsurance, likely, "A999999999", kvnr},
	{deIDCard, likely, "A99999999", deOldCard},
	{deIDCard, likely, "A*******9", deCard},
	{dePassport, likely, "A*******9", dePass},
	{deLicence, likely, "AA99999999*", nil},
}

var germanPhrases = []phraseRule{
	{deSocialSecurity, certain, "99_999999_A_999", rvnr},
	{deVAT, certain, "AA_999_999_999", deVATNumber},
	{deHandelsregister, certain, "AAA_9ddddd", hrab},
	{deVehicle, likely, "aaA aA 9ddda", kfz},
}

// deTax is a tax identification number: no leading zero, ISO 7064 MOD 11,10.
func deTax(d []byte) bool { return d[0] != '0' && mod1110(d) }

// lanr checks a doctor's number: the seventh digit is the check of the first six.
func lanr(d []byte) bool {
	return !uniform(d[:7]) && (10-weighted(d, 4, 9, 4, 9, 4, 9)%10)%10 == int(d[6]-'0') || string(d[:7]) == "9999999"
}

func plz(d []byte) bool { v := value(d); return v >= 1001 && v <= 99998 }

// elster is a tax number in the federal form, which begins with the state.
func elster(d []byte) bool { return value(d[:2]) >= 1 && d[0] < '4' && value(d[:3]) >= 10 }

// kvnr is a health insurance number: the letter counts as two digits, weights 1 and 2, cross sums.
func kvnr(w []byte) bool {
	l := int(w[0]-'A') + 1
	sum := crossSum(l/10) + crossSum(2*(l%10))
	for i, b := range w[1:9] {
		sum += crossSum(int(b-'0') * (1 + i%2))
	}
	return sum%10 == int(w[9]-'0')
}

// mrzCheck is the check digit of ICAO 9303 over all but the last character.
func mrzCheck(w []byte) bool {
	sum := 0
	for i, b := range w[:len(w)-1] {
		v := int(b - '0')
		if !isDigit(b) {
			v = int(b-'A') + 10
		}
		sum += v * [...]int{7, 3, 1}[i%3]
	}
	return sum%10 == int(w[len(w)-1]-'0')
}

// cardLetters are those the authorities use: no vowels, none that looks like a digit.
const cardLetters = "CFGHJKLMNPRTVWXYZ"

func serial(w []byte) bool {
	for _, b := range w {
		if isLetter(b) && strings.IndexByte(cardLetters, b) < 0 {
			return false
		}
	}
	return true
}

func deOldCard(w []byte) bool { return w[0] == 'T' }
func deCard(w []byte) bool    { return w[0] >= 'L' && serial(w) && mrzCheck(w) }
func dePass(w []byte) bool    { return serial(w) && mrzCheck(w) }

// rvnr is a pension insurance number: area, birthday, first letter of the name, serial number, check digit.
func rvnr(w []byte) bool {
	if len(w) != 12 || value(w[2:4]) < 1 || value(w[2:4]) > 81 || value(w[4:6]) < 1 || value(w[4:6]) > 12 {
		return false
	}
	l := int(w[8]-'A') + 1
	d := [12]int{8: l / 10, 9: l % 10}
	for i := range 8 {
		d[i] = int(w[i] - '0')
	}
	d[10], d[11] = int(w[9]-'0'), int(w[10]-'0')
	sum := 0
	for i, f := range [...]int{2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1} {
		sum += crossSum(d[i] * f)
	}
	return sum%10 == int(w[11]-'0')
}

func deVATNumber(w []byte) bool {
	return len(w) == 11 && w[0] == 'D' && w[1] == 'E' && w[2] != '0' && mod1110(w[2:])
}

func hrab(w []byte) bool { return w[0] == 'H' && w[1] == 'R' && (w[2] == 'A' || w[2] == 'B') }

// kfz takes the letters E and H at the end, for electric and historic cars.
func kfz(w []byte) bool {
	last := w[len(w)-1]
	return isDigit(last) || last == 'E' || last == 'H'
}

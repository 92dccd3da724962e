package redaction

import "strings"

// europeanNumbers are those of France, the Benelux, the Iberian peninsula, Switzerland, Italy and Poland.
var europeanNumbers = []numberRule{
	{frNIR, certain, "1~2~2~2~3~3~2", " -.", nir},
	{frNIR, certain, "15", "", nir},
	{nlBSN, certain, "4~2~3", " .", bsn},
	{nlBSN, likely, "9", "", bsn},
	{beNRN, certain, "2.2.2-3.2", "", nrn},
	{beNRN, likely, "11", "", nrn},
	{ptNIF, likely, "9|3~3~3", " .", ptTax},
	{chAHV, certain, "3.4.4.2", "", ahv},
	{chAHV, certain, "13", "", ahv},
	{esNIF, certain, "8-a", "", dni},
	{esNIF, likely, "7-a", "", dni},
	{itVAT, likely, "11", "", partitaIVA},
	{plPESEL, likely, "11", "", pesel},
}

var europeanCodes = []codeRule{
	{frNIR, certain, "999999A99999999", nir},
	{esNIF, certain, "99999999A", dni}, {esNIF, likely, "9999999A", dni},
	{esPassport, weak, "AAA999999", nil},
	{itFiscalCode, certain, "AAAAAA**A**A***A", codiceFiscale},
	{itVAT, certain, "AA99999999999", func(w []byte) bool { return w[0] == 'I' && w[1] == 'T' && partitaIVA(w[2:]) }},
	{itDriverLicense, weak, "AA9999999A", nil}, {itDriverLicense, weak, "A9*******A", func(w []byte) bool { return w[0] == 'U' && w[1] == '1' }},
	{itIdentityCard, weak, "AA9999999", nil}, {itIdentityCard, weak, "9999999AA", nil},
	{itIdentityCard, weak, "AA99999AA", func(w []byte) bool { return w[0] == 'C' }},
	{itPassport, weak, "AA9999999", nil},
}

var europeanPhrases = []phraseRule{
	{esNIE, certain, "A9999999_A", nie},
}

// nir is a French social security number with its key, modulo 97; the Corsican departments 2A and 2B count as 19 and 18.
func nir(d []byte) bool {
	month := value(d[3:5])
	if d[0] != '1' && d[0] != '2' || month == 0 || month > 12 && month < 20 || month > 42 && month < 50 {
		return false
	}
	var n [13]byte
	copy(n[:], d)
	if isLetter(n[6]) {
		if n[5] != '2' || n[6] != 'A' && n[6] != 'B' {
			return false
		}
		n[5], n[6] = '1', '9'-(n[6]-'A')
	}
	return 97-value(n[:])%97 == value(d[13:15])
}

// bsn is the Dutch eleven-test.
func bsn(d []byte) bool {
	return !uniform(d) && weighted(d, 9, 8, 7, 6, 5, 4, 3, 2, -1)%11 == 0 && value(d) >= 10_000_000
}

// nrn is a Belgian national number, born before or after 2000. The date may be unknown, and the foreigners' numbers add to the month.
func nrn(d []byte) bool {
	m := value(d[2:4])
	if m%20 > 12 || m > 52 || value(d[4:6]) > 31 || value(d[6:9]) == 0 {
		return false
	}
	n, c := value(d[:9]), value(d[9:11])
	return 97-n%97 == c || 97-(2_000_000_000+n)%97 == c
}

func ptTax(d []byte) bool {
	switch d[0] {
	case '0', '4':
		return false
	}
	c := 11 - weighted(d, 9, 8, 7, 6, 5, 4, 3, 2)%11
	return !uniform(d) && c%11%10 == int(d[8]-'0')
}

// ahv is a Swiss social security number: the country's 756 and the check digit of EAN-13.
func ahv(d []byte) bool {
	return d[0] == '7' && d[1] == '5' && d[2] == '6' && (10-weighted(d, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3)%10)%10 == int(d[12]-'0')
}

const dniLetters = "TRWAGMYFPDXBNJZSQVHLCKE"

// dni is seven or eight digits and the letter of their remainder by 23.
func dni(w []byte) bool {
	n := len(w) - 1
	return dniLetters[value(w[:n])%23] == w[n] && value(w[:n]) > 0
}

// nie is the foreigners' form: X, Y or Z stand for 0, 1 and 2.
func nie(w []byte) bool {
	if len(w) != 9 || w[0] < 'X' {
		return false
	}
	return dniLetters[(int(w[0]-'X')*10_000_000+value(w[1:8]))%23] == w[8]
}

// omocode are the letters that stand for digits where two people would share a code.
const omocode = "LMNPQRSTUV"

// odd are the values of digits and letters in the odd places of an Italian fiscal code.
var odd = [...]int{1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23}

func codiceFiscale(w []byte) bool {
	for _, i := range [...]int{6, 7, 9, 10, 12, 13, 14} {
		if isLetter(w[i]) && strings.IndexByte(omocode, w[i]) < 0 {
			return false
		}
	}
	if strings.IndexByte("ABCDEHLMPRST", w[8]) < 0 {
		return false
	}
	sum := 0
	for i, b := range w[:15] {
		v := int(b - '0')
		if isLetter(b) {
			v = int(b - 'A')
		}
		if i%2 == 0 {
			v = odd[v]
		}
		sum += v
	}
	return int(w[15]-'A') == sum%26
}

func partitaIVA(d []byte) bool { return luhn(d) }

// pesel checks a Polish number: the century is in the month.
func pesel(d []byte) bool {
	return dayExists(value(d[:2]), value(d[2:4])%20, value(d[4:6])) && weighted(d, 1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)%10 == 0
}

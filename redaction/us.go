package redaction

var usNumbers = []numberRule{
	{usSSN, certain, "3~2~4", "- .", ssn},
	{usSSN, weak, "9|3-6|5-4", "", ssn},
	{usITIN, certain, "3~2~4", "- ", itin},
	{usITIN, weak, "9|3-6|5-4", "", itin},
	{abaRouting, certain, "4-4-1", "", aba},
	{abaRouting, likely, "9", "", aba},
	{usBankNumber, weak, "8|9|10|11|12|13|14|15|16|17", "", nil},
	{usPassport, weak, "9", "", nil},
	{usDriverLicense, weak, "6|7|8|9|10|12|13|14", "", nil},
	{usNPI, likely, "10|4~3~3", "- ", npi},
}

var usCodes = []codeRule{
	{usPassport, weak, "A99999999", nil},
	{usDriverLicense, weak, "A999999", nil}, {usDriverLicense, weak, "A9999999", nil}, {usDriverLicense, weak, "A99999999", nil},
	{usDriverLicense, weak, "A999999999", nil}, {usDriverLicense, weak, "A999999999999", nil}, {usDriverLicense, weak, "A9999999999999", nil},
	{usDriverLicense, weak, "A99999999999999", nil}, {usDriverLicense, weak, "AA999999", nil}, {usDriverLicense, weak, "AA999999A", nil},
	{usDriverLicense, weak, "99AAA99999", nil}, {usDriverLicense, weak, "999AA9999", nil}, {usDriverLicense, weak, "9999999A", nil}, {usDriverLicense, weak, "99999999A", nil},
	{medicalLicense, likely, "AA9999999", dea}, {medicalLicense, likely, "A99999999", dea},
}

var usPhrases = []phraseRule{
	{usMBI, certain, "9A*9_A*9_AA99", mbi},
}

// ssn follows the Social Security Administration: no area 000, 666 or 900 and above, no group 00, no serial 0000. The number of
// the well-known wallet insert belongs to nobody.
func ssn(d []byte) bool {
	area, group, serial := value(d[:3]), value(d[3:5]), value(d[5:9])
	return area != 0 && area != 666 && area < 900 && group != 0 && serial != 0 && string(d) != "078051120" && string(d) != "123456789" && !uniform(d)
}

// itin takes the groups the Internal Revenue Service gives out: 50-65, 70-88, 90-92, 94-99.
func itin(d []byte) bool {
	g := value(d[3:5])
	return d[0] == '9' && (g >= 50 && g <= 65 || g >= 70 && g <= 88 || g >= 90 && g <= 92 || g >= 94)
}

// aba checks a routing number: a Federal Reserve prefix and the weights 3, 7, 1.
func aba(d []byte) bool {
	p := value(d[:2])
	return (p <= 12 || p >= 21 && p <= 32 || p >= 61 && p <= 72 || p == 80) && !uniform(d) && weighted(d, 3, 7, 1, 3, 7, 1, 3, 7, 1)%10 == 0
}

// npi is Luhn with the issuer's prefix 80840 before the number.
func npi(d []byte) bool {
	return (d[0] == '1' || d[0] == '2') && !uniform(d[:9]) && luhn(append([]byte("80840"), d...))
}

// mbi follows the Medicare beneficiary identifier's grammar: no S, L, O, I, B or Z.
func mbi(w []byte) bool {
	if len(w) != 11 || w[0] == '0' {
		return false
	}
	for _, b := range w {
		switch b {
		case 'S', 'L', 'O', 'I', 'B', 'Z':
			return false
		}
	}
	return true
}

// dea checks the sum of a Drug Enforcement Administration number.
func dea(w []byte) bool {
	switch w[0] {
	case 'I', 'N', 'O', 'Q', 'V', 'W', 'Y', 'Z':
		return false
	}
	if isDigit(w[1]) && w[1] != '9' {
		return false
	}
	d := w[2:]
	return weighted(d, 1, 2, 1, 2, 1, 2)%10 == int(d[6]-'0') && !uniform(d)
}

package redaction

import "strings"

// asianNumbers are those of Turkey, Thailand, Korea, China, Japan, India and the Philippines.
var asianNumbers = []numberRule{
	{trNationalID, likely, "11", "", tckn},
	{thTNIN, certain, "1~4~5~2~1", "- ", tnin},
	{thTNIN, likely, "13", "", tnin},
	{krRRN, certain, "6-7", "", rrn},
	{krRRN, likely, "13", "", rrn},
	{krFRN, certain, "6-7", "", frn},
	{krFRN, likely, "13", "", frn},
	{krBRN, certain, "3-2-5", "", brn},
	{krBRN, likely, "10", "", brn},
	{krDriverLicense, certain, "2-2-6-2", "", krRegion},
	{krDriverLicense, weak, "12", "", krRegion},
	{cnResidentID, certain, "18", "", residentID},
	{jpMyNumber, likely, "12|4~4~4", "- ", myNumber},
	{inAadhaar, certain, "4~4~4", "- :", aadhaar},
	{inAadhaar, likely, "12", "", aadhaar},
	{phTIN, weak, "3-3-3|3-3-3-3|3-3-3-5", "", phTax},
	{phTIN, weak, "9|12", "", phTax},
}

var asianCodes = []codeRule{
	{cnResidentID, certain, "99999999999999999A", residentID},
	{krPassport, weak, "A999A9999", krPass}, {krPassport, weak, "A99999999", krPass},
	{sgNRIC, certain, "A9999999A", nric}, {sgNRIC, likely, "A9999999A", nricShape},
	{sgUEN, likely, "99999999A", uenBusiness}, {sgUEN, likely, "999999999A", uenYear}, {sgUEN, likely, "A99AA9999A", uenOther},
	{inPAN, certain, "AAAAA9999A", pan}, {inPAN, weak, "AAAAA9999A", nil},
	{inGSTIN, certain, "99AAAAA9999A*A*", gstin},
	{inVoter, weak, "AAA9999999", nil},
	{inVehicle, weak, "A99999", nil},
}

var asianPhrases = []phraseRule{
	{inPassport, weak, "A99_99999", inPass},
	{inVehicle, likely, "AA_99_Aaa_9999", inPlate},
	{trPlate, likely, "99_Aaa_99ddd", trProvince},
}

// tckn is a Turkish identity number with its two check digits.
func tckn(d []byte) bool {
	o, e := 0, 0
	for i := 0; i < 9; i += 2 {
		o += int(d[i] - '0')
	}
	for i := 1; i < 8; i += 2 {
		e += int(d[i] - '0')
	}
	return d[0] != '0' && ((o*7-e)%10+10)%10 == int(d[9]-'0') && (o+e+int(d[9]-'0'))%10 == int(d[10]-'0')
}

// tnin is a Thai identity number: the kind of person, an existing province, modulo 11.
func tnin(d []byte) bool {
	if d[0] == '0' || d[0] == '9' {
		return false
	}
	switch p := value(d[1:3]); {
	case p < 10, p == 28, p == 29, p == 59, p == 68, p == 69, p == 78, p == 79, p >= 87 && p <= 89, p > 96:
		return false
	}
	return (11-weighted(d, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2)%11)%10 == int(d[12]-'0')
}

// rrn is a Korean resident number: birthday, sex and century, region. Numbers given out since October 2020 have no check digit.
func rrn(d []byte) bool {
	return d[6] >= '1' && d[6] <= '4' && yymmdd(d) && value(d[7:9]) <= 95
}

// frn is the same for foreigners.
func frn(d []byte) bool { return d[6] >= '5' && d[6] <= '8' && yymmdd(d) }

func brn(d []byte) bool {
	return (10-(weighted(d, 1, 3, 7, 1, 3, 7, 1, 3, 5)+int(d[8]-'0')*5/10)%10)%10 == int(d[9]-'0') && !uniform(d)
}

func krRegion(d []byte) bool { r := value(d[:2]); return r >= 11 && r <= 28 }

func krPass(w []byte) bool { return strings.IndexByte("MSRODG", w[0]) >= 0 }

// residentID is a Chinese identity number: a province, the birthday, ISO 7064 MOD 11-2.
func residentID(w []byte) bool {
	if p := value(w[:2]); p < 11 || p > 82 {
		return false
	}
	year := value(w[6:10])
	if year < 1900 || year > 2099 || !dayExists(year, value(w[10:12]), value(w[12:14])) {
		return false
	}
	return "10X98765432"[weighted(w, 7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)%11] == w[17]
}

// nric checks the letter of a Singaporean identity number.
func nric(w []byte) bool {
	if !nricShape(w) {
		return false
	}
	sum, letters := weighted(w[1:], 2, 7, 6, 5, 4, 3, 2), "JZIHGFEDCBA"
	switch w[0] {
	case 'T':
		sum += 4
	case 'F':
		letters = "XWUTRQPNMLK"
	case 'G':
		sum, letters = sum+4, "XWUTRQPNMLK"
	case 'M':
		sum, letters = sum+3, "XWUTRQPNJLK"
		return letters[10-sum%11] == w[8] || letters[sum%11] == w[8]
	}
	return letters[sum%11] == w[8]
}

func nricShape(w []byte) bool { return strings.IndexByte("STFGM", w[0]) >= 0 }

// The three forms of a Singaporean entity number: a business, a company with the year it was registered, and all others. Each has a
// letter to check.
func uenBusiness(w []byte) bool {
	return "XMKECAWLJDB"[weighted(w, 10, 4, 9, 3, 8, 2, 7, 1)%11] == w[8]
}

func uenYear(w []byte) bool {
	y := value(w[:4])
	return y >= 1819 && y <= 2099 && "ZKCMDNERGWH"[weighted(w, 10, 8, 6, 4, 9, 7, 5, 3, 1)%11] == w[9]
}

func uenOther(w []byte) bool {
	const letters = "ABCDEFGHJKLMNPQRSTUVWX0123456789"
	if w[0] != 'R' && w[0] != 'S' && w[0] != 'T' {
		return false
	}
	sum := -5
	for i, f := range [...]int{4, 3, 5, 3, 10, 2, 2, 5, 7} {
		v := strings.IndexByte(letters, w[i])
		if v < 0 {
			return false
		}
		sum += v * f
	}
	return sum >= 0 && letters[sum%11] == w[9]
}

// myNumber is the Japanese individual number.
func myNumber(d []byte) bool {
	c := 11 - weighted(d, 6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)%11
	if c > 9 {
		c = 0
	}
	return c == int(d[11]-'0') && !uniform(d)
}

// aadhaar does not begin with 0 or 1, is no palindrome, and passes Verhoeff.
func aadhaar(d []byte) bool {
	if d[0] < '2' {
		return false
	}
	for i := range 6 {
		if d[i] != d[11-i] {
			return verhoeff(d)
		}
	}
	return false
}

// pan has a class of holder as its fourth letter.
func pan(w []byte) bool { return strings.IndexByte("ABCFGHJLPT", w[3]) >= 0 }

// gstin is a state, a permanent account number, a count, the letter Z and a check character.
func gstin(w []byte) bool {
	state := value(w[:2])
	return (state >= 1 && state <= 37 || state == 97) && w[13] == 'Z' && w[12] != '0'
}

func inPass(w []byte) bool { return len(w) == 8 && w[1] != '0' && w[7] != '0' }

const inStates = "AN AP AR AS BR CG CH DD DL DN GA GJ HP HR JH JK KA KL LA LD MH ML MN MP MZ NL OD OR PB PY RJ SK TG TN TR TS UA UK UP UT WB "

func inPlate(w []byte) bool {
	return strings.Contains(inStates, string(w[:2])+" ") && value(w[2:4]) > 0
}

// trProvince are the 81 provinces of Turkey.
func trProvince(w []byte) bool {
	p := value(w[:2])
	return p >= 1 && p <= 81
}

// phTax leaves alone what has no number behind its kind.
func phTax(d []byte) bool { return value(d[3:9]) != 0 }

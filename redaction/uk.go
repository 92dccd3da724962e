package redaction

import "strings"

var ukNumbers = []numberRule{
	{ukNHS, certain, "3 3 4", "", nhs},
	{ukNHS, likely, "10|3-3-4", "", nhs},
}

var ukCodes = []codeRule{
	{ukDrivingLicence, certain, "*****999999***AA", ukLicence},
	{ukPassport, weak, "AA9999999", nil},
}

var ukPhrases = []phraseRule{
	{ukNINO, certain, "AA_99_99_99_A", nino},
	{ukPostcode, weak, "A9_9AA", postcode}, {ukPostcode, weak, "A99_9AA", postcode}, {ukPostcode, weak, "AA9_9AA", postcode},
	{ukPostcode, weak, "AA99_9AA", postcode}, {ukPostcode, weak, "A9A_9AA", postcode}, {ukPostcode, weak, "AA9A_9AA", postcode},
	{ukVehicle, likely, "AA99_AAA", ukPlate},
	{ukVehicle, weak, "A9dd_AAA", ukYearLetterFirst},
	{ukVehicle, weak, "AAA_9dd_A", ukYearLetterLast},
}

// nhs is the modulo 11 check of an NHS number.
func nhs(d []byte) bool {
	c := 11 - weighted(d, 10, 9, 8, 7, 6, 5, 4, 3, 2)%11
	return c != 10 && c%11 == int(d[9]-'0') && !uniform(d)
}

// nino follows HMRC: prefixes that are not given out, suffix A to D.
func nino(w []byte) bool {
	a, b := w[0], w[1]
	switch string(w[:2]) {
	case "BG", "GB", "KN", "NK", "NT", "TN", "ZZ":
		return false
	}
	return strings.IndexByte("DFIQUV", a) < 0 && strings.IndexByte("DFIQUVO", b) < 0 && w[8] <= 'D'
}

// ukLicence follows the DVLA: five letters of the surname filled up with nines, the decade, the month (plus 50 for women), the day
// and year of birth, two initials or nines, a digit and two letters.
func ukLicence(w []byte) bool {
	filler := false
	for i, b := range w[:5] {
		if isDigit(b) {
			if b != '9' || i == 0 {
				return false
			}
			filler = true
		} else if filler {
			return false
		}
	}
	month, day := value(w[6:8]), value(w[8:10])
	if month > 50 {
		month -= 50
	}
	for _, b := range w[11:13] {
		if isDigit(b) && b != '9' {
			return false
		}
	}
	return month >= 1 && month <= 12 && day >= 1 && day <= 31 && !isLetter(w[11]) == (w[11] == '9')
}

// postcode checks the letters Royal Mail uses.
func postcode(w []byte) bool {
	n := len(w)
	return strings.IndexByte("CIKMOV", w[n-1]) < 0 && strings.IndexByte("CIKMOV", w[n-2]) < 0 && strings.IndexByte("QVX", w[0]) < 0
}

// ukPlate is the style since 2001: an area without I, Q and Z, an age identifier, three letters without I and Q.
func ukPlate(w []byte) bool {
	age := value(w[2:4])
	return strings.IndexByte("IQZ", w[0]) < 0 && strings.IndexByte("IQZ", w[1]) < 0 && (age >= 2 && age <= 29 || age >= 51 && age <= 79) &&
		strings.IndexByte("IQ", w[4]) < 0 && strings.IndexByte("IQ", w[5]) < 0 && strings.IndexByte("IQ", w[6]) < 0
}

func ukYearLetterFirst(w []byte) bool { return strings.IndexByte("IOQUZ", w[0]) < 0 }
func ukYearLetterLast(w []byte) bool  { return strings.IndexByte("IOQUZ", w[len(w)-1]) < 0 }

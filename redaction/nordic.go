package redaction

import "strings"

var nordicNumbers = []numberRule{
	{fiHETU, certain, "6-3a|6+3a", "", hetu},
	{sePersonnummer, certain, "6-4|6+4|8-4", "", personnummer},
	{sePersonnummer, likely, "10|12", "", personnummer},
	{seOrganisation, certain, "6-4", "", orgnummer},
	{seOrganisation, likely, "10", "", orgnummer},
	{noFNR, certain, "6~5", " -", fodselsnummer},
	{noFNR, likely, "11", "", fodselsnummer},
	{dkCPR, certain, "6-4", "", cprSum},
	{dkCPR, weak, "10|6~4", "- ", ddmmyy},
}

var nordicCodes = []codeRule{
	{fiHETU, certain, "999999A999*", hetu},
}

const hetuLetters = "0123456789ABCDEFHJKLMNPRSTUVWXY"

// hetu is a Finnish personal identity code: the birthday, a sign for the century, a serial number and its letter.
func hetu(w []byte) bool {
	k := len(w) - 4
	if !ddmmyy(w) || k == 7 && strings.IndexByte("YXWVUABCDEF", w[6]) < 0 {
		return false
	}
	n := value(w[k : k+3])
	return n >= 2 && hetuLetters[(value(w[:6])*1000+n)%31] == w[k+3]
}

// personnummer is Luhn over the last ten digits; coordination numbers add 60 to the day.
func personnummer(d []byte) bool {
	if len(d) == 12 {
		if c := value(d[:2]); c < 18 || c > 20 {
			return false
		}
		d = d[2:]
	}
	day := value(d[4:6])
	if day > 60 {
		day -= 60
	}
	return dayExists(value(d[:2]), value(d[2:4]), day) && luhn(d)
}

// orgnummer is Luhn; the third digit is at least two, so that it is no date.
func orgnummer(d []byte) bool { return d[2] >= '2' && d[0] != '0' && luhn(d) }

// fodselsnummer has two check digits of modulo 11; D-numbers add 40 to the day, H-numbers 40 to the month.
func fodselsnummer(d []byte) bool {
	day, month := value(d[:2])%40, value(d[2:4])%40
	k1 := 11 - weighted(d, 3, 7, 6, 1, 8, 9, 4, 5, 2)%11
	k2 := 11 - weighted(d, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)%11
	return dayExists(value(d[4:6]), month, day) && k1 != 10 && k2 != 10 && k1%11 == int(d[9]-'0') && k2%11 == int(d[10]-'0')
}

// cprSum is the date and the modulo 11 that Danish numbers kept until 2007; later ones need a word about them.
func cprSum(d []byte) bool { return ddmmyy(d) && weighted(d, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1)%11 == 0 }

package redaction

import "strings"

var deviceNumbers = []numberRule{
	{imei, certain, "2-6-6-1", "", luhn},
	{imei, likely, "15", "", luhn},
}

var deviceCodes = []codeRule{
	{vin, likely, "*****************", vehicleNumber},
}

// vinValue are the values ISO 3779 gives to the letters from A; I, O and Q do not occur.
const vinValue = "12345678?12345?7?923456789"

// vehicleNumber checks the ninth character, which is the sum of all modulo 11.
func vehicleNumber(w []byte) bool {
	sum, letters := 0, 0
	for i, b := range w {
		v := int(b - '0')
		if isLetter(b) {
			if vinValue[b-'A'] == '?' {
				return false
			}
			v = int(vinValue[b-'A'] - '0')
			letters++
		}
		sum += v * [...]int{8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2}[i]
	}
	return letters > 0 && "0123456789X"[sum%11] == w[8] && strings.IndexByte("IOQ", w[0]) < 0
}

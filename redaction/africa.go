package redaction

var africanNumbers = []numberRule{
	{zaID, likely, "13|6~4~3|6~4~2~1", " ", southAfrican},
	{ngNIN, likely, "11", "", verhoeff},
}

var africanCodes = []codeRule{}

var africanPhrases = []phraseRule{
	{ngVehicle, likely, "AAA_999AA", nil},
}

// southAfrican is a birthday, a serial number, citizen, resident or refugee, and Luhn.
func southAfrican(d []byte) bool { return yymmdd(d) && d[10] <= '2' && luhn(d) }

package redaction

// pacificNumbers are those of Australia.
var pacificNumbers = []numberRule{
	{auTFN, certain, "3 3 3", "", tfn},
	{auTFN, likely, "9|3-3-3", "", tfn},
	{auABN, certain, "2 3 3 3", "", abn},
	{auABN, likely, "11", "", abn},
	{auACN, certain, "3 3 3", "", acn},
	{auACN, likely, "9", "", acn},
	{auMedicare, certain, "4~5~1", " -", medicare},
	{auMedicare, likely, "10", "", medicare},
}

func tfn(d []byte) bool {
	return !uniform(d) && weighted(d, 1, 4, 3, 7, 5, 8, 6, 9, 10)%11 == 0
}

// abn is the modulo 89 check of the Australian Business Register: one is taken off the first digit.
func abn(d []byte) bool {
	return !uniform(d) && d[0] != '0' && (weighted(d, 10, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19)-10)%89 == 0
}

func acn(d []byte) bool {
	return !uniform(d) && (10-weighted(d, 8, 7, 6, 5, 4, 3, 2, 1)%10)%10 == int(d[8]-'0')
}

func medicare(d []byte) bool {
	return d[0] >= '2' && d[0] <= '6' && weighted(d, 1, 3, 7, 9, 1, 3, 7, 9)%10 == int(d[8]-'0')
}

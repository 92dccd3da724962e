package redaction

import "strings"

// americanNumbers are those of Canada, Brazil, Chile and Argentina.
var americanNumbers = []numberRule{
	{caSIN, certain, "3~3~3", "- ", sin},
	{caSIN, likely, "9", "", sin},
	{brCPF, certain, "3.3.3-2", "", cpf},
	{brCPF, likely, "11|9-2", "", cpf},
	{brCNPJ, certain, "2.3.3/4-2", "", cnpj},
	{brCNPJ, likely, "14", "", cnpj},
	{clRUT, certain, "2.3.3-a|1.3.3-a", "", rut},
	{clRUT, likely, "8-a|7-a", "", rut},
	{arCUIT, certain, "2-8-1", "", cuit},
	{arCUIT, likely, "11", "", cuit},
}

var americanCodes = []codeRule{
	{mxCURP, certain, "AAAA999999AAAAAA*9", curp},
}

func sin(d []byte) bool { return d[0] != '0' && d[0] != '8' && luhn(d) }

// twoSums checks the two last digits of a Brazilian number: each is the modulo 11 of what stands before it.
func twoSums(d []byte, top int) bool {
	if uniform(d) {
		return false
	}
	for n := len(d) - 2; n < len(d); n++ {
		sum, w := 0, 2
		for i := n - 1; i >= 0; i-- {
			sum += int(d[i]-'0') * w
			if w++; w > top {
				w = 2
			}
		}
		c := 11 - sum%11
		if c > 9 {
			c = 0
		}
		if c != int(d[n]-'0') {
			return false
		}
	}
	return true
}

func cpf(d []byte) bool  { return twoSums(d, 12) }
func cnpj(d []byte) bool { return twoSums(d, 9) }

// rut is modulo 11; K stands for ten.
func rut(w []byte) bool {
	n := len(w) - 1
	sum, f := 0, 2
	for i := n - 1; i >= 0; i-- {
		sum += int(w[i]-'0') * f
		if f++; f > 7 {
			f = 2
		}
	}
	return "0123456789K"[(11-sum%11)%11] == w[n] && value(w[:n]) > 0
}

func cuit(d []byte) bool {
	switch value(d[:2]) {
	case 20, 23, 24, 25, 26, 27, 30, 33, 34:
	default:
		return false
	}
	c := 11 - weighted(d, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)%11
	return c != 10 && c%11 == int(d[10]-'0')
}

const mxStates = "AS BC BS CC CL CM CS CH DF CX DG GT GR HG JC MC MN MS NT NL OC PL QT QR SP SL SR TC TS TL VZ YN ZS NE "

// curp is a Mexican population code: names, birthday, sex, state, consonants, and a sum of base 37 with the letter eñe left out.
func curp(w []byte) bool {
	if w[10] != 'H' && w[10] != 'M' && w[10] != 'X' || !strings.Contains(mxStates, string(w[11:13])+" ") || !yymmdd(w[4:]) {
		return false
	}
	sum := 0
	for i, b := range w[:17] {
		v := int(b - '0')
		if isLetter(b) {
			if v = int(b-'A') + 10; b > 'N' {
				v++
			}
		}
		sum += v * (18 - i)
	}
	return (10-sum%10)%10 == int(w[17]-'0')
}

package redaction

import (
	"crypto/sha256"
	"math/bits"
	"strings"
)

const (
	minWallet = 26
	maxWallet = 90
)

// wallet looks at the word [from, to) as an address of a cryptocurrency.
func (sc *scanner) wallet(s string, from, to int) {
	n := to - from
	if n < minWallet || n > maxWallet || joinedLeft(s, from) || joinedRight(s, to) {
		return
	}
	w := s[from:to]
	st, ok := certain, false
	switch {
	case strings.IndexByte("13LMDT", w[0]) >= 0 && n <= 35:
		ok = base58Check(w)
	case n >= 14 && (w[0]|0x20 == 'b' || w[0]|0x20 == 't' || w[0]|0x20 == 'l'):
		ok = segwit(w)
	case n == 42 && w[0] == '0' && w[1] == 'x':
		st, ok = ethereum(w)
	}
	if ok && sc.accept(s, cryptoWallet, st, from, to) {
		sc.add(cryptoWallet, from, to)
	}
}

const base58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// base58Value is the index in base58 plus one.
var base58Value = func() (t [256]uint8) {
	for i := range len(base58) {
		t[base58[i]] = uint8(i + 1)
	}
	return t
}()

// base58Check checks an address of Bitcoin, Litecoin, Dogecoin or Tron: a version byte, twenty bytes, and four of a double hash.
func base58Check(w string) bool {
	var out [25]byte
	for i := range len(w) {
		v := int(base58Value[w[i]]) - 1
		if v < 0 {
			return false
		}
		for k := len(out) - 1; k >= 0; k-- {
			v += int(out[k]) * 58
			out[k] = byte(v)
			v >>= 8
		}
		if v != 0 {
			return false
		}
	}
	switch out[0] {
	case 0, 5, 0x30, 0x32, 0x1e, 0x16, 0x41:
	default:
		return false
	}
	first := sha256.Sum256(out[:21])
	sum := sha256.Sum256(first[:])
	return string(sum[:4]) == string(out[21:])
}

const bech32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

// segwit checks an address of BIP 173 or BIP 350.
func segwit(w string) bool {
	if w != strings.ToLower(w) && w != strings.ToUpper(w) {
		return false
	}
	var buf [maxWallet]byte
	for i := range len(w) {
		b := w[i]
		if isLetter(b) {
			b |= 0x20
		}
		buf[i] = b
	}
	low := buf[:len(w)]
	k := 3
	switch {
	case string(low[:3]) == "bc1", string(low[:3]) == "tb1":
		k = 2
	case string(low[:4]) == "ltc1":
	default:
		return false
	}
	sum := uint32(1)
	step := func(v byte) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ uint32(v)
		for i, g := range [...]uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				sum ^= g
			}
		}
	}
	for _, b := range low[:k] {
		step(b >> 5)
	}
	step(0)
	for _, b := range low[:k] {
		step(b & 31)
	}
	for _, b := range low[k+1:] {
		v := strings.IndexByte(bech32, b)
		if v < 0 {
			return false
		}
		step(byte(v))
	}
	if low[k+1] == 'q' {
		return sum == 1
	}
	return sum == 0x2bc830a3
}

// ethereum checks EIP-55: the case of each letter is a bit of a hash of the address. Without capitals nothing can be checked.
func ethereum(w string) (strength, bool) {
	var low [40]byte
	upper, lower := false, false
	for i := range low {
		b := w[2+i]
		if !isHex(b) {
			return weak, false
		}
		upper = upper || b >= 'A' && b <= 'F'
		lower = lower || b >= 'a'
		if isLetter(b) {
			b |= 0x20
		}
		low[i] = b
	}
	if !upper || !lower {
		return likely, true
	}
	sum := keccak(low[:])
	for i, b := range low {
		if isLetter(b) && (sum[i/2]>>(4*(1-i%2))&15 >= 8) != (w[2+i] < 'a') {
			return weak, false
		}
	}
	return certain, true
}

// keccak is Keccak-256 as it was before FIPS 202 padded it differently, of less than one block.
func keccak(msg []byte) [32]byte {
	const rate = 136
	var block [rate]byte
	copy(block[:], msg)
	block[len(msg)] = 1
	block[rate-1] |= 0x80
	var a [25]uint64
	for i := range rate / 8 {
		for k := range 8 {
			a[i] |= uint64(block[8*i+k]) << (8 * k)
		}
	}
	lfsr := uint8(1)
	for range 24 {
		var c [5]uint64
		for x := range 5 {
			c[x] = a[x] ^ a[x+5] ^ a[x+10] ^ a[x+15] ^ a[x+20]
		}
		for x := range 5 {
			d := c[(x+4)%5] ^ bits.RotateLeft64(c[(x+1)%5], 1)
			for y := 0; y < 25; y += 5 {
				a[x+y] ^= d
			}
		}
		x, y, cur := 1, 0, a[1]
		for t := range 24 {
			x, y = y, (2*x+3*y)%5
			cur, a[x+5*y] = a[x+5*y], bits.RotateLeft64(cur, (t+1)*(t+2)/2)
		}
		for y := 0; y < 25; y += 5 {
			copy(c[:], a[y:y+5])
			for x := range 5 {
				a[x+y] = c[x] ^ ^c[(x+1)%5]&c[(x+2)%5]
			}
		}
		for j := range 7 {
			if lfsr&1 == 1 {
				a[0] ^= 1 << (1<<j - 1)
			}
			over := lfsr >> 7
			lfsr <<= 1
			if over == 1 {
				lfsr ^= 0x71
			}
		}
	}
	var out [32]byte
	for i := range out {
		out[i] = byte(a[i/8] >> (8 * (i % 8)))
	}
	return out
}

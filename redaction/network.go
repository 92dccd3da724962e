package redaction

import (
	"net/netip"
	"strings"
)

// colons are the entities whose anchor is a colon.
var colons = setOf(ipAddress, macAddress)

const (
	maxIPv6 = 45 // bytes, with an IPv4 address at the end
	maxZone = 16
)

func isHex(b byte) bool { return isDigit(b) || b|0x20-'a' < 6 }

// colon looks for an address around the colon at i and returns where it ends, or i.
func (sc *scanner) colon(s string, i int, on entitySet) int {
	start := i
	for start > 0 && i-start < 5 && isHex(s[start-1]) {
		start--
	}
	if i-start > 4 || isAlnum(before(s, start)) || before(s, start) == ':' {
		return i
	}
	if on.has(macAddress) && i-start == 2 {
		if end := sc.mac(s, start); end > 0 {
			return end
		}
	}
	if on.has(ipAddress) && at(s, i+1) != '/' {
		if end := sc.ipv6(s, start); end > 0 {
			return end
		}
	}
	return i
}

// mac takes six pairs of hexadecimal digits parted by colons or dashes, or three groups of four parted by dots, at i. It returns the
// end, or 0.
func (sc *scanner) mac(s string, i int) int {
	size, sep := 2, at(s, i+2)
	if isHex(sep) {
		size, sep = 4, at(s, i+4)
	}
	switch {
	case sep == 0, size == 2 && sep != ':' && sep != '-', size == 4 && sep != '.':
		return 0
	}
	if isAlnum(before(s, i)) || before(s, i) == sep {
		return 0
	}
	j, same := i, true
	for k := 0; k < 12; k++ {
		if k > 0 && k%size == 0 {
			if at(s, j) != sep {
				return 0
			}
			j++
		}
		if !isHex(at(s, j)) {
			return 0
		}
		same = same && s[j] == s[i]
		j++
	}
	// The address of nobody and the address of everybody belong to no device.
	if b := at(s, j); same || isAlnum(b) || b == sep && isAlnum(at(s, j+1)) {
		return 0
	}
	sc.add(macAddress, i, j)
	return j
}

// ipv6 takes an address with its zone and prefix length at i and returns the end, or 0.
func (sc *scanner) ipv6(s string, i int) int {
	j, colonsSeen, digits := i, 0, 0
	for j < len(s) && j-i <= maxIPv6 && (isHex(s[j]) || s[j] == ':' || s[j] == '.') {
		if s[j] == ':' {
			colonsSeen++
		}
		if isDigit(s[j]) {
			digits++
		}
		j++
	}
	for j > i && (s[j-1] == '.' || s[j-1] == ':' && (j < 2 || s[j-2] != ':')) {
		j--
	}
	if colonsSeen < 2 || j-i > maxIPv6 || isAlnum(at(s, j)) || at(s, j) == '_' {
		return 0
	}
	a, err := netip.ParseAddr(s[i:j])
	if err != nil {
		return 0
	}
	if at(s, j) == '%' && isAlnum(at(s, j+1)) {
		for j++; j < len(s) && isAlnum(s[j]); j++ {
		}
	}
	j = prefixLength(s, j, 128)
	st := certain
	switch {
	case a.IsUnspecified():
		st = weak
	case !routable(a):
		st = likely
	case digits == 0 && colonsSeen < 4: // a::b is how C++ names things
		st = weak
	}
	return sc.address(s, st, i, j)
}

// address adds an IP address. One that is nobody's in particular counts only where it was asked for by name.
func (sc *scanner) address(s string, st strength, from, to int) int {
	if st == certain || st == likely && sc.bare.has(ipAddress) || st == weak && sc.context(s, from, to).has(ipAddress) {
		sc.add(ipAddress, from, to)
		return to
	}
	return 0
}

// routable reports whether the address is one host's on the internet.
func routable(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	for _, p := range reserved {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// reserved are carriers' own networks, documentation, benchmarks and what is kept for later.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("2001:db8::/32"),
}

// prefixLength returns the end of a prefix length of at most most bits behind an address that ends at i, or i.
func prefixLength(s string, i, most int) int {
	if at(s, i) != '/' {
		return i
	}
	v, j := 0, i+1
	for j < len(s) && isDigit(s[j]) && j-i <= 4 {
		v = v*10 + int(s[j]-'0')
		j++
	}
	if j == i+1 || v > most || isAlnum(at(s, j)) || at(s, i+1) == '0' && j > i+2 {
		return i
	}
	return j
}

// ipv4 takes a dotted address whose first part is the digits at i, and returns the end, or 0.
func (sc *scanner) ipv4(s string, i int) int {
	if b := before(s, i); isAlnum(b) || b == '_' || (b == '.' || b == '-' || b == '/') && isAlnum(before(s, i-1)) {
		return 0
	}
	j := i
	for part := range 4 {
		if part > 0 {
			if at(s, j) != '.' {
				return 0
			}
			j++
		}
		v, from := 0, j
		for j < len(s) && isDigit(s[j]) && j-from < 4 {
			v = v*10 + int(s[j]-'0')
			j++
		}
		if j == from || v > 255 || j-from > 1 && s[from] == '0' {
			return 0
		}
	}
	if joinedRight(s, j) {
		return 0
	}
	a, err := netip.ParseAddr(s[i:j])
	if err != nil || versioned(s, i) {
		return 0
	}
	st := certain
	if !routable(a) {
		st = likely
	}
	return sc.address(s, st, i, prefixLength(s, j, 32))
}

// versioned reports whether the word before i says that a version follows.
func versioned(s string, i int) bool {
	j := i
	for j > 0 && i-j < 4 && strings.IndexByte(" :=\"'", s[j-1]) >= 0 {
		j--
	}
	k := j
	for k > 0 && j-k < 12 && isLetter(s[k-1]) {
		k--
	}
	switch strings.ToLower(s[k:j]) {
	case "version", "ver", "v", "release", "build", "firmware", "driver":
		return true
	}
	return false
}

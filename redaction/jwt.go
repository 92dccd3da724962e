package redaction

import (
	"encoding/base64"
	"strings"
)

const (
	minJOSEHeader = 15 // {"alg":"x"} in base64url
	maxJOSEHeader = 1024
	minJWTPayload = 4
)

// jwtAt decides whether a compact JWS or JWE (RFC 7519) starts at i: a base64url header that is a JSON object with an
// alg, and a payload. A token that lost its signature is still one: the payload is what it tells.
func jwtAt(s string, i int, prev byte, more bool) match {
	if isAlnum(prev) || prev == '-' || prev == '_' {
		return match{}
	}
	if rest := s[i:]; len(rest) < len(jwtMagic) {
		if more && jwtMagic[:len(rest)] == rest {
			return match{v: undecided}
		}
		return match{}
	} else if rest[:len(jwtMagic)] != jwtMagic {
		return match{}
	}
	limit := i + maxJOSEHeader
	dot, growing := extent(s[:min(len(s), limit)], i, kURL, more)
	if dot >= limit {
		return match{}
	}
	if growing {
		return match{v: undecided, strong: dot-i > minKeyRun}
	}
	if at(s, dot) != '.' || dot-i < minJOSEHeader || !joseHeader(s[i:dot]) {
		return match{}
	}
	p, growing := extent(s[:min(len(s), dot+1+minJWTPayload)], dot+1, kURL, more)
	if p-dot-1 < minJWTPayload {
		if growing {
			return match{v: undecided, strong: true}
		}
		return match{}
	}
	end, growing := extent(s, p, kURL|kDot, more)
	if growing {
		if end-i < maxAwait+maxJOSEHeader {
			return match{v: undecided, strong: true}
		}
		return match{v: open, end: end, keep: kURL | kDot}
	}
	if at(s, end) == '.' && strings.IndexByte(s[dot+1:end], '.') < 0 { // the empty signature of alg none
		end++
	}
	return match{v: yes, end: end}
}

func joseHeader(h string) bool {
	var buf [maxJOSEHeader]byte
	n, err := base64.RawURLEncoding.Decode(buf[:], []byte(h))
	if err != nil || n < 2 || buf[0] != '{' {
		return false
	}
	return strings.Contains(string(buf[:n]), `"alg"`)
}

package redaction

import (
	"net/netip"
	"strings"
)

// allowList is what an organisation lets pass: values, domains, networks, and places of a body.
type allowList struct {
	values   map[string]bool // folded
	domains  map[string]bool // folded; a domain covers what is below it
	networks []netip.Prefix
	paths    [][]string // steps; * is any
}

// spares reports whether a value may pass. Secrets are only spared by value or place. in is the body the value stands in at offset, nil when it stands on its own.
func (a *allowList) spares(e entity, value string, in *maskPass, offset int) bool {
	if a.values[foldWord(value)] {
		return true
	}
	switch e {
	case emailAddress, urlAddress:
		if len(a.domains) > 0 && a.domain(foldWord(value)) {
			return true
		}
	case ipAddress:
		for _, n := range a.networks {
			if p, err := netip.ParsePrefix(value); err == nil && n.Contains(p.Addr()) && p.Bits() >= n.Bits() {
				return true
			}
			if ip, err := netip.ParseAddr(value); err == nil && n.Contains(ip.Unmap()) {
				return true
			}
		}
	}
	if len(a.paths) == 0 || in == nil {
		return false
	}
	at := strings.Split(strings.TrimPrefix(in.where(offset), "/"), "/")
	for _, p := range a.paths {
		if fits(p, at) {
			return true
		}
	}
	return false
}

// domain reports whether the host of a value is an allowed domain or lies below one.
func (a *allowList) domain(value string) bool {
	if k := strings.Index(value, "://"); k >= 0 {
		value = value[k+3:]
		if k = strings.IndexAny(value, "/?#"); k >= 0 {
			value = value[:k]
		}
	}
	value = value[strings.LastIndexByte(value, '@')+1:]
	value, _, _ = strings.Cut(value, ":")
	for value != "" {
		if a.domains[value] {
			return true
		}
		_, value, _ = strings.Cut(value, ".")
	}
	return false
}

func fits(path, at []string) bool {
	if len(path) > len(at) { // what lies below an allowed place is allowed
		return false
	}
	for i, s := range path {
		if s != "*" && s != at[i] {
			return false
		}
	}
	return true
}

// parsePath reads $.a[*].b[0] into its steps.
func parsePath(s string) ([]string, bool) {
	rest, ok := strings.CutPrefix(s, "$")
	if !ok || rest == "" {
		return nil, false
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	var steps []string
	for rest != "" {
		step := ""
		switch rest[0] {
		case '.':
			end := strings.IndexAny(rest[1:], ".[") + 1
			if end == 0 {
				end = len(rest)
			}
			step, rest = rest[1:end], rest[end:]
		case '[':
			end := strings.IndexByte(rest, ']')
			if end < 0 {
				return nil, false
			}
			step, rest = strings.Trim(rest[1:end], `"'`), rest[end+1:]
		default:
			return nil, false
		}
		if step == "" {
			return nil, false
		}
		steps = append(steps, escape.Replace(step))
	}
	return steps, true
}

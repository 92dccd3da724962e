package main

import (
	"fmt"
	"net/netip"
)

// proxies reads identity.proxies: addresses or ranges.
func proxies(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for i, s := range list {
		p, err := netip.ParsePrefix(s)
		if a, aerr := netip.ParseAddr(s); aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("identity.proxies[%d]: %q is neither an address nor a range such as 10.0.0.0/8", i, s)
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("identity.proxies[%d]: %q is an IPv4 range written as IPv6; write it as IPv4", i, s)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

package egress

import (
	"encoding/binary"
	"net/netip"
)

// reserved are the networks of the IANA special-purpose registries (RFC 6890 and its updates) that no public host lives in.
var reserved = []struct {
	net netip.Prefix
	why string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "of this host"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "of a carrier's own network"},
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local, where cloud metadata is served"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.0.2.0/24"), "for documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("198.18.0.0/15"), "for benchmarks"},
	{netip.MustParsePrefix("198.51.100.0/24"), "for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "for documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "for multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("2001::/23"), "reserved"}, // Teredo, benchmarks, ORCHID
	{netip.MustParsePrefix("2001:db8::/32"), "for documentation"},
	{netip.MustParsePrefix("3fff::/20"), "for documentation"},
}

// Addresses of IPv6 that carry one of IPv4 within.
var (
	global = netip.MustParsePrefix("2000::/3")
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	sixTo4 = netip.MustParsePrefix("2002::/16")
)

// Private says in words what an address is that is not public, "" for a public one. An address of IPv6 that carries one of IPv4 (mapped, NAT64, 6to4)
// is what the carried one is.
func Private(a netip.Addr) string {
	a = a.WithZone("").Unmap()
	if !a.IsValid() {
		return "no address"
	}
	if a.Is6() {
		b := a.As16()
		switch {
		case nat64.Contains(a):
			return Private(netip.AddrFrom4([4]byte(b[12:16])))
		case sixTo4.Contains(a):
			return Private(netip.AddrFrom4([4]byte(b[2:6])))
		case a.IsLoopback():
			return "a loopback address"
		case a.IsLinkLocalUnicast():
			return "link-local"
		case a.IsPrivate():
			return "private"
		case a.IsMulticast():
			return "for multicast"
		case !global.Contains(a):
			return "reserved" // unspecified, IPv4-compatible and -translated, local NAT64, discard, site-local and what is not assigned yet
		case binary.BigEndian.Uint32(b[8:12])&^0x02000000 == 0x00005efe: // ISATAP: an address of IPv4 in the last four bytes
			return Private(netip.AddrFrom4([4]byte(b[12:16])))
		}
	}
	for _, r := range reserved {
		if r.net.Contains(a) {
			return r.why
		}
	}
	return ""
}

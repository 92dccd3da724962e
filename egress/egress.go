// Package egress owns which network addresses the gateway may open connections to.
//
// It refuses to know what is said over a connection and why: providers, webhooks and capability servers are all the same to it.
//
// Invariants: what an operator named is reached wherever it lives; everything else is reached only when the operator allows other hosts at all, and
// then only at public addresses. The address that is judged is the very one that is dialled, after every resolution, so a name that changes its mind
// between two look-ups gains nothing. A guarded client never follows a redirect and never goes through a proxy, which would resolve in our place.
package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/lossless-group/gateway/fault"
)

// Config says what may be reached.
type Config struct {
	// Allow lists what the operator named: host names, addresses, either with a port, networks such as 10.1.0.0/16, or URLs. A host name
	// allows whatever it resolves to. Without a port every port is allowed; a URL without one means its scheme's.
	Allow []string
	// Others lets hosts that are not listed be reached at public addresses. When false nothing else is reached at all.
	Others bool
	// Resolver looks names up; nil: the system's.
	Resolver *net.Resolver
	// Timeout bounds the opening of one connection; 0: ten seconds.
	Timeout time.Duration
}

// Guard judges addresses and opens connections. It is safe for concurrent use.
type Guard struct {
	hosts    map[string]bool // host, or host:port
	nets     []netip.Prefix
	others   bool
	named    net.Dialer // for what the operator named
	checked  net.Dialer // for everything else
	resolver *net.Resolver
}

// DefaultTimeout is how long opening one connection may take.
const DefaultTimeout = 10 * time.Second

// ErrRefused is in the chain of every error that says a host or address may not be reached.
var ErrRefused = errors.New("this address may not be reached")

// refused is the fault for an address or a name that is not to be reached.
func refused(op, public string) *fault.Error {
	return fault.Wrap(fault.Forbidden, op, "egress_refused", public, ErrRefused)
}

// New returns a Guard, or a fault of kind Invalid that names the entry which cannot be read.
func New(c Config) (*Guard, error) {
	g := &Guard{hosts: map[string]bool{}, others: c.Others, resolver: c.Resolver}
	for _, entry := range c.Allow {
		if err := g.allow(entry); err != nil {
			return nil, err
		}
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	g.named = net.Dialer{Timeout: c.Timeout, KeepAlive: 30 * time.Second, Resolver: c.Resolver}
	g.checked = g.named
	g.checked.Control = g.Control
	return g, nil
}

func (g *Guard) allow(entry string) error {
	const op = "egress.New"
	if p, err := netip.ParsePrefix(entry); err == nil {
		g.nets = append(g.nets, p.Masked())
		return nil
	}
	if strings.Contains(entry, "://") {
		u, err := url.Parse(entry)
		if err != nil || u.Hostname() == "" {
			return fault.Invalidf(op, "/allow", "The allowed address %q is not a URL with a host.", entry)
		}
		g.hosts[net.JoinHostPort(canonical(u.Hostname()), portOf(u))] = true
		return nil
	}
	host, port, err := net.SplitHostPort(entry)
	if err != nil {
		host, port = strings.Trim(entry, "[]"), ""
	}
	if host = canonical(host); host == "" || strings.ContainsAny(host, "/@ ") {
		return fault.Invalidf(op, "/allow", "The allowed address %q must be a host, host:port, network or URL.", entry)
	}
	if port != "" {
		host = net.JoinHostPort(host, port)
	}
	g.hosts[host] = true
	return nil
}

// canonical is a host in the one form it is compared in.
func canonical(host string) string {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().WithZone("").String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "http":
		return "80"
	}
	return "443"
}

// Named reports whether the operator named this host at this port.
func (g *Guard) Named(host, port string) bool {
	host = canonical(host)
	if g.hosts[host] || g.hosts[net.JoinHostPort(host, port)] {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && g.within(a)
}

func (g *Guard) within(a netip.Addr) bool {
	for _, p := range g.nets {
		if p.Contains(a.Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

// CheckURL reads an address somebody wrote, before it is stored: https, or http when the operator named it; with a plain host; without credentials
// and fragment. Names are not looked up, as what they mean now says nothing of what they will mean; dialling looks again.
// Errors are of kind Unprocessable and say what to change; one for what may not be reached is of kind Forbidden.
func (g *Guard) CheckURL(raw string) (*url.URL, error) {
	const op = "egress.CheckURL"
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.Opaque != "" {
		return nil, fault.New(fault.Unprocessable, op, "bad_url", "Write a whole address such as https://host.example/path.")
	}
	if u.User != nil || u.Fragment != "" {
		return nil, fault.New(fault.Unprocessable, op, "bad_url", "An address must not hold a user name, a password or a fragment; credentials belong into their own field.")
	}
	if g.Named(u.Hostname(), portOf(u)) {
		return u, nil
	}
	if u.Scheme != "https" {
		return nil, fault.New(fault.Unprocessable, op, "bad_url", "Use https: over http anybody on the way could read and change what is sent.")
	}
	return u, g.checkHost(op, u.Hostname())
}

// checkHost judges a host nobody named by its spelling.
func (g *Guard) checkHost(op, host string) error {
	if !g.others {
		return refused(op, "This gateway reaches only hosts its operator named, and this is none of them. Ask the operator to allow it.")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return judge(op, a)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case !plainName(name):
		return fault.New(fault.Unprocessable, op, "bad_url", "Write the host in plain letters, digits, dashes and dots; an international name in its xn-- form.")
	case last != "" && last[0] >= '0' && last[0] <= '9':
		// 2130706433, 0177.0.0.1, 0x7f.1 and 127.1 are addresses to some resolvers and to no reader.
		return fault.New(fault.Unprocessable, op, "bad_url", "Write an address as four decimal numbers, or use a name.")
	case !strings.Contains(name, "."), last == "localhost", last == "local", last == "internal", last == "lan", last == "home", last == "corp", last == "intranet", strings.HasSuffix(name, ".home.arpa"):
		return refused(op, "This name is one of a private network. Use a public host, or ask the operator to allow it.")
	}
	return nil
}

func plainName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for i := range len(label) {
			c := label[i]
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return false
			}
		}
	}
	return true
}

// Control is for net.Dialer.Control: it refuses the address a socket is about to be connected to, unless it is public or in a network the operator
// named. What the operator named by host has to be dialled through DialContext, which knows the name.
func (g *Guard) Control(network, address string, _ syscall.RawConn) error {
	const op = "egress.Control"
	if !strings.HasPrefix(network, "tcp") {
		return refused(op, "Only TCP connections are opened.")
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return refused(op, "Only addresses are connected to.")
	}
	if g.Named(ap.Addr().String(), portString(address)) {
		return nil
	}
	if !g.others {
		return refused(op, "This gateway reaches only hosts its operator named, and this is none of them. Ask the operator to allow it.")
	}
	return judge(op, ap.Addr())
}

func portString(address string) string {
	_, port, _ := net.SplitHostPort(address) // it was read as one already
	return port
}

// DialContext opens a connection to what the operator named, or to a public address of any other host when those are allowed. It is for
// http.Transport.DialContext.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if g.Named(host, port) {
		return g.named.DialContext(ctx, network, address)
	}
	if err := g.checkHost("egress.DialContext", host); err != nil {
		return nil, err
	}
	return g.checked.DialContext(ctx, network, address)
}

// Transport returns a transport that connects through the guard, with no proxy. The caller may set TLS and sizes before its first use.
func (g *Guard) Transport() *http.Transport {
	return &http.Transport{
		Proxy: nil, DialContext: g.DialContext, ForceAttemptHTTP2: true, MaxIdleConns: 64, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
		TLSHandshakeTimeout: DefaultTimeout, ResponseHeaderTimeout: time.Minute, ExpectContinueTimeout: time.Second, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
}

// Client returns a client over Transport that answers a redirect as it came, so that neither credentials nor bodies go where nobody sent them.
func (g *Guard) Client(timeout time.Duration) *http.Client {
	return &http.Client{Transport: g.Transport(), Timeout: timeout, CheckRedirect: NoRedirect}
}

// NoRedirect is for http.Client.CheckRedirect: the redirect itself is the answer.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// judge refuses an address that is not a public one.
func judge(op string, a netip.Addr) error {
	if why := Private(a); why != "" {
		return refused(op, "The address "+a.String()+" is "+why+", which this gateway does not reach. Use a public host, or ask the operator to allow it.")
	}
	return nil
}

package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
)

func TestPrivate(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		public     bool
	}{
		{"public", "93.184.215.14", true},
		{"public next to a private network", "172.32.0.1", true},
		{"public next to a carrier's network", "100.128.0.1", true},
		{"public IPv6", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", true},
		{"loopback", "127.0.0.1", false},
		{"loopback, another", "127.8.9.1", false},
		{"unspecified", "0.0.0.0", false},
		{"this network", "0.1.2.3", false},
		{"private 10", "10.0.0.1", false},
		{"private 172", "172.31.255.255", false},
		{"private 192", "192.168.1.1", false},
		{"metadata", "169.254.169.254", false},
		{"carrier", "100.100.100.200", false},
		{"benchmark", "198.19.0.1", false},
		{"documentation", "203.0.113.7", false},
		{"multicast", "224.0.0.1", false},
		{"broadcast", "255.255.255.255", false},
		{"IPv6 loopback", "::1", false},
		{"IPv6 unspecified", "::", false},
		{"IPv6 private", "fd00:ec2::254", false},
		{"IPv6 link-local with a zone", "fe80::1%eth0", false},
		{"IPv6 multicast", "ff02::1", false},
		{"IPv6 site-local", "fec0::1", false},
		{"IPv6 documentation", "2001:db8::1", false},
		{"Teredo", "2001:0:53aa:64c:0:fbfe:5d5d:bb1e", false},
		{"mapped loopback", "::ffff:127.0.0.1", false},
		{"mapped metadata", "::ffff:169.254.169.254", false},
		{"mapped public", "::ffff:93.184.215.14", true},
		{"NAT64 loopback", "64:ff9b::7f00:1", false},
		{"NAT64 metadata", "64:ff9b::a9fe:a9fe", false},
		{"NAT64 public", "64:ff9b::5db8:d70e", true},
		{"local NAT64", "64:ff9b:1::a00:1", false},
		{"6to4 private", "2002:a00:1::", false},
		{"6to4 public", "2002:5db8:d70e::1", true},
		{"IPv4-compatible", "::127.0.0.1", false},
		{"IPv4-translated", "::ffff:0:127.0.0.1", false},
		{"ISATAP private", "2606:2800::5efe:10.0.0.1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if why := Private(netip.MustParseAddr(c.addr)); (why == "") != c.public {
				t.Errorf("%s is %q", c.addr, why)
			}
		})
	}
	if Private(netip.Addr{}) == "" {
		t.Error("no address is public")
	}
}

func TestCheckURL(t *testing.T) {
	guard := func(c Config) *Guard {
		g, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	open := guard(Config{Others: true, Allow: []string{"http://127.0.0.1:11434/v1", "10.1.0.0/16", "Models.Corp", "[::1]:8080", "https://named.example"}})
	closed := guard(Config{Allow: []string{"https://named.example"}})
	for _, c := range []struct {
		name, url string
		g         *Guard
		code      string // "" for none
	}{
		{"public", "https://api.example.com/v1?x=1", open, ""},
		{"public address", "https://93.184.215.14/", open, ""},
		{"named by URL", "http://127.0.0.1:11434/other", open, ""},
		{"named by network", "http://10.1.2.3:9999/", open, ""},
		{"named by name, other case, trailing dot", "http://models.corp.:8000/", open, ""},
		{"named IPv6", "http://[::1]:8080/", open, ""},
		{"a mapped spelling of what is named", "http://[::ffff:127.0.0.1]:11434/", open, ""},
		{"named host, another port", "http://127.0.0.1:22/", open, "bad_url"},
		{"named host, another port, https", "https://127.0.0.1:22/", open, "egress_refused"},
		{"http", "http://api.example.com/", open, "bad_url"},
		{"loopback", "https://127.0.0.1/", open, "egress_refused"},
		{"metadata", "https://169.254.169.254/latest", open, "egress_refused"},
		{"mapped", "https://[::ffff:10.0.0.1]/", open, "egress_refused"},
		{"zone", "https://[fe80::1%25eth0]/", open, "egress_refused"},
		{"decimal", "https://2130706433/", open, "bad_url"},
		{"octal", "https://0177.0.0.1/", open, "bad_url"},
		{"hex", "https://0x7f.1/", open, "bad_url"},
		{"hex whole", "https://0x7f000001/", open, "bad_url"},
		{"short", "https://127.1/", open, "bad_url"},
		{"numeric last label", "https://a.127/", open, "bad_url"},
		{"full-width digits", "https://①②⑦.0.0.1/", open, "bad_url"},
		{"percent in host", "https://127%2e0.0.1/", open, "bad_url"},
		{"localhost", "https://localhost/", open, "egress_refused"},
		{"localhost, trailing dot", "https://LOCALHOST./", open, "egress_refused"},
		{"below localhost", "https://a.localhost/", open, "egress_refused"},
		{"single label", "https://intranet/", open, "egress_refused"},
		{"internal", "https://metadata.google.internal/", open, "egress_refused"},
		{"empty label", "https://a..example/", open, "bad_url"},
		{"user", "https://user@api.example.com/", open, "bad_url"},
		{"password in front of another host", "https://api.example.com:x@127.0.0.1/", open, "bad_url"},
		{"fragment", "https://api.example.com/#x", open, "bad_url"},
		{"file", "file:///etc/passwd", open, "bad_url"},
		{"opaque", "https:api.example.com", open, "bad_url"},
		{"no host", "https:///x", open, "bad_url"},
		{"not a URL", "https://[::1", open, "bad_url"},
		{"named, others closed", "https://named.example/x", closed, ""},
		{"public, others closed", "https://api.example.com/", closed, "egress_refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.g.CheckURL(c.url)
			switch {
			case c.code == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.code != "" && (err == nil || fault.From(err).Code != c.code):
				t.Errorf("got %v, want %s", err, c.code)
			}
		})
	}
}

func TestNewNamesABadEntry(t *testing.T) {
	for _, entry := range []string{"", "a b", "user@host", "https://", "host/path"} {
		if _, err := New(Config{Allow: []string{entry}}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", entry, err)
		}
	}
}

func TestControl(t *testing.T) {
	g, err := New(Config{Others: true, Allow: []string{"10.1.0.0/16", "127.0.0.1:80"}})
	if err != nil {
		t.Fatal(err)
	}
	closed, err := New(Config{Allow: []string{"127.0.0.1:80"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, network, address string
		g                      *Guard
		ok                     bool
	}{
		{"public", "tcp4", "93.184.215.14:443", g, true},
		{"public IPv6", "tcp6", "[2606:2800::1]:443", g, true},
		{"named network", "tcp4", "10.1.2.3:443", g, true},
		{"named address and port", "tcp4", "127.0.0.1:80", g, true},
		{"its other port", "tcp4", "127.0.0.1:81", g, false},
		{"private", "tcp4", "10.2.0.1:443", g, false},
		{"mapped", "tcp6", "[::ffff:192.168.0.1]:443", g, false},
		{"a name", "tcp4", "api.example.com:443", g, false},
		{"udp", "udp4", "93.184.215.14:53", g, false},
		{"closed: public", "tcp4", "93.184.215.14:443", closed, false},
		{"closed: named", "tcp4", "127.0.0.1:80", closed, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.g.Control(c.network, c.address, nil)
			if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrRefused) {
				t.Errorf("%v", err)
			}
		})
	}
}

// nameServer answers every question for an A record with the next of its addresses, the last for ever; other questions get no answer.
type nameServer struct {
	mu      sync.Mutex
	answers []string
	asked   int
}

func (n *nameServer) resolver(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			k, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(n.answer(buf[:k]), from)
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// answer makes the response of RFC 1035 to a query of one question.
func (n *nameServer) answer(q []byte) []byte {
	end := 12
	for q[end] != 0 {
		end += int(q[end]) + 1
	}
	question := q[12 : end+5]
	out := append([]byte{}, q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0)
	out = append(out, question...)
	if binary.BigEndian.Uint16(q[end+1:]) != 1 { // not an A record
		return out
	}
	n.mu.Lock()
	addr := netip.MustParseAddr(n.answers[min(n.asked, len(n.answers)-1)]).As4()
	n.asked++
	n.mu.Unlock()
	out[7] = 1
	out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
	return append(out, addr[:]...)
}

func TestDialJudgesWhatANameResolvesTo(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "inside") }))
	defer srv.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())

	for _, c := range []struct {
		name    string
		allow   []string
		others  bool
		answers []string
		ok      bool
	}{
		{"a public name that resolves to loopback", nil, true, []string{"127.0.0.1"}, false},
		{"a public name that resolves to metadata", nil, true, []string{"169.254.169.254"}, false},
		{"the same name, named by the operator", []string{"rebind.example"}, false, []string{"127.0.0.1"}, true},
		{"named with another port", []string{"rebind.example:1"}, true, []string{"127.0.0.1"}, false},
		{"a name nobody named, others closed", []string{"else.example"}, false, []string{"127.0.0.1"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := &nameServer{answers: c.answers}
			g, err := New(Config{Allow: c.allow, Others: c.others, Resolver: ns.resolver(t), Timeout: 2 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			conn, err := g.DialContext(t.Context(), "tcp", "rebind.example:"+port)
			if conn != nil {
				_ = conn.Close()
			}
			if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrRefused) {
				t.Errorf("%v", err)
			}
		})
	}

	t.Run("rebinding between the check and the dial", func(t *testing.T) {
		ns := &nameServer{answers: []string{"93.184.215.14", "127.0.0.1"}}
		resolver := ns.resolver(t)
		g, err := New(Config{Others: true, Resolver: resolver, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.CheckURL("https://rebind.example/"); err != nil {
			t.Fatal(err)
		}
		if got, err := resolver.LookupNetIP(t.Context(), "ip4", "rebind.example"); err != nil || Private(got[0]) != "" {
			t.Fatalf("the first look-up is to be harmless: %v, %v", got, err)
		}
		if _, err := g.DialContext(t.Context(), "tcp", "rebind.example:"+port); !errors.Is(err, ErrRefused) {
			t.Errorf("dialled: %v", err)
		}
		ns.mu.Lock()
		defer ns.mu.Unlock()
		if ns.asked < 2 {
			t.Error("the dial did not look again")
		}
	})
}

// TestOddSpellingsOfLoopback asks the dialler itself: whatever a resolver makes of them, they lead nowhere.
func TestOddSpellingsOfLoopback(t *testing.T) {
	g, err := New(Config{Others: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"2130706433", "0177.0.0.1", "0x7f.0.0.1", "127.1", "0", "localhost", "[::ffff:7f00:1]", "[::1]", "[64:ff9b::7f00:1]"} {
		c, err := g.DialContext(t.Context(), "tcp", host+":80")
		if c != nil {
			_ = c.Close()
		}
		if err == nil {
			t.Errorf("%s was reached", host)
		}
	}
}

func TestClientKeepsCredentialsToItself(t *testing.T) {
	var stolen []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen = append(stolen, r.Header.Get("Authorization")) }))
	defer thief.Close()
	srv := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	t.Setenv("HTTP_PROXY", thief.URL)

	g, err := New(Config{Allow: []string{srv.URL, thief.URL}})
	if err != nil {
		t.Fatal(err)
	}
	client := g.Client(5 * time.Second)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer x")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusTemporaryRedirect || len(stolen) != 0 {
		t.Errorf("status %d, the other server saw %q", res.StatusCode, stolen)
	}
}

func TestPoolCounts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	g, err := New(Config{Allow: []string{ln.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	var p Pool
	dial := p.Count(g.DialContext)
	a, err := dial(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := dial(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
		t.Fatal("dialled what is not allowed")
	}
	_ = a.Close()
	_ = a.Close() // twice is once
	if got := p.Stats(); got != (PoolStats{Open: 1, Opened: 2, Failed: 1}) {
		t.Errorf("%+v", got)
	}
	_ = b.Close()
	if got := p.Stats().Open; got != 0 {
		t.Errorf("%d open", got)
	}
}

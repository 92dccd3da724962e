package httpapi

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Principal finds the credential of a request and verifies it, an access token also for the surface: a bearer token, x-api-key (Anthropic SDKs), x-goog-api-key (Gemini SDKs)
// or the session cookie. Equal duplicates are fine, differing ones are refused.
func (s *Server) Principal(c echo.Context) (tenancy.Principal, error) {
	r := c.Request()
	token, err := headerToken(r.Header)
	if err != nil {
		return tenancy.Principal{}, err
	}
	cookie := false
	if token == "" {
		for _, name := range s.Cookies {
			if ck, err := r.Cookie(name); err == nil && ck.Value != "" {
				token, cookie = ck.Value, true
				break
			}
		}
	}
	if token == "" {
		return tenancy.Principal{}, fault.New(fault.Unauthenticated, "httpapi.Principal", "token_missing",
			"Send your token as Authorization: Bearer, x-api-key or x-goog-api-key.")
	}
	if cookie {
		if err := s.sameOrigin(r); err != nil {
			return tenancy.Principal{}, err
		}
	}
	p, err := s.Verifier.Verify(r.Context(), token)
	if err == nil && cookie {
		p.Method = "cookie"
	}
	if surface := faceOf(r).String(); err == nil && p.Token != nil && !slices.Contains(p.Token.Surfaces, surface) {
		return tenancy.Principal{}, fault.New(fault.Forbidden, "httpapi.Principal", "token_surface",
			"This access token is not good for the "+surface+" surface. Use one that is, or ask for one.")
	}
	return p, err
}

// clientAddr is where a request came from: the peer, or when that is a proxy of ours, the last address in X-Forwarded-For that is none.
func (s *Server) clientAddr(r *http.Request) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	at := peer.Addr().Unmap().WithZone("")
	ours := func(a netip.Addr) bool {
		return slices.ContainsFunc(s.Proxies, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if !ours(at) {
		return at
	}
	for _, line := range slices.Backward(r.Header.Values("X-Forwarded-For")) {
		for _, hop := range slices.Backward(strings.Split(line, ",")) {
			a, err := netip.ParseAddr(strings.TrimSpace(hop))
			if err != nil {
				return netip.Addr{} // whoever wrote this, nothing before it can be believed
			}
			if at = a.Unmap().WithZone(""); !ours(at) {
				return at
			}
		}
	}
	return at
}

func headerToken(h http.Header) (string, error) {
	var token string
	for _, v := range append(bearers(h.Values("Authorization")), append(h.Values("X-Api-Key"), h.Values("X-Goog-Api-Key")...)...) {
		v = strings.TrimSpace(v)
		if v == "" {
			continue
		}
		if token != "" && token != v {
			return "", fault.New(fault.Unauthenticated, "httpapi.Principal", "token_conflict", "The request carries two different credentials. Send one.")
		}
		token = v
	}
	return token, nil
}

func bearers(values []string) []string {
	var out []string
	for _, v := range values {
		if scheme, rest, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "bearer") {
			out = append(out, rest)
		}
	}
	return out
}

// sameOrigin keeps other sites from using a person's cookie: an unsafe method needs an Origin of ours.
func (s *Server) sameOrigin(r *http.Request) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return nil
	}
	origin := r.Header.Get("Origin")
	for _, o := range s.Origins {
		if origin != "" && strings.EqualFold(origin, o) {
			return nil
		}
	}
	return fault.New(fault.Forbidden, "httpapi.sameOrigin", "origin_mismatch",
		"A session cookie is accepted here only from our own pages. Send the token as Authorization: Bearer instead.")
}

// Hint reads which organisation the caller means.
func Hint(c echo.Context) tenancy.Hint {
	h := c.Request().Header
	return tenancy.Hint{Org: h.Get("X-Org-Id"), ActAs: h.Get("X-Act-As-Org")}
}

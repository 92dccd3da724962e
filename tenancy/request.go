package tenancy

import (
	"context"
	"net/netip"
)

// RequestInfo says which request a piece of work belongs to. It is carried in the context for logs and the audit; the one thing decided by
// it is whether an access token may be used from where it came. It belongs to the goroutine that serves the request.
type RequestInfo struct {
	ID     string
	Method string
	Route  string     // the pattern, never the path with its values
	Org    OrgID      // the organisation the caller acts in, once it is known
	From   netip.Addr // where it came from, behind the proxies we trust
	Agent  string     // its User-Agent
}

type requestKey struct{}

// WithRequest returns a context that carries info.
func WithRequest(ctx context.Context, info *RequestInfo) context.Context {
	return context.WithValue(ctx, requestKey{}, info)
}

// RequestOf returns what WithRequest put there, or nil.
func RequestOf(ctx context.Context) *RequestInfo {
	info, _ := ctx.Value(requestKey{}).(*RequestInfo)
	return info
}

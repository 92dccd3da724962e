package apps

import (
	"context"
	"fmt"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Tools asks the tool servers of a document what they offer.
type Tools interface {
	// Discover lists the tools of one server of the document as capabilities that can be registered. Errors are the server's.
	Discover(ctx context.Context, d dispatch.Document, server string, who tenancy.Tenant) ([]dispatch.CapabilityDocument, error)
}

// Discover asks a tool server, in the name of who, for its tools, as capabilities that an operator may put into the app's document as they are
// or changed. The server is one of the app's document, or, with a URL, one that is not registered yet.
//
// Errors: fault.NotFound when the app has no document or its document no such server; fault.Invalid when the address may not be called; those
// of the server.
func (b *Book) Discover(ctx context.Context, app, server, url string, who tenancy.Tenant) ([]dispatch.CapabilityDocument, error) {
	const op = "apps.Discover"
	if b.Tools == nil {
		return nil, fault.New(fault.NotFound, op, "tools_unknown", "This gateway asks no tool servers.")
	}
	d := dispatch.Document{App: app, MCP: map[string]dispatch.MCPDoc{server: {URL: url}}}
	if url == "" {
		var ok bool
		if d, ok = b.Files[app]; !ok {
			last, err := b.last(ctx, app)
			if err != nil {
				return nil, err
			}
			if last.Sealed == nil {
				return nil, fault.New(fault.NotFound, op, "app_unknown", "No app of this name has registered capabilities. Send the url of the tool server to ask one that is not registered yet.")
			}
			if d, err = b.open(last); err != nil {
				return nil, err
			}
		}
		if _, ok := d.MCP[server]; !ok {
			return nil, fault.New(fault.NotFound, op, "server_unknown", fmt.Sprintf("The app %s has no tool server %s. Name one of its document, or send the url of one that is not registered yet.", app, server))
		}
	}
	return b.Tools.Discover(ctx, d, server, who)
}

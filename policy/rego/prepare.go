package rego

import (
	"context"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// Prepare compiles a published revision of an organisation before anybody asks for it, and says how the organisation stands then. A
// revision that cannot be used is told to the Watcher as it is when a request meets it; one without Rego has nothing to compile.
func (e *Engine) Prepare(ctx context.Context, org tenancy.OrgID, r policy.Revision) Status {
	in := policy.Input{Tenant: tenancy.Tenant{Org: tenancy.Org{ID: org}}, Settings: r.Source.Settings, SettingsRevision: r.Number, Files: r.Source.Modules(), SourceSHA: r.SHA256}
	if len(in.Files) == 0 {
		st, err := e.resolver.settingsOf(org.String(), r.Number, &in.Settings)
		if err != nil {
			return Status{State: StateUnavailable, Revision: r.Number, Code: PolicyUnavailable, Cause: err.Error()}
		}
		e.notePlain(st)
		return e.Status(org)
	}
	// The error is in the status, but for a context that ended: then the revision is compiled by the first request.
	_, _ = e.openOrg(ctx, e.hashOf(org), in)
	return e.Status(org)
}

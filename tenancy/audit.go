package tenancy

import (
	"encoding/json"
	"time"
)

// AuditEntry is one administrative act, recorded in the organisation it concerns with both identities: who did it and
// where that person belongs.
type AuditEntry struct {
	ID      string          `json:"id"`
	Org     OrgID           `json:"orgId"`
	Actor   UserID          `json:"actor"`
	HomeOrg OrgID           `json:"homeOrg"` // differs from Org when a superuser acted for it
	Action  string          `json:"action"`  // dotted verb: key.add, settings.patch
	Detail  json.RawMessage `json:"detail,omitempty"`
	At      time.Time       `json:"at"`
}

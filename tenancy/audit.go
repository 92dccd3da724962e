package tenancy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"time"
)

// AuditEntry is one administrative act, recorded in the organisation it concerns with both identities: who did it and
// where that person belongs. No value in it is a secret.
type AuditEntry struct {
	Seq       int64           `json:"seq"` // its number in the organisation's chain, from 1; set by the store
	ID        string          `json:"id"`
	Org       OrgID           `json:"orgId"`
	Actor     UserID          `json:"actor"`
	HomeOrg   OrgID           `json:"homeOrg"`         // differs from Org when a superuser acted for it
	Token     string          `json:"token,omitempty"` // id of the access token it was done with; empty: a person signed in
	Action    string          `json:"action"`          // dotted verb: key.add, settings.patch
	Detail    json.RawMessage `json:"detail,omitempty"`
	Before    json.RawMessage `json:"before,omitempty"` // of what was changed, where it was something
	After     json.RawMessage `json:"after,omitempty"`
	Address   string          `json:"address,omitempty"` // where the request came from
	Agent     string          `json:"agent,omitempty"`   // its User-Agent, at most 256 bytes
	RequestID string          `json:"requestId,omitempty"`
	At        time.Time       `json:"at"` // to the millisecond
}

// AuditHash is the hash of one row of an organisation's chain.
type AuditHash [sha256.Size]byte

// MarshalText writes it in hexadecimal.
func (h AuditHash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// Link is the hash of the entry where prev is that of the entry before, zero for the first: SHA-256 over a version, prev, and each field
// with its length, in the order given here. Another program can compute it from an export.
func (e AuditEntry) Link(prev AuditHash) AuditHash {
	h := sha256.New()
	h.Write([]byte("gateway-audit-1"))
	h.Write(prev[:])
	var n [8]byte
	number := func(v int64) {
		binary.BigEndian.PutUint64(n[:], uint64(v))
		h.Write(n[:])
	}
	number(e.Seq)
	number(e.At.UnixMilli())
	for _, s := range []string{e.Org.String(), e.ID, string(e.Actor), e.HomeOrg.String(), e.Token, e.Action, string(e.Detail), string(e.Before), string(e.After), e.Address, e.Agent, e.RequestID} {
		number(int64(len(s)))
		h.Write([]byte(s))
	}
	return AuditHash(h.Sum(nil))
}

// AuditRow is an entry with its place in the chain.
type AuditRow struct {
	AuditEntry
	Prev AuditHash `json:"prev"`
	Hash AuditHash `json:"hash"`
}

// AuditFault is one row that is not as it was written.
type AuditFault struct {
	Seq  int64  `json:"seq"`
	What string `json:"what"`          // changed, removed, reordered or added
	Was  int64  `json:"was,omitempty"` // the number a reordered row was written under
}

// AuditCheck follows one organisation's chain, row after row.
type AuditCheck struct {
	Rows   int64        `json:"rows"`
	Faults []AuditFault `json:"faults"` // in order, at most 1000

	next     int64
	prev     AuditHash // stored hash of the row before
	gap      bool      // nothing is known of the row before
	suspects []AuditRow
}

const auditFaultsMost = 1000

func (c *AuditCheck) fault(seq int64, what string) {
	if n := len(c.Faults); n < auditFaultsMost && (n == 0 || c.Faults[n-1].Seq != seq) {
		c.Faults = append(c.Faults, AuditFault{Seq: seq, What: what})
	}
}

// Row looks at the next row; they come in the order of their numbers.
func (c *AuditCheck) Row(r AuditRow) {
	if c.next == 0 {
		c.next = 1
	}
	for ; c.next < r.Seq && len(c.Faults) < auditFaultsMost; c.next++ {
		c.fault(c.next, "removed")
		c.gap = true
	}
	switch {
	case r.Link(r.Prev) != r.Hash:
		c.fault(r.Seq, "changed")
		if len(c.suspects) < 100 {
			c.suspects = append(c.suspects, r)
		}
	case !c.gap && r.Prev != c.prev: // it was right after another row than the one that is there now
		c.fault(max(r.Seq-1, 1), "changed")
	}
	c.Rows++
	c.next, c.prev, c.gap = r.Seq+1, r.Hash, false
}

// End says where the chain has to end, and names rows that were only moved. extra is how many rows lie after that end.
func (c *AuditCheck) End(seq int64, hash AuditHash, extra int64) {
	if c.next == 0 {
		c.next = 1
	}
	if c.next == seq+1 && c.prev != hash && seq > 0 {
		c.fault(seq, "changed")
	}
	for ; c.next <= seq && len(c.Faults) < auditFaultsMost; c.next++ {
		c.fault(c.next, "removed")
	}
	for i := range extra {
		c.fault(seq+1+i, "added")
	}
	for _, r := range c.suspects {
		for _, other := range c.suspects {
			moved := r.AuditEntry
			if moved.Seq = other.Seq; r.Seq == other.Seq || moved.Link(r.Prev) != r.Hash {
				continue
			}
			for i := range c.Faults {
				if c.Faults[i].Seq == r.Seq {
					c.Faults[i] = AuditFault{Seq: r.Seq, What: "reordered", Was: other.Seq}
				}
			}
		}
	}
	c.suspects = nil
}

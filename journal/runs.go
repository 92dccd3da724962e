package journal

import (
	"strings"

	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
)

// runsLane begins the names of the lanes of runs; what follows is the organisation.
const runsLane = "#runs "

// noteVersion is the first byte of each payload of a kind that tells of runs; like version, for these alone.
const noteVersion = 1

// What a note is about.
const (
	noteRun      = 1 << iota
	noteDispatch // a side effect
	noteChunk
)

// noteKey is the key of a record about runs: its organisation, for the lane, and what it is about.
func noteKey(org tenancy.OrgID, id string) string { return org.String() + "\x00" + id }

func noteOrg(key string) string {
	org, _, _ := strings.Cut(key, "\x00")
	return org
}

// about names what a note tells of: a run or a side effect, each of which is opened and closed.
func about(n runs.Note) (tenancy.OrgID, string) {
	switch {
	case n.Dispatch != nil:
		return n.Dispatch.Org, n.Dispatch.ID
	case n.Run != nil:
		return n.Run.Org, n.Run.ID
	}
	return tenancy.OrgID{}, ""
}

// Began writes down that a run or a side effect is about to begin. When it returns an error it must not: Unavailable when the disk refuses,
// Conflict when the same is going on already. What a dead process left open is closed at the next Open: a run as interrupted, a side effect as
// indeterminate.
func (j *Journal) Began(n runs.Note) error {
	org, id := about(n)
	return j.say(begun, noteKey(org, id), func(s *scratch) { s.putNote(&n) })
}

// Ended writes down what became of a run or a side effect, as Settled does an event.
func (j *Journal) Ended(n runs.Note) error {
	org, id := about(n)
	return j.say(closed, noteKey(org, id), func(s *scratch) { s.putNote(&n) })
}

// Noted writes down what a run said so far, as Settled does an event.
func (j *Journal) Noted(org tenancy.OrgID, n runs.Note) error {
	return j.say(noted, noteKey(org, ""), func(s *scratch) { s.putNote(&n) })
}

// leftOpen is what is written about a run or a side effect that a dead process left open. The start stands in for the end of a run, so that
// a second replay writes the same.
func leftOpen(n runs.Note) runs.Note {
	if n.Dispatch != nil {
		n.Dispatch.State, n.Dispatch.EndedAt = runs.Indeterminate, n.Dispatch.At
	}
	if n.Run != nil {
		n.Run.Status, n.Run.EndedAt = runs.Interrupted, n.Run.StartedAt
	}
	n.Chunk = nil
	return n
}

func (s *scratch) putNote(n *runs.Note) {
	s.byte(noteVersion)
	what := byte(0)
	if n.Run != nil {
		what |= noteRun
	}
	if n.Dispatch != nil {
		what |= noteDispatch
	}
	if n.Chunk != nil {
		what |= noteChunk
	}
	s.byte(what)
	if r := n.Run; r != nil {
		for _, v := range [...]string{r.ID, r.Org.String(), string(r.User), r.ThreadID, r.ProjectID, r.AskedThread, r.ClientTurnID, r.AskedHash, r.Status} {
			s.text(v)
		}
		s.int(int64(r.LastSeq))
		s.time(r.StartedAt)
		s.time(r.EndedAt)
	}
	if d := n.Dispatch; d != nil {
		for _, v := range [...]string{d.ID, d.RunID, d.Org.String(), string(d.User), d.ThreadID, d.CallID, d.Capability, d.Phase, d.PreviewID, d.ArgsHash, d.State} {
			s.text(v)
		}
		s.time(d.At)
		s.time(d.EndedAt)
		s.text(string(d.ResolvedBy))
		s.time(d.ResolvedAt)
		s.text(d.Note)
	}
	if c := n.Chunk; c != nil {
		s.text(c.RunID)
		s.int(int64(c.First))
		s.int(int64(c.Last))
		s.blob(c.Sealed)
		s.time(c.At)
	}
}

func (r *reader) note() (n runs.Note) {
	if r.byte() != noteVersion {
		r.fail()
	}
	what := r.byte()
	if what&noteRun != 0 {
		n.Run = &runs.Run{ID: r.text(), Org: r.org(), User: tenancy.UserID(r.text()), ThreadID: r.text(), ProjectID: r.text(), AskedThread: r.text(),
			ClientTurnID: r.text(), AskedHash: r.text(), Status: r.text(), LastSeq: int(r.int()), StartedAt: r.time(), EndedAt: r.time()}
	}
	if what&noteDispatch != 0 {
		n.Dispatch = &runs.Dispatch{ID: r.text(), RunID: r.text(), Org: r.org(), User: tenancy.UserID(r.text()), ThreadID: r.text(), CallID: r.text(),
			Capability: r.text(), Phase: r.text(), PreviewID: r.text(), ArgsHash: r.text(), State: r.text(), At: r.time(), EndedAt: r.time(),
			ResolvedBy: tenancy.UserID(r.text()), ResolvedAt: r.time(), Note: r.text()}
	}
	if what&noteChunk != 0 {
		n.Chunk = &runs.Chunk{RunID: r.text(), First: int(r.int()), Last: int(r.int()), Sealed: r.blob(), At: r.time()}
	}
	return n
}

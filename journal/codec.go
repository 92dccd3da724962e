package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// kind is what a record says.
type kind byte

const (
	opened  kind = 1 // key: attempt id; payload: putAttempt
	settled kind = 2 // key: attempt id; payload: putEvent
	said    kind = 3 // key: organisation; payload: putTurn
	applied kind = 4 // key: lane; payload: segment number and end offset up to which the lane is in its database
	begun   kind = 5 // key: organisation and run or side effect; payload: putNote
	closed  kind = 6 // the same
	noted   kind = 7 // the same, without an id
)

// A record on disk is, little endian:
//
//	crc    uint32  CRC-32C of everything after it
//	length uint32  of key and payload together
//	kind   byte
//	keyLen uint16
//	when   int64   Unix nanoseconds
//	key, payload
const headerLen = 4 + 4 + 1 + 2 + 8

// maxBody bounds what a length field may say, so that a damaged one does not ask for the memory of a planet.
const maxBody = 64 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errDamaged is a record whose bytes are not what was written.
var errDamaged = errors.New("the record's checksum does not match")

// header is the fixed part of a record.
type header struct {
	crc    uint32
	length int
	kind   kind
	keyLen int
	when   int64
}

// parseHeader reads a header and reports whether it can be one.
func parseHeader(b []byte) (header, bool) {
	h := header{
		crc:    binary.LittleEndian.Uint32(b),
		length: int(binary.LittleEndian.Uint32(b[4:])),
		kind:   kind(b[8]),
		keyLen: int(binary.LittleEndian.Uint16(b[9:])),
		when:   int64(binary.LittleEndian.Uint64(b[11:])),
	}
	return h, h.kind >= opened && h.kind <= noted && h.length <= maxBody && h.keyLen <= h.length
}

// size is the record's length on disk.
func (h header) size() int64 { return headerLen + int64(h.length) }

// intact checks a whole record.
func intact(rec []byte) bool {
	return len(rec) >= headerLen && crc32.Checksum(rec[4:], castagnoli) == binary.LittleEndian.Uint32(rec)
}

// split cuts an intact record into its key and payload.
func split(rec []byte) (header, string, []byte) {
	h, _ := parseHeader(rec)
	return h, string(rec[headerLen : headerLen+h.keyLen]), rec[headerLen+h.keyLen:]
}

// version is the first byte of each payload of kind opened, settled and said. Who adds a field to one of the three types
// adds it at the end of its put and get functions, raises version, and reads the field only from that version on: records
// of the version before may be on disk when a new gateway starts. A test fills every field by reflection and notices one
// that is forgotten.
const version = 3

// oldest is the first version that is still read.
const oldest = 2

// scratch is a reused buffer for one record. The codec is written out by hand because it is on the path of every request:
// JSON took longer than the writing itself, most of it for quoting prose.
type scratch struct{ b []byte }

// newScratches makes a pool of buffers; one per Journal, so that no state is global.
func newScratches() *sync.Pool {
	return &sync.Pool{New: func() any { return &scratch{b: make([]byte, 0, 4<<10)} }}
}

// begin starts a record with room for its header.
func (s *scratch) begin(key string) {
	var h [headerLen]byte
	s.b = append(append(s.b[:0], h[:]...), key...)
}

// finish fills the header in and returns the record, valid until the scratch is used again.
func (s *scratch) finish(k kind, keyLen int, when int64) ([]byte, error) {
	rec := s.b
	if keyLen > 1<<16-1 || len(rec)-headerLen > maxBody {
		return nil, fmt.Errorf("the record has %d bytes and a key of %d", len(rec), keyLen)
	}
	binary.LittleEndian.PutUint32(rec[4:], uint32(len(rec)-headerLen))
	rec[8] = byte(k)
	binary.LittleEndian.PutUint16(rec[9:], uint16(keyLen))
	binary.LittleEndian.PutUint64(rec[11:], uint64(when))
	binary.LittleEndian.PutUint32(rec, crc32.Checksum(rec[4:], castagnoli))
	return rec, nil
}

func (s *scratch) byte(v byte)   { s.b = append(s.b, v) }
func (s *scratch) int(v int64)   { s.b = binary.AppendVarint(s.b, v) }
func (s *scratch) text(v string) { s.b = append(binary.AppendUvarint(s.b, uint64(len(v))), v...) }

// count writes a length; nil is told apart from empty, so that what comes back is what went in.
func (s *scratch) count(n int, isNil bool) {
	if isNil {
		s.byte(0)
		return
	}
	s.b = binary.AppendUvarint(s.b, uint64(n)+1)
}

func (s *scratch) blob(v []byte) {
	s.count(len(v), v == nil)
	s.b = append(s.b, v...)
}

// time writes a moment to the nanosecond. The zone is not kept: it comes back in UTC.
func (s *scratch) time(v time.Time) {
	if v.IsZero() {
		s.byte(0)
		return
	}
	s.byte(1)
	s.int(v.Unix())
	s.int(int64(v.Nanosecond()))
}

func (s *scratch) putAttempt(a *billing.Attempt) {
	s.byte(version)
	s.text(a.ID)
	s.text(a.RunID)
	s.text(a.Org.String())
	s.text(string(a.User))
	s.text(a.HomeOrg.String())
	s.text(a.ProjectID)
	s.text(a.ThreadID)
	s.text(string(a.Surface))
	s.text(a.Provider)
	s.text(a.Model)
	s.text(a.Requested)
	s.text(a.KeySource)
	s.text(a.KeyID)
	s.int(int64(a.Step))
	s.int(int64(a.Try))
	s.time(a.StartedAt)
	s.int(a.InputHint)
	s.text(a.Token)
	s.text(a.Capability)
}

func (s *scratch) putEvent(e *billing.Event) {
	s.putAttempt(&e.Attempt)
	s.time(e.EndedAt)
	s.text(e.Status)
	s.text(string(e.Basis))
	u := e.Usage
	for _, n := range [...]int64{u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning, u.Searches, e.Delivered} {
		s.int(n)
	}
	if e.Cost == nil {
		s.byte(0)
	} else {
		s.byte(1)
		s.int(int64(*e.Cost))
	}
	s.text(e.PriceRow)
	s.text(e.PriceRev)
	plain := chat.Usage{Input: u.Input, CacheRead: u.CacheRead, CacheWrite5m: u.CacheWrite5m, CacheWrite1h: u.CacheWrite1h, Output: u.Output, Reasoning: u.Reasoning, Searches: u.Searches}
	if u == plain {
		s.blob(nil)
	} else {
		// What few answers have: written whole, and only when there is any.
		raw, err := json.Marshal(u)
		if err != nil { // numbers and strings always marshal
			raw = nil
		}
		s.blob(raw)
	}
	flags := byte(0)
	if e.List != nil {
		flags |= eventListed
	}
	if e.Resolves {
		flags |= eventResolves
	}
	s.byte(flags)
	if e.List != nil {
		s.int(int64(*e.List))
	}
	s.int(int64(e.Billed))
}

// What the flags of an event say.
const (
	eventListed = 1 << iota // the list price follows
	eventResolves
)

func (s *scratch) putTurn(t *transcript.Turn) {
	s.byte(version)
	s.text(t.ID)
	s.text(t.Org.String())
	s.text(string(t.User))
	s.text(t.ProjectID)
	s.text(t.ProjectKind)
	s.text(t.ThreadID)
	s.int(int64(t.Index))
	s.text(string(t.Surface))
	s.text(t.ClientTurnID)
	s.text(t.UserMessage)
	s.text(t.ModelMessage)
	s.count(len(t.Messages), t.Messages == nil)
	for i := range t.Messages {
		m := &t.Messages[i]
		s.text(string(m.Role))
		s.putParts(m.Parts)
	}
	s.blob(t.ToolCalls)
	s.blob(t.ToolResults)
	s.text(t.Model)
	s.text(t.Provider)
	s.text(t.KeySource)
	for _, n := range [...]int64{t.TokensIn, t.TokensOut, t.CacheRead, t.CacheCreation, t.LatencyMS} {
		s.int(n)
	}
	s.text(t.SpineHash)
	s.text(t.RegistryVersion)
	s.text(t.PolicyRevision)
	s.text(t.Status)
	s.blob(t.SealedMap)
	s.time(t.CreatedAt)
	s.count(len(t.Findings), t.Findings == nil)
	for _, f := range t.Findings {
		s.text(f.Entity)
		s.text(f.Position)
		s.text(string(f.Action))
		s.int(int64(f.Count))
	}
}

// What the flags of a part say.
const (
	partFailed = 1 << iota
	partMore   // what follows is there only when it is needed
)

func (s *scratch) putParts(parts []chat.Part) {
	s.count(len(parts), parts == nil)
	for i := range parts {
		p := &parts[i]
		s.text(string(p.Kind))
		s.text(p.Text)
		s.text(p.CallID)
		s.text(p.Name)
		s.blob(p.Input)
		flags := byte(0)
		if p.Failed {
			flags |= partFailed
		}
		more := p.Producer != "" || p.Signature != "" || p.Mark != "" || p.Media != nil || p.Parts != nil
		if more {
			flags |= partMore
		}
		s.byte(flags)
		s.blob(p.Raw)
		if !more {
			continue
		}
		s.text(string(p.Producer))
		s.text(p.Signature)
		s.text(string(p.Mark))
		if p.Media == nil {
			s.byte(0)
		} else {
			s.byte(1)
			for _, v := range [...]string{p.Media.Type, p.Media.Data, p.Media.URL, p.Media.FileID, p.Media.Name, p.Media.Detail} {
				s.text(v)
			}
		}
		s.putParts(p.Parts)
	}
}

// reader reads what scratch wrote; after the first fault it returns zero values and bad is set.
// It keeps the bytes a second time as a string, so that twenty strings of a record are one allocation.
type reader struct {
	b   []byte
	s   string
	bad bool
	v   byte // version of the payload
}

func (r *reader) fail() { r.bad, r.b, r.s = true, nil, "" }

func (r *reader) skip(n int) { r.b, r.s = r.b[n:], r.s[n:] }

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.skip(n)
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.skip(n)
	return v
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.skip(int(n))
	return v
}

// text returns a part of the record's one string; who keeps it for long clones it.
func (r *reader) text() string {
	n := r.uint()
	if n > uint64(len(r.s)) {
		r.fail()
		return ""
	}
	v := r.s[:n]
	r.skip(int(n))
	return v
}

func (r *reader) byte() byte {
	if v := r.take(1); len(v) == 1 {
		return v[0]
	}
	return 0
}

func (r *reader) count() (int, bool) {
	n := r.uint()
	if n == 0 {
		return 0, true
	}
	if n-1 > uint64(len(r.b)) { // every element takes at least one byte
		r.fail()
		return 0, true
	}
	return int(n - 1), false
}

func (r *reader) blob() []byte {
	n, isNil := r.count()
	if isNil {
		return nil
	}
	return r.take(uint64(n))
}

func (r *reader) time() time.Time {
	if r.byte() == 0 {
		return time.Time{}
	}
	sec := r.int()
	return time.Unix(sec, r.int()).UTC()
}

func (r *reader) org() tenancy.OrgID {
	s := r.text()
	if s == "" {
		return tenancy.OrgID{}
	}
	o, err := tenancy.ParseOrgID(s)
	if err != nil {
		r.fail()
	}
	return o
}

func (r *reader) version() {
	if r.v = r.byte(); r.v < oldest || r.v > version {
		r.fail()
	}
}

func (r *reader) attempt() billing.Attempt {
	r.version()
	a := billing.Attempt{ID: r.text(), RunID: r.text(), Org: r.org(), User: tenancy.UserID(r.text()), HomeOrg: r.org(), ProjectID: r.text(),
		ThreadID: r.text(), Surface: chat.Surface(r.text()), Provider: r.text(), Model: r.text(), Requested: r.text(), KeySource: r.text(),
		KeyID: r.text(), Step: int(r.int()), Try: int(r.int()), StartedAt: r.time(), InputHint: r.int()}
	if r.v > 2 {
		a.Token, a.Capability = r.text(), r.text()
	}
	return a
}

func (r *reader) event() billing.Event {
	e := billing.Event{Attempt: r.attempt(), EndedAt: r.time(), Status: r.text(), Basis: billing.Basis(r.text())}
	e.Usage = chat.Usage{Input: r.int(), CacheRead: r.int(), CacheWrite5m: r.int(), CacheWrite1h: r.int(), Output: r.int(), Reasoning: r.int(), Searches: r.int()}
	e.Delivered = r.int()
	if r.byte() == 1 {
		c := billing.Pico(r.int())
		e.Cost = &c
	}
	e.PriceRow, e.PriceRev = r.text(), r.text()
	if raw := r.blob(); raw != nil {
		e.Usage = chat.Usage{}
		if json.Unmarshal(raw, &e.Usage) != nil {
			r.fail()
		}
	}
	if r.v == 2 { // from before there were rate cards
		e.List = e.Cost
		if e.Cost != nil && !e.BYOK() {
			e.Billed = *e.Cost
		}
		return e
	}
	flags := r.byte()
	if flags&eventListed != 0 {
		c := billing.Pico(r.int())
		e.List = &c
	}
	e.Billed, e.Resolves = billing.Pico(r.int()), flags&eventResolves != 0
	return e
}

func (r *reader) turn() transcript.Turn {
	r.version()
	t := transcript.Turn{ID: r.text(), Org: r.org(), User: tenancy.UserID(r.text()), ProjectID: r.text(), ProjectKind: r.text(), ThreadID: r.text(),
		Index: int(r.int()), Surface: chat.Surface(r.text()), ClientTurnID: r.text(), UserMessage: r.text(), ModelMessage: r.text(), Messages: r.messages(),
		ToolCalls: r.blob(), ToolResults: r.blob(), Model: r.text(), Provider: r.text(), KeySource: r.text()}
	t.TokensIn, t.TokensOut, t.CacheRead, t.CacheCreation, t.LatencyMS = r.int(), r.int(), r.int(), r.int(), r.int()
	t.SpineHash, t.RegistryVersion, t.PolicyRevision, t.Status = r.text(), r.text(), r.text(), r.text()
	t.SealedMap, t.CreatedAt = r.blob(), r.time()
	n, isNil := r.count()
	if isNil {
		return t
	}
	t.Findings = make([]redaction.Tally, 0, min(n, 1024))
	for range n {
		f := redaction.Tally{Entity: r.text(), Position: r.text(), Action: redaction.Action(r.text()), Count: int(r.int())}
		if r.bad {
			break
		}
		t.Findings = append(t.Findings, f)
	}
	return t
}

func (r *reader) messages() []chat.Message {
	n, isNil := r.count()
	if isNil {
		return nil
	}
	ms := make([]chat.Message, 0, min(n, 1024))
	for range n {
		m := chat.Message{Role: chat.Role(r.text()), Parts: r.parts(0)}
		if r.bad {
			return nil
		}
		ms = append(ms, m)
	}
	return ms
}

// maxPartDepth is how deep parts may lie within parts: a tool's result holds pictures and text, and nothing holds a result.
const maxPartDepth = 4

func (r *reader) parts(depth int) []chat.Part {
	n, isNil := r.count()
	if isNil {
		return nil
	}
	if depth > maxPartDepth {
		r.fail()
		return nil
	}
	ps := make([]chat.Part, 0, min(n, 1024))
	for range n {
		p := chat.Part{Kind: chat.PartKind(r.text()), Text: r.text(), CallID: r.text(), Name: r.text(), Input: r.blob()}
		flags := r.byte()
		p.Failed, p.Raw = flags&partFailed != 0, r.blob()
		if flags&partMore != 0 {
			p.Producer, p.Signature, p.Mark = chat.Protocol(r.text()), r.text(), chat.TTL(r.text())
			if r.byte() == 1 {
				p.Media = &chat.Media{Type: r.text(), Data: r.text(), URL: r.text(), FileID: r.text(), Name: r.text(), Detail: r.text()}
			}
			p.Parts = r.parts(depth + 1)
		}
		if r.bad {
			return nil
		}
		ps = append(ps, p)
	}
	return ps
}

// decode reads a whole payload with one of the reader's methods; bytes left over are a fault like bytes missing.
func decode[T any](b []byte, get func(*reader) T) (T, error) {
	r := &reader{b: b, s: string(b)}
	v := get(r)
	if r.bad || len(r.b) != 0 {
		var zero T
		return zero, errDamaged
	}
	return v, nil
}

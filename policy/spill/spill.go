// Package spill keeps lines of the decision log in local files while their databases are away: append-only segments, one folder for
// each organisation, sealed as the rows of its database are.
//
// It refuses to know why a database is away, when to try it again, and what a line says.
//
// Invariants: what Add took is on disk when it returns, and comes back from Next, in its order, until Done; bytes of one organisation
// open for it alone, and only where they were written; the files together and those of one organisation never take more than they may;
// what a crash cut off, and what does not open any more, is counted and passed over.
package spill

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

var _ policy.LogSpill = (*Spill)(nil)

// Defaults of Config.
const (
	DefaultBytes   = 256 << 20
	segmentBytes   = 1 << 20
	recordLines    = 256       // of one record
	recordBytes    = 512 << 10 // of its lines, unless one line takes more
	maxRecordBytes = 64 << 20  // what claims to be larger is damage
)

// Config opens a Spill. Zero Bytes mean the default; all else is required.
type Config struct {
	Dir      string
	Sealer   policy.InputSealer
	Bytes    int64           // all files together
	OrgBytes int64           // those of one organisation; 0: a quarter of Bytes
	Report   func(err error) // told of what is damaged
}

// Spill is the files. It is safe for concurrent use, but for Next and Done of one organisation, which go together.
type Spill struct {
	cfg  Config
	lock *os.File

	mu      sync.Mutex
	orgs    map[tenancy.OrgID]*folder
	bytes   int64
	lines   int64
	damaged int64
}

// folder is one organisation's files.
type folder struct {
	dir      string
	segments []*segment // oldest first
	bytes    int64
	read     int64 // where what is not done begins, in the oldest segment
	given    int64 // the bytes Next gave last
	givenHas int64 // and the lines
}

type segment struct {
	no    int64
	size  int64
	lines int64 // not done
}

// Stats is how much lies on disk.
type Stats struct {
	Lines   int64
	Bytes   int64
	Damaged int64 // records that could not be read, since the start
}

// Every segment begins with magic. A record is a header and the sealed lines, which are a JSON list.
const (
	magic      = "gwdecisions1\n"
	headerSize = 12 // bytes of the sealed lines, number of lines, checksum of both and of the sealed lines
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const purpose = "decision-spill"

func (f *folder) path(no int64) string {
	return filepath.Join(f.dir, fmt.Sprintf("%016d.log", no))
}

// recordID names the place of a record, so that sealed bytes open there and nowhere else.
func recordID(no, at int64) string { return fmt.Sprintf("%d-%d", no, at) }

// Open reads what an earlier process left and cuts off what its end left unfinished. Faults are Internal, with the cause.
func Open(c Config) (*Spill, error) {
	const op = "spill.Open"
	if c.Bytes <= 0 {
		c.Bytes = DefaultBytes
	}
	if c.OrgBytes <= 0 {
		c.OrgBytes = max(1, c.Bytes/4)
	}
	if c.Dir == "" || c.Sealer == nil || c.Report == nil {
		return nil, fault.New(fault.Internal, op, "config", "The spill of the decision log needs a folder, a sealer and somebody to report to.")
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, broken(op, err)
	}
	lock, err := lockFile(filepath.Join(c.Dir, "lock"))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, op, "spill_locked", "Another gateway uses this folder for its decisions, or it cannot be locked; give each process a folder of its own.", err)
	}
	s := &Spill{cfg: c, lock: lock, orgs: map[tenancy.OrgID]*folder{}}
	if err := s.open(); err != nil {
		return nil, broken(op, errors.Join(err, lock.Close()))
	}
	return s, nil
}

// open finds what lies in the folder.
func (s *Spill) open() error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		org, err := tenancy.ParseOrgID(e.Name())
		if err != nil || !e.IsDir() {
			continue
		}
		f := &folder{dir: filepath.Join(s.cfg.Dir, e.Name()), read: int64(len(magic))}
		if err := s.scan(f); err != nil {
			return err
		}
		if len(f.segments) > 0 {
			s.orgs[org] = f
		}
	}
	return nil
}

func broken(op string, err error) error {
	return fault.Wrap(fault.Internal, op, "spill_broken", "The files that hold decisions until they reach their database cannot be used; look at the disk.", err)
}

// scan finds the segments of a folder and counts what is in them.
func (s *Spill) scan(f *folder) error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	for _, e := range entries { // by name, which is by number
		no, err := strconv.ParseInt(strings.TrimSuffix(e.Name(), ".log"), 10, 64)
		if err != nil || filepath.Base(f.path(no)) != e.Name() {
			continue
		}
		raw, err := os.ReadFile(f.path(no))
		if err != nil {
			return err
		}
		good, lines := int64(0), int64(0)
		if bytes.HasPrefix(raw, []byte(magic)) {
			good = int64(len(magic))
			for {
				_, n, size, err := record(raw[good:])
				if err != nil {
					break
				}
				good, lines = good+size, lines+int64(n)
			}
		}
		if good < int64(len(raw)) {
			s.damaged++
			s.cfg.Report(fmt.Errorf("%s: the last %d bytes are no whole record", f.path(no), int64(len(raw))-good))
			if err := os.Truncate(f.path(no), good); err != nil {
				return err
			}
		}
		if lines == 0 {
			if err := os.Remove(f.path(no)); err != nil {
				return err
			}
			continue
		}
		f.segments = append(f.segments, &segment{no, good, lines})
		f.bytes += good
		s.bytes += good
		s.lines += lines
	}
	return nil
}

var errCut = errors.New("the record is not whole")

// record reads the first record of raw: its sealed lines, how many they are, and the bytes it takes.
func record(raw []byte) (sealed []byte, lines int, size int64, err error) {
	if len(raw) < headerSize {
		return nil, 0, 0, errCut
	}
	n := int64(binary.LittleEndian.Uint32(raw))
	if n > maxRecordBytes || int64(len(raw)) < headerSize+n {
		return nil, 0, 0, errCut
	}
	sealed = raw[headerSize : headerSize+n]
	if checksum(raw[:8], sealed) != binary.LittleEndian.Uint32(raw[8:]) {
		return nil, 0, 0, errCut
	}
	return sealed, int(binary.LittleEndian.Uint32(raw[4:])), headerSize + n, nil
}

func checksum(head, sealed []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, sealed)
}

// Backlog lists the organisations that have lines here.
func (s *Spill) Backlog() []tenancy.OrgID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []tenancy.OrgID
	for org := range s.orgs {
		out = append(out, org)
	}
	return out
}

// Stats counts.
func (s *Spill) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Lines: s.lines, Bytes: s.bytes, Damaged: s.damaged}
}

// Add writes lines after those that are there, and returns when they are on disk. It takes all of them or none:
// fault.RateLimited with code decision_spill_full when there is no room, Internal when the disk refuses.
func (s *Spill) Add(org tenancy.OrgID, lines []policy.LoggedDecision) error {
	const op = "spill.Add"
	if org.IsZero() {
		return fault.New(fault.Internal, op, "org_missing", "A decision of no organisation was to be kept.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.orgs[org]
	if f == nil {
		f = &folder{dir: filepath.Join(s.cfg.Dir, org.String()), read: int64(len(magic))}
		if err := os.MkdirAll(f.dir, 0o700); err != nil {
			return broken(op, err)
		}
	}
	no, at := int64(1), int64(0)
	if n := len(f.segments); n > 0 {
		no, at = f.segments[n-1].no, f.segments[n-1].size
		if at >= segmentBytes {
			no, at = no+1, 0
		}
	}
	before := at
	var b []byte
	if at == 0 {
		b = append(b, magic...)
	}
	for _, chunk := range chunks(lines) {
		plain, err := json.Marshal(chunk)
		if err != nil {
			return fault.Wrap(fault.Invalid, op, "decision_incomplete", "A decision that cannot be written down was to be kept; tell us the request id.", err)
		}
		sealed, err := s.cfg.Sealer.SealBlob(org, purpose, recordID(no, before+int64(len(b))), plain)
		if err != nil {
			return err
		}
		var head [headerSize]byte
		binary.LittleEndian.PutUint32(head[:], uint32(len(sealed)))
		binary.LittleEndian.PutUint32(head[4:], uint32(len(chunk)))
		binary.LittleEndian.PutUint32(head[8:], checksum(head[:8], sealed))
		b = append(append(b, head[:]...), sealed...)
	}
	size := int64(len(b))
	if s.bytes+size > s.cfg.Bytes || f.bytes+size > s.cfg.OrgBytes {
		return fault.New(fault.RateLimited, op, "decision_spill_full", "The disk space for decisions that wait for their database is used up.")
	}
	if err := appendTo(f.path(no), before, b); err != nil {
		return broken(op, err)
	}
	if before == 0 {
		f.segments = append(f.segments, &segment{no: no})
	}
	last := f.segments[len(f.segments)-1]
	last.size, last.lines = last.size+size, last.lines+int64(len(lines))
	f.bytes += size
	s.bytes += size
	s.lines += int64(len(lines))
	s.orgs[org] = f
	return nil
}

// chunks are the lines of each record.
func chunks(lines []policy.LoggedDecision) [][]policy.LoggedDecision {
	var out [][]policy.LoggedDecision
	from, size := 0, 0
	for i, l := range lines {
		if i > from && (i-from == recordLines || size+len(l.Input) > recordBytes) {
			out, from, size = append(out, lines[from:i]), i, 0
		}
		size += len(l.Input)
	}
	if from < len(lines) {
		out = append(out, lines[from:])
	}
	return out
}

// appendTo writes b at the end of a file that has size bytes, and leaves the file as it was when that fails.
func appendTo(path string, size int64, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, size)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		err = errors.Join(err, f.Truncate(size))
	}
	return errors.Join(err, f.Close())
}

// Next returns the oldest lines that are not done, nil when there are none, and how many were passed over because they cannot be read.
// Until Done it returns the same again, or more. Faults are Internal.
func (s *Spill) Next(org tenancy.OrgID) (lines []policy.LoggedDecision, lost int, err error) {
	const op = "spill.Next"
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		f := s.orgs[org]
		if f == nil {
			return nil, lost, nil
		}
		var bad error
		if lines, bad, err = s.give(org, f); err != nil {
			return nil, lost, broken(op, err)
		}
		if len(lines) > 0 {
			return lines, lost, nil
		}
		// The oldest record is damaged. One that is whole and does not open is passed over; where the one after a broken one begins
		// nobody knows, so the rest of its file goes with it.
		s.damaged++
		s.cfg.Report(fmt.Errorf("%s at %d: %w", f.path(f.segments[0].no), f.read, bad))
		if f.given == 0 {
			f.given, f.givenHas = f.segments[0].size-f.read, f.segments[0].lines
		}
		lost += int(f.givenHas)
		if err := s.pass(org, f); err != nil {
			return nil, lost, broken(op, err)
		}
	}
}

// give reads records of the oldest segment until they are as many lines as a record may have. When the first cannot be read there are
// no lines, and bad says why.
func (s *Spill) give(org tenancy.OrgID, f *folder) (lines []policy.LoggedDecision, bad, err error) {
	seg := f.segments[0]
	raw, err := readAt(f.path(seg.no), f.read, seg.size-f.read)
	if err != nil {
		return nil, nil, err
	}
	f.given, f.givenHas = 0, 0
	for f.given < int64(len(raw)) {
		sealed, n, size, bad := record(raw[f.given:])
		if bad != nil || len(lines) > 0 && len(lines)+n > recordLines {
			return lines, bad, nil
		}
		var more []policy.LoggedDecision
		plain, bad := s.cfg.Sealer.OpenBlob(org, purpose, recordID(seg.no, f.read+f.given), sealed)
		if bad == nil {
			bad = json.Unmarshal(plain, &more)
		}
		if bad != nil && len(lines) > 0 {
			return lines, nil, nil // it is the first of the next call
		}
		f.given, f.givenHas = f.given+size, f.givenHas+int64(n)
		if bad != nil {
			return nil, bad, nil
		}
		lines = append(lines, more...)
	}
	return lines, errCut, nil
}

func readAt(path string, from, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	raw := make([]byte, n)
	got, err := f.ReadAt(raw, from)
	if errors.Is(err, io.EOF) {
		err = nil // what is missing is no whole record
	}
	return raw[:got], err
}

// Done forgets what Next returned last. Faults are Internal.
func (s *Spill) Done(org tenancy.OrgID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.orgs[org]
	if f == nil || f.given == 0 {
		return nil
	}
	if err := s.pass(org, f); err != nil {
		return broken("spill.Done", err)
	}
	return nil
}

// pass goes on behind what was given, and removes a segment that is done. A crash in between gives the same lines again, which their
// database takes once.
func (s *Spill) pass(org tenancy.OrgID, f *folder) error {
	seg := f.segments[0]
	f.read, seg.lines, s.lines = f.read+f.given, seg.lines-f.givenHas, s.lines-f.givenHas
	f.given, f.givenHas = 0, 0
	if f.read < seg.size {
		return nil
	}
	if err := os.Remove(f.path(seg.no)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f.segments, f.read = f.segments[1:], int64(len(magic))
	f.bytes -= seg.size
	s.bytes -= seg.size
	if len(f.segments) == 0 {
		delete(s.orgs, org)
	}
	return nil
}

// Close lets another process use the folder.
func (s *Spill) Close() error { return s.lock.Close() }

package journal

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
)

// magic starts every segment and names the format's version.
const magic = "GWJRNL01"

// file is what the segment that is written to needs of a file. Reading opens the file anew, so that a long backlog does
// not hold a descriptor for each segment.
type file interface {
	io.WriterAt
	// Sync makes what was written survive a power cut.
	Sync() error
	Close() error
}

// diskFile is a file on a disk.
type diskFile struct{ *os.File }

// Sync flushes data and size, but not times.
func (f diskFile) Sync() error { return datasync(f.File) }

var _ file = diskFile{}

// createFile makes a new segment file that did not exist.
func createFile(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

// segment is one file of records. All fields but no, path and f are guarded by Journal.mu.
type segment struct {
	no      uint64
	path    string
	f       file  // nil: not written by this process
	shut    bool  // f is closed
	size    int64 // bytes of good records, magic included
	pending int   // settled and said records not yet in their database
	open    int   // attempts opened here that are not settled
	gone    bool  // deleted
}

// position is a place after a record.
type position struct {
	segment uint64
	end     int64
}

func (p position) after(q position) bool {
	return p.segment > q.segment || p.segment == q.segment && p.end > q.end
}

// scan calls fn for each record from an offset on with its header, key and offset, without its payload, until fn returns
// false.
func (s *segment) scan(from int64, fn func(h header, key string, off int64) bool) error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	return scan(f, from, s.size, fn)
}

// close gives the descriptor back. The caller holds Journal.mu.
func (s *segment) close() {
	if s.f != nil && !s.shut {
		s.shut = true
		_ = s.f.Close()
	}
}

func scan(f io.ReaderAt, from, to int64, fn func(h header, key string, off int64) bool) error {
	r := bufio.NewReaderSize(io.NewSectionReader(f, from, to-from), 64<<10)
	var hb [headerLen]byte
	var key []byte
	for off := from; off < to; {
		if _, err := io.ReadFull(r, hb[:]); err != nil {
			return err
		}
		h, ok := parseHeader(hb[:])
		if !ok {
			return errDamaged
		}
		key = append(key[:0], make([]byte, h.keyLen)...)
		if _, err := io.ReadFull(r, key); err != nil {
			return err
		}
		if _, err := r.Discard(h.length - h.keyLen); err != nil {
			return err
		}
		if !fn(h, string(key), off) {
			return nil
		}
		off += h.size()
	}
	return nil
}

// verify reads a whole segment. It calls fn for each intact record, skips a record whose checksum is wrong but whose end
// is followed by another record, and stops at bytes that cannot be a record. It returns where the good part ends and how
// many records it skipped.
func verify(data []byte, fn func(rec []byte, off int64)) (good int64, skipped int) {
	if len(data) < len(magic) || string(data[:len(magic)]) != magic {
		return 0, 0
	}
	off := len(magic)
	for off+headerLen <= len(data) {
		h, ok := parseHeader(data[off:])
		if !ok || off+int(h.size()) > len(data) {
			break
		}
		end := off + int(h.size())
		rec := data[off:end:end]
		if intact(rec) {
			fn(rec, int64(off))
		} else if !followed(data[end:]) {
			break
		} else {
			skipped++
		}
		off = end
	}
	return int64(off), skipped
}

// followed reports whether the bytes start with an intact record: only then was the length before them true.
func followed(data []byte) bool {
	if len(data) < headerLen {
		return false
	}
	h, ok := parseHeader(data)
	return ok && h.size() <= int64(len(data)) && intact(data[:h.size()])
}

const segmentSuffix = ".seg"

func segmentPath(dir string, no uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%012d%s", no, segmentSuffix))
}

// listSegments returns the numbers of the segments in a directory, ascending.
func listSegments(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var nos []uint64
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), segmentSuffix); ok {
			if no, err := strconv.ParseUint(name, 10, 64); err == nil {
				nos = append(nos, no)
			}
		}
	}
	sort.Slice(nos, func(i, j int) bool { return nos[i] < nos[j] })
	return nos, nil
}

// lockDir takes the directory for this process; the lock ends with the process, however it ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// syncDir makes a created or removed name survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

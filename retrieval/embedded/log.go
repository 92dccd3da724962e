package embedded

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
)

// A log is a first frame that says what it holds, then one frame for each Upsert or Delete:
//
//	length u32 | CRC-32C of the payload u32 | payload
//
// The payload of the first is the header as JSON. The others are entries one after another, an operation byte and
//
//	put:    chunk length u32, chunk as JSON, scale f32, one byte for each dimension
//	remove: id length u32, id
//
// Numbers are little-endian. A frame is whole or not there: one cut short at the end is taken off when the log is opened. A
// bad one with more behind it is damage, and an error.
const (
	format    = "gateway chunks 1"
	frameHead = 8
	maxFrame  = 1 << 30

	opPut    = 1
	opRemove = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	Format string          `json:"format"`
	Space  retrieval.Space `json:"space"`
}

var errDamaged = errors.New("the log is damaged")

func frame(payload []byte) []byte {
	out := make([]byte, frameHead, frameHead+len(payload))
	binary.LittleEndian.PutUint32(out, uint32(len(payload)))
	binary.LittleEndian.PutUint32(out[4:], crc32.Checksum(payload, castagnoli))
	return append(out, payload...)
}

// quantised is a vector of length 1 in one byte per dimension: number i is scale times bytes[i].
type quantised struct {
	scale float32
	bytes []int8
}

func quantise(v []float32) quantised {
	var norm, top float64
	for _, x := range v {
		norm += float64(x) * float64(x)
		top = max(top, math.Abs(float64(x)))
	}
	q := quantised{float32(top / 127 / math.Sqrt(norm)), make([]int8, len(v))}
	for i, x := range v {
		q.bytes[i] = int8(math.RoundToEven(float64(x) / top * 127))
	}
	return q
}

func appendPut(b []byte, chunk []byte, q quantised) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, opPut), uint32(len(chunk)))
	b = binary.LittleEndian.AppendUint32(append(b, chunk...), math.Float32bits(q.scale))
	for _, x := range q.bytes {
		b = append(b, byte(x))
	}
	return b
}

func appendRemove(b []byte, id string) []byte {
	return append(binary.LittleEndian.AppendUint32(append(b, opRemove), uint32(len(id))), id...)
}

// entry is one change. at and size say where the chunk's JSON is, from the start of the payload.
type entry struct {
	remove   string
	chunk    retrieval.Chunk
	at, size int
	vector   quantised
}

// entries reads a payload; dims is the length of its vectors.
func entries(payload []byte, dims int, each func(entry)) error {
	for at := 0; at < len(payload); {
		op := payload[at]
		if len(payload)-at < 5 {
			return errDamaged
		}
		size := int(binary.LittleEndian.Uint32(payload[at+1:]))
		at += 5
		if size < 0 || size > len(payload)-at {
			return errDamaged
		}
		body := payload[at : at+size]
		switch op {
		case opRemove:
			each(entry{remove: string(body)})
			at += size
		case opPut:
			e := entry{at: at, size: size, vector: quantised{bytes: make([]int8, dims)}}
			if at += size; len(payload)-at < 4+dims {
				return errDamaged
			}
			if err := json.Unmarshal(body, &e.chunk); err != nil {
				return errors.Join(errDamaged, err)
			}
			e.vector.scale = math.Float32frombits(binary.LittleEndian.Uint32(payload[at:]))
			for i := range dims {
				e.vector.bytes[i] = int8(payload[at+4+i])
			}
			each(e)
			at += 4 + dims
		default:
			return errDamaged
		}
	}
	return nil
}

// replay reads a log of size bytes and returns where its last whole frame ends. at in what each gets is the frame's payload's place in the file. A log whose
// first frame is not whole ends at 0: it was being made.
func replay(f io.ReaderAt, size int64, space retrieval.Space, each func(at int64, e entry)) (int64, error) {
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, size), 1<<20)
	var end int64
	for first := true; ; first = false {
		var head [frameHead]byte
		if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return end, nil
		} else if err != nil {
			return 0, err
		}
		n := int64(binary.LittleEndian.Uint32(head[:]))
		if end+frameHead+n > size {
			return end, nil
		}
		if n > maxFrame {
			return 0, errDamaged
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(r, payload); err != nil {
			return 0, err
		}
		if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
			if end+frameHead+n == size { // the file's size reached the disk before its end did
				return end, nil
			}
			return 0, fmt.Errorf("%w: at byte %d", errDamaged, end)
		}
		if first {
			var h header
			if err := json.Unmarshal(payload, &h); err != nil || h.Format != format {
				return 0, errors.Join(errDamaged, err)
			}
			if h.Space != space {
				return 0, fault.Wrap(fault.Conflict, "embedded.replay", "space_mismatch", "This collection was filled by another embedder. Delete it and ingest again.",
					fmt.Errorf("%v, not %v", h.Space, space))
			}
		} else {
			base := end + frameHead
			if err := entries(payload, space.Dims, func(e entry) { each(base, e) }); err != nil {
				return 0, fmt.Errorf("at byte %d: %w", end, err)
			}
		}
		end += frameHead + n
	}
}

// create makes the file of a log that holds nothing, under its final name only when it is on disk.
func create(path string, space retrieval.Space, write func(*bufio.Writer) error) error {
	head, err := json.Marshal(header{format, space})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	_, err = w.Write(frame(head))
	if err == nil && write != nil {
		err = write(w)
	}
	if err = errors.Join(err, w.Flush(), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return os.Rename(path+".new", path)
}

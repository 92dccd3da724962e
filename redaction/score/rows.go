package score

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"strconv"

	"github.com/lossless-group/gateway/fault"
)

// Row is one labelled text. Offsets are bytes.
type Row struct {
	Entity  string // what the row is about; "" in the other formats
	Rule    string // which rule of a secrets scanner it is a sample of
	Kind    string // positive or negative; context and count_only rows have no spans but hold a value
	Tier    string // weak: the value alone proves nothing
	Context string // a word that makes a weak value count
	Text    string
	Spans   []Span
}

// Span is a labelled range.
type Span struct {
	Start, End int
	Entity     string
}

// UnmarshalJSON takes a pair of offsets or an object with start, end and entity.
func (s *Span) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '[' {
		var pair [2]int
		if err := json.Unmarshal(raw, &pair); err != nil {
			return err
		}
		s.Start, s.End = pair[0], pair[1]
		return nil
	}
	var o struct {
		Start  int    `json:"start"`
		End    int    `json:"end"`
		Entity string `json:"entity"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return err
	}
	*s = Span{o.Start, o.End, o.Entity}
	return nil
}

// maxLine bounds one row of a file in bytes.
const maxLine = 4 << 20

// Read reads rows, one JSON object a line, plain or gzipped. Which of the three formats a row has is told by its fields: "rule" for
// secrets, "entity" for values of one entity, neither for sentences whose spans name their entities. A line that is no such object,
// or a span outside its text, is a fault of kind Invalid that names the line.
func Read(r io.Reader) ([]Row, error) {
	const op = "score.Read"
	in := bufio.NewReader(r)
	if magic, err := in.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, op, "unreadable_rows", "The file is not valid gzip; compress it again.", err)
		}
		in = bufio.NewReader(z)
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	var out []Row
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var row Row
		err := json.Unmarshal(line, &row)
		bad := err != nil
		for _, s := range row.Spans {
			bad = bad || s.Start < 0 || s.End < s.Start || s.End > len(row.Text)
		}
		if bad {
			return nil, fault.Wrap(fault.Invalid, op, "unreadable_rows", "Line "+strconv.Itoa(n)+" is not a labelled row; each line is a JSON object with text and spans.", err)
		}
		out = append(out, row)
	}
	if err := lines.Err(); err != nil {
		return nil, fault.Wrap(fault.Invalid, op, "unreadable_rows", "The file could not be read to its end; check that it is complete.", err)
	}
	return out, nil
}

package redaction

import "strings"

// Bounds of tables in text: the bytes of a line and of the name of a column, and how many columns.
const (
	maxRow     = 4096
	maxColumn  = 40
	maxColumns = 32
)

// table is what is known of the table the scan is in: rows of CSV or TSV, or of Markdown, below a line that names the columns. It
// grows with the scan, so every line is read once.
type table struct {
	top, bottom int  // the block of lines that have as many columns each; bottom is where the line behind it begins
	rows        int  // lines of the block
	head        int  // the line that names the columns
	delimiter   byte // between columns
	n           int  // of columns
	columns     [maxColumns]entitySet
	union       entitySet // of columns

	row, at, column int // the line at hand, how far it was read, and which column that was
}

// begin forgets the table.
func (t *table) begin() {
	t.top, t.bottom, t.rows, t.head, t.n, t.union, t.row, t.at, t.column = 0, 0, 0, 0, 0, entitySet{}, 0, 0, 0
}

// header returns the entities that the name of the column is about in which the value at from stands; empty outside of tables.
func (sc *scanner) header(s string, from int) entitySet {
	k := from
	for k > 0 && strings.IndexByte(" \"'(+", s[k-1]) >= 0 {
		k--
	}
	if k > 0 && strings.IndexByte("|\t;,\n", s[k-1]) < 0 { // in the middle of a cell, or of a sentence
		return entitySet{}
	}
	t := &sc.table
	if from >= t.bottom && !sc.follow(s, from) {
		return entitySet{}
	}
	if t.rows < 2 || t.union.empty() {
		return entitySet{}
	}
	if from < t.at || t.row > from {
		t.row = strings.LastIndexByte(s[:from], '\n') + 1
		t.at, t.column = t.row, 0
	} else if k := strings.LastIndexByte(s[t.at:from], '\n'); k >= 0 {
		t.row = t.at + k + 1
		t.at, t.column = t.row, 0
	}
	if t.row <= t.head {
		return entitySet{}
	}
	t.column += delimiters(s[t.row:from], t.at-t.row, t.delimiter)
	t.at = from
	if t.column >= t.n {
		return entitySet{}
	}
	return t.columns[t.column]
}

// follow makes the block that holds from the one at hand. It reports false where no block does.
func (sc *scanner) follow(s string, from int) bool {
	t := &sc.table
	done := t.bottom // lines above it are known
	for t.rows > 0 && t.bottom <= from {
		end := lineEnd(s, t.bottom)
		if n, d := columnsOf(s[t.bottom:end]); n != t.n || d != t.delimiter {
			break
		}
		t.rows++
		t.bottom = min(len(s), end+1)
		if end == len(s) {
			t.bottom = len(s) + 1
		}
	}
	if from < t.bottom {
		return true
	}
	done = max(done, t.bottom)
	start := strings.LastIndexByte(s[:from], '\n') + 1
	end := lineEnd(s, from)
	n, d := columnsOf(s[start:end])
	t.begin()
	t.top, t.bottom, t.rows, t.n, t.delimiter = start, end+1, 1, n, d
	if n < 2 {
		t.rows = 0
		return false
	}
	for t.top > done {
		above := strings.LastIndexByte(s[:t.top-1], '\n') + 1
		if m, e := columnsOf(s[above : t.top-1]); above < done || m != n || e != d {
			break
		}
		t.top = above
		t.rows++
	}
	// A sentence before the table may have as many commas.
	for t.head = t.top; ; t.head = lineEnd(s, t.head) + 1 {
		t.name(s[t.head:lineEnd(s, t.head)])
		if !t.union.empty() || t.head >= start || t.rows < 2 || strings.Count(s[t.top:t.head], "\n") >= maxHeads {
			return true
		}
	}
}

// maxHeads is how many lines of a block are looked through for the names of its columns, but for the first.
const maxHeads = 2

// name reads what a line calls its n columns.
func (t *table) name(line string) {
	for i := range t.n {
		cell := line[:len(line)-len(behindCell(line, t.delimiter))]
		line = strings.TrimPrefix(line[len(cell):], string(rune(t.delimiter)))
		set := entitySet{}
		if len(cell) <= maxColumn && digitsIn(cell) < 4 && strings.IndexByte(cell, '@') < 0 {
			set = words.mentioned(cell, 0, len(cell))
		}
		t.columns[i] = set
		t.union = t.union.or(set)
	}
}

// behindCell is the line from the end of its first cell on.
func behindCell(line string, d byte) string {
	quoted := false
	for i := range len(line) {
		if line[i] == '"' && (d == ',' || d == ';') {
			quoted = !quoted
		}
		if line[i] == d && !quoted {
			return line[i:]
		}
	}
	return ""
}

func lineEnd(s string, i int) int {
	if k := strings.IndexByte(s[i:], '\n'); k >= 0 {
		return i + k
	}
	return len(s)
}

// columnsOf returns how many columns a line has, 0 for one that is in no table, and what parts them.
func columnsOf(line string) (n int, delimiter byte) {
	if len(line) > maxRow {
		return 0, 0
	}
	for _, d := range []byte("|\t;,") {
		if n := delimiters(line, 0, d); n > 0 {
			if n+1 > maxColumns {
				return 0, 0
			}
			return n + 1, d
		}
	}
	return 0, 0
}

// delimiters counts the delimiters in line[from:] that are not in double quotes.
func delimiters(line string, from int, d byte) (n int) {
	if d != ',' && d != ';' || strings.IndexByte(line, '"') < 0 {
		return strings.Count(line[from:], string(rune(d)))
	}
	quoted := false
	for i := range len(line) {
		switch line[i] {
		case '"':
			quoted = !quoted
		case d:
			if !quoted && i >= from {
				n++
			}
		}
	}
	return n
}

func digitsIn(s string) (n int) {
	for i := range len(s) {
		if isDigit(s[i]) {
			n++
		}
	}
	return n
}

package export

import (
	"io"
	"math/bits"
	"slices"

	"github.com/parquet-go/parquet-go"
)

const (
	// parquetGroup is how many rows are kept until they are written.
	parquetGroup = 20_000
	// parquetBatch is how many rows are handed over together.
	parquetBatch = 64

	decimalBytes  = 16
	decimalDigits = 38
	moneyScale    = 12
	priceScale    = 18
)

// parquetEncoder writes Parquet, zstd. Columns are in the order of their names, as the library has it.
type parquetEncoder struct {
	w    *parquet.GenericWriter[any]
	cols []column // in the order of the file
	rows []parquet.Row
	text []byte // what values of the batch point into
}

func newParquet(cols []column, w io.Writer) (*parquetEncoder, error) {
	group := parquet.Group{}
	for _, c := range cols {
		group[c.name] = parquet.Optional(parquetNode(c))
	}
	schema := parquet.NewSchema("row", group)
	p := &parquetEncoder{}
	for _, path := range schema.Columns() {
		p.cols = append(p.cols, cols[slices.IndexFunc(cols, func(c column) bool { return c.name == path[0] })])
	}
	p.w = parquet.NewGenericWriter[any](w, schema, parquet.Compression(&parquet.Zstd), parquet.MaxRowsPerRowGroup(parquetGroup), parquet.PageBufferSize(64<<10), parquet.DataPageStatistics(false),
		parquet.CreatedBy("gateway", "1", ""))
	for range parquetBatch {
		p.rows = append(p.rows, make(parquet.Row, 0, len(cols)))
	}
	p.rows = p.rows[:0]
	return p, nil
}

func parquetNode(c column) parquet.Node {
	switch c.kind {
	case integer:
		return parquet.Encoded(parquet.Int(64), &parquet.Plain)
	case money:
		return parquet.Encoded(parquet.Decimal(moneyScale, decimalDigits, parquet.FixedLenByteArrayType(decimalBytes)), &parquet.Plain)
	case price:
		return parquet.Encoded(parquet.Decimal(priceScale, decimalDigits, parquet.FixedLenByteArrayType(decimalBytes)), &parquet.RLEDictionary)
	case moment:
		return parquet.Encoded(parquet.Timestamp(parquet.Millisecond), &parquet.Plain)
	}
	if c.many {
		return parquet.Encoded(parquet.String(), &parquet.Plain)
	}
	return parquet.Encoded(parquet.String(), &parquet.RLEDictionary)
}

func (p *parquetEncoder) row(v []value) error {
	p.rows = p.rows[:len(p.rows)+1]
	row := p.rows[len(p.rows)-1][:0]
	for i := range p.cols {
		c := &p.cols[i]
		x := &v[c.at]
		if !x.ok {
			row = append(row, parquet.NullValue().Level(0, 0, i))
			continue
		}
		var pv parquet.Value
		switch c.kind {
		case integer, moment:
			pv = parquet.Int64Value(x.n)
		case money:
			pv = parquet.FixedLenByteArrayValue(p.decimal(x.n, 0))
		case price:
			pv = parquet.FixedLenByteArrayValue(p.decimal(x.n, priceScale-x.scale))
		default:
			at := len(p.text)
			p.text = append(p.text, x.s...)
			pv = parquet.ByteArrayValue(p.text[at:])
		}
		row = append(row, pv.Level(0, 1, i))
	}
	p.rows[len(p.rows)-1] = row
	if len(p.rows) == parquetBatch {
		return p.flush()
	}
	return nil
}

// decimal is n * 10^zeros as a big-endian number in two's complement.
func (p *parquetEncoder) decimal(n int64, zeros uint8) []byte {
	u := uint64(n)
	if n < 0 {
		u = -u
	}
	var hi, lo uint64 = 0, u
	if zeros > 0 {
		factor := uint64(1)
		for range zeros {
			factor *= 10
		}
		hi, lo = bits.Mul64(u, factor)
	}
	if n < 0 {
		var carry uint64
		lo, carry = bits.Add64(^lo, 1, 0)
		hi = ^hi + carry
	}
	at := len(p.text)
	for s := 56; s >= 0; s -= 8 {
		p.text = append(p.text, byte(hi>>s))
	}
	for s := 56; s >= 0; s -= 8 {
		p.text = append(p.text, byte(lo>>s))
	}
	return p.text[at:]
}

func (p *parquetEncoder) flush() error {
	if len(p.rows) == 0 {
		return nil
	}
	_, err := p.w.WriteRows(p.rows)
	p.rows, p.text = p.rows[:0], p.text[:0]
	return err
}

func (p *parquetEncoder) close() error {
	if err := p.flush(); err != nil {
		return err
	}
	return p.w.Close()
}

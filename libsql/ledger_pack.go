package libsql

import (
	"database/sql"
	"math"
	"strings"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// packedWords is where the ids of an event's words begin among its packed numbers, packedRest where the others do.
const (
	packedWords   = 1
	packedRest    = packedWords + len(eventWordColumns)
	packedNumbers = packedRest + 21
)

// packedEvent is what scanPacked reads of usage_event e, with the ids of its words; at is the column that says when it is booked. Every column of
// a row costs the driver several locks and an allocation, so that an event comes as one text, which takes less than half the time: numbers, the
// lengths of its texts, and the texts.
func packedEvent(at string) string {
	cols := []string{"e.run_len"}
	for _, c := range eventWordColumns {
		cols = append(cols, "e."+c)
	}
	cols = append(cols, "e.step", "e.try", "e.started_ms", "e.took_ms", "e.input_hint", "e.t_in", "e.t_cr", "e.t_w5", "e.t_w1", "e.t_out", "e.t_reason", "e.searches", "e.delivered",
		"coalesce(e.cost_pico, 'x')", "coalesce(e.list_d, 'x')", "e.billed_d", "e.unpriced", "e."+at, "octet_length(e.id)", "coalesce(octet_length(e.run), 'x')", "coalesce(octet_length(e.more), 'x')",
		"e.id || coalesce(e.run, '') || coalesce(e.more, '')")
	return "concat_ws(' ', " + strings.Join(cols, ", ") + ")"
}

// scanPacked reads the column of packedEvent: an event without its words, their ids, and when it is booked.
func scanPacked(rs *sql.Rows, org tenancy.OrgID, words *eventWordSet[int64]) (e billing.Event, booked int64, err error) {
	var packed string
	if err := rs.Scan(&packed); err != nil {
		return e, 0, err
	}
	var n [packedNumbers]int64
	var null [packedNumbers]bool
	texts, ok := unpack(packed, &n, &null)
	v, nulls := n[packedRest:], null[packedRest:]
	id, run, more := v[18], v[19], v[20]
	if !ok || id < 0 || run < 0 || more < 0 || id+run+more != int64(len(texts)) {
		return e, 0, fault.New(fault.Internal, "libsql.scanPacked", "event_unreadable", "An event of the ledger could not be read. Keep the database as it is for whoever looks into it.")
	}
	copy(words[:], n[packedWords:])
	// The event keeps the text it came as, of which its id and counts are most.
	e.ID = texts[:id]
	u := &e.Usage
	e.Step, e.Try, e.InputHint = int(v[0]), int(v[1]), v[4]
	u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning, u.Searches, e.Delivered = v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12]
	p := eventParts{
		runLen: n[0], started: v[2], took: v[3], billed: v[15], unpriced: v[16],
		cost: sql.NullInt64{Int64: v[13], Valid: !nulls[13]}, list: sql.NullInt64{Int64: v[14], Valid: !nulls[14]},
		run: sql.NullString{String: texts[id : id+run], Valid: !nulls[19]}, more: sql.NullString{String: texts[id+run:], Valid: !nulls[20]},
	}
	return e, v[17], p.finish(&e, org)
}

// unpack reads whole numbers with a space after each, and returns what follows; x is null. ok is false where there is something else.
func unpack(s string, n *[packedNumbers]int64, null *[packedNumbers]bool) (rest string, ok bool) {
	at := 0
	for i := range n {
		if at < len(s) && s[at] == 'x' {
			null[i] = true
			at++
		} else {
			minus := at < len(s) && s[at] == '-'
			if minus {
				at++
			}
			first := at
			var v uint64
			for ; at < len(s) && '0' <= s[at] && s[at] <= '9'; at++ {
				if v > math.MaxInt64/10 {
					return "", false
				}
				v = v*10 + uint64(s[at]-'0')
			}
			if at == first || v > math.MaxInt64+1 || v > math.MaxInt64 && !minus {
				return "", false
			}
			if n[i] = int64(v); minus {
				n[i] = -n[i]
			}
		}
		if at >= len(s) || s[at] != ' ' {
			return "", false
		}
		at++
	}
	return s[at:], true
}

package libsql

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// daySeconds turns a time into its UTC day.
const daySeconds = 24 * 60 * 60

// putFindings writes what redaction found in a turn; a turn that is written again replaces its counts.
func putFindings(ctx context.Context, c *sql.Conn, t transcript.Turn) error {
	if len(t.Findings) == 0 {
		return nil
	}
	args := make([]any, 0, 6*len(t.Findings))
	for _, f := range t.Findings {
		args = append(args, t.ID, t.CreatedAt.Unix()/daySeconds, f.Entity, f.Position, string(f.Action), f.Count)
	}
	_, err := c.ExecContext(ctx, "INSERT INTO redaction_findings (turn_id, day, entity, position, action, n) VALUES (?, ?, ?, ?, ?, ?)"+
		strings.Repeat(", (?, ?, ?, ?, ?, ?)", len(t.Findings)-1)+" ON CONFLICT (turn_id, entity, position, action) DO UPDATE SET day = excluded.day, n = excluded.n", args...)
	return err
}

// Findings sums what redaction found in an organisation's turns from the day of from to the day of to, both in it, UTC: per day, entity,
// position and action, oldest day first. fault.NotFound when the organisation is unknown.
func (t *Turns) Findings(ctx context.Context, org tenancy.OrgID, from, to time.Time) ([]redaction.DayTally, error) {
	const op = "libsql.Turns.Findings"
	out := []redaction.DayTally{}
	err := t.tenants.with(ctx, op, org, func(db *database) error {
		return db.rows(ctx, op, func(rs *sql.Rows) error {
			var day int64
			var f redaction.DayTally
			if err := rs.Scan(&day, &f.Entity, &f.Position, &f.Action, &f.Count); err != nil {
				return err
			}
			f.Day = time.Unix(day*daySeconds, 0).UTC().Format(time.DateOnly)
			out = append(out, f)
			return nil
		}, "SELECT day, entity, position, action, sum(n) FROM redaction_findings WHERE day BETWEEN ? AND ? GROUP BY day, entity, position, action ORDER BY day, entity, position, action",
			from.Unix()/daySeconds, to.Unix()/daySeconds)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

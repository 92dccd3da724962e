package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// Decisions keeps the decision log, in each organisation's own database.
type Decisions struct{ tenants *tenants }

const (
	decisionColumns    = "id, at_ms, action, flags, user_id, role, model, capability, run_id, codes, revision, us, weight, input, shadow, sealed"
	maxDecisionPage    = 1000 // a page that a preview of a policy's effect needs at once
	decisionsPerStep   = 500  // deleted in one transaction
	decisionsPerInsert = 100
	maxSealedInput     = policy.MaxDecisionInputBytes + 256 // with what sealing adds
)

// The bits of decisions.flags.
const (
	decisionAllowed = 1 << iota
	decisionCached
	decisionFailed
	decisionAsked
)

// appendDecisions is the statement that writes n lines: one for many, as each statement is a round trip over the network.
func appendDecisions(n int) string {
	row := "(?" + strings.Repeat(", ?", strings.Count(decisionColumns, ",")) + ")"
	return "INSERT INTO decisions (" + decisionColumns + ") VALUES " + row + strings.Repeat(", "+row, n-1) + " ON CONFLICT (id) DO NOTHING"
}

// AppendDecisions writes lines, all or none; a line whose id is there already is left as it is. A question above
// policy.MaxDecisionInputBytes, sealed or not, is left out, and so are codes above policy.MaxDecisionCodesBytes in all. Times are kept in
// milliseconds. fault.NotFound when the organisation is unknown.
func (d *Decisions) AppendDecisions(ctx context.Context, org tenancy.OrgID, lines []policy.LoggedDecision) error {
	const op = "libsql.Decisions.AppendDecisions"
	if err := needOrg(op, org); err != nil {
		return err
	}
	var steps [][]any
	for chunk := range slices.Chunk(lines, decisionsPerInsert) {
		var args []any
		for _, l := range chunk {
			row, err := decisionRow(op, l)
			if err != nil {
				return err
			}
			args = append(args, row...)
		}
		steps = append(steps, args)
	}
	return d.tenants.with(ctx, op, org, func(db *database) error {
		if len(steps) == 0 {
			return nil
		}
		return db.w.do(ctx, op, len(steps) == 1, func(ctx context.Context, c *sql.Conn) error {
			for i, args := range steps {
				n := min(decisionsPerInsert, len(lines)-i*decisionsPerInsert)
				if _, err := c.ExecContext(ctx, appendDecisions(n), args...); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func decisionRow(op string, l policy.LoggedDecision) ([]any, error) {
	if l.ID == "" || l.At.IsZero() || l.Weight < 1 || (l.Action != "chat" && l.Action != "tool") || (len(l.Input) > 0 && !json.Valid(l.Input)) {
		return nil, fault.New(fault.Internal, op, "decision_incomplete", "A decision without id, time, action or weight was to be logged; tell us the request id.")
	}
	flags := 0
	for bit, set := range map[int]bool{decisionAllowed: l.Allow, decisionCached: l.Cached, decisionFailed: l.Failed, decisionAsked: l.Asked} {
		if set {
			flags |= bit
		}
	}
	input, sealed := l.Input, l.Sealed
	if len(input) > policy.MaxDecisionInputBytes {
		input = nil
	}
	if len(sealed) > maxSealedInput {
		sealed = nil
	}
	var shadow []byte
	if l.Shadow != nil {
		var err error
		if shadow, err = json.Marshal(l.Shadow); err != nil {
			return nil, fault.From(err)
		}
	}
	codes, size := l.Codes, 0
	for i, c := range codes {
		if size += len(c); size > policy.MaxDecisionCodesBytes {
			codes = codes[:i]
			break
		}
	}
	var list []byte
	if len(codes) > 0 {
		var err error
		if list, err = json.Marshal(codes); err != nil {
			return nil, fault.From(err)
		}
	}
	return []any{l.ID, ms(l.At), l.Action, flags, string(l.User), string(l.Role), l.Model, l.Capability, l.RunID, jsonText(list), l.Revision, l.Micros, l.Weight, jsonText(input), jsonText(shadow), blob(sealed)}, nil
}

// Decisions returns a page of lines, newest first, and the cursor of the next ("" at the end). From is the first moment of the
// time asked for and To the first one after it, in whole milliseconds. A page has 100 lines unless Limit says otherwise, and at most
// 1,000. The cursor is the id of the page's last line; when that line was pruned meanwhile, all older ones were too, and the page
// is empty.
func (d *Decisions) Decisions(ctx context.Context, org tenancy.OrgID, q policy.DecisionQuery) ([]policy.LoggedDecision, string, error) {
	const op = "libsql.Decisions.Decisions"
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	limit = min(limit, maxDecisionPage)
	where, args := decisionFilter(q)
	var list []policy.LoggedDecision
	err := d.tenants.with(ctx, op, org, func(db *database) error {
		return db.rows(ctx, op, func(rs *sql.Rows) error {
			l, err := scanDecision(rs)
			list = append(list, l)
			return err
		}, "SELECT "+decisionColumns+" FROM decisions"+where+" ORDER BY at_ms DESC, id DESC LIMIT ?", append(args, limit+1)...)
	})
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	return list[:limit], list[limit-1].ID, nil
}

// Decision returns one line; fault.NotFound when the organisation has none of that id.
func (d *Decisions) Decision(ctx context.Context, org tenancy.OrgID, id string) (policy.LoggedDecision, error) {
	const op = "libsql.Decisions.Decision"
	var l policy.LoggedDecision
	found := false
	err := d.tenants.with(ctx, op, org, func(db *database) error {
		return db.rows(ctx, op, func(rs *sql.Rows) (err error) {
			found = true
			l, err = scanDecision(rs)
			return err
		}, "SELECT "+decisionColumns+" FROM decisions WHERE id = ?", id)
	})
	if err == nil && !found {
		err = notFound(op, "There is no such decision in the log; allowed turns are sampled, and old lines are deleted.")
	}
	return l, err
}

// decisionFilter writes only the conditions that are asked for, so that the indexes serve them.
func decisionFilter(q policy.DecisionQuery) (where string, args []any) {
	var conditions []string
	and := func(condition string, arg any) {
		conditions = append(conditions, condition)
		args = append(args, arg)
	}
	if q.Action != "" {
		and("action = ?", q.Action)
	}
	if !q.From.IsZero() {
		and("at_ms >= ?", ms(q.From))
	}
	if !q.To.IsZero() {
		and("at_ms < ?", ms(q.To))
	}
	if q.Before != "" {
		and("(at_ms, id) < (SELECT at_ms, id FROM decisions WHERE id = ?)", q.Before)
	}
	if q.Allow != nil {
		want := 0
		if *q.Allow {
			want = decisionAllowed
		}
		and("flags & 1 = ?", want)
	}
	if q.User != "" {
		and("user_id = ?", string(q.User))
	}
	if q.Capability != "" {
		and("capability = ?", q.Capability)
	}
	if len(conditions) == 0 {
		return "", nil
	}
	return " WHERE " + strings.Join(conditions, " AND "), args
}

func scanDecision(rs *sql.Rows) (policy.LoggedDecision, error) {
	var (
		l            policy.LoggedDecision
		at, flags    int64
		user, role   string
		codes, input sql.NullString
		shadow       sql.NullString
	)
	if err := rs.Scan(&l.ID, &at, &l.Action, &flags, &user, &role, &l.Model, &l.Capability, &l.RunID, &codes, &l.Revision, &l.Micros, &l.Weight, &input, &shadow, &l.Sealed); err != nil {
		return l, err
	}
	l.Asked = flags&decisionAsked != 0
	if shadow.Valid {
		l.Shadow = new(policy.ShadowAnswer)
		if err := json.Unmarshal([]byte(shadow.String), l.Shadow); err != nil {
			return l, err
		}
	}
	l.At, l.User, l.Role = fromMS(at), tenancy.UserID(user), tenancy.Role(role)
	l.Allow, l.Cached, l.Failed = flags&decisionAllowed != 0, flags&decisionCached != 0, flags&decisionFailed != 0
	if codes.Valid {
		if err := json.Unmarshal([]byte(codes.String), &l.Codes); err != nil {
			return l, err
		}
	}
	if input.Valid {
		l.Input = json.RawMessage(input.String)
	}
	return l, nil
}

// PruneDecisions deletes lines older than before and returns how many, also when it fails halfway. It deletes a few hundred at a
// time, so that lines being written never wait long.
func (d *Decisions) PruneDecisions(ctx context.Context, org tenancy.OrgID, before time.Time) (int64, error) {
	const op = "libsql.Decisions.PruneDecisions"
	var total int64
	err := d.tenants.with(ctx, op, org, func(db *database) error {
		for {
			n, err := db.exec(ctx, op, "DELETE FROM decisions WHERE rowid IN (SELECT rowid FROM decisions WHERE at_ms < ? ORDER BY at_ms LIMIT ?)", ms(before), decisionsPerStep)
			if err != nil {
				return err
			}
			if total += n; n < decisionsPerStep {
				return nil
			}
		}
	})
	return total, err
}

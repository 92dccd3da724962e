package libsql

import (
	"context"

	"github.com/lossless-group/gateway/billing/report"
)

// Count returns how many events a filter has, and how many of those are attempts and no corrections: what an export announces before it reads them.
func (s *snapshot) Count(ctx context.Context, f report.Filter) (events, attempts int64, err error) {
	const op = "libsql.Reports.Count"
	orgs, err := s.orgs(ctx, op, f.Scope)
	if err != nil {
		return 0, 0, err
	}
	match, matched, err := matchIs(op, "e", f.Match)
	if err != nil {
		return 0, 0, err
	}
	half := func(at, booked string) string {
		return "SELECT e.basis AS basis FROM usage_event e WHERE e.org = ? AND e." + at + " >= ? AND e." + at + " < ? AND e.booked_ms IS " + booked + match
	}
	query := "SELECT count(*), coalesce(sum(basis IS NOT (SELECT id FROM word WHERE text = 'correction')), 0) FROM (" + half("started_ms", "NULL") + " UNION ALL " + half("booked_ms", "NOT NULL") + ")"
	for _, o := range orgs {
		lo, hi := s.bounds(o, f)
		var n, m int64
		args := append([]any{o.word, lo, hi}, matched...)
		if err := s.c.QueryRowContext(ctx, query, append(append(args, o.word, lo, hi), matched...)...).Scan(&n, &m); err != nil {
			return 0, 0, err
		}
		events, attempts = events+n, attempts+m
	}
	return events, attempts, nil
}

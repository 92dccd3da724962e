package report

import (
	"cmp"
	"context"
	"slices"
)

// Rows are all groups of a question in the order of their values, without a limit: each takes memory. Buckets keep their own order.
func Rows(ctx context.Context, r Reader, q Question) ([]Row, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	rows, err := groups(ctx, r, q, q.Filter, nil, false)
	if err != nil || slices.Contains(q.By, ByBucket) {
		return rows, err
	}
	slices.SortFunc(rows, func(x, y Row) int {
		for _, d := range q.By {
			if c := cmp.Compare(x.Group[string(d)], y.Group[string(d)]); c != 0 {
				return c
			}
		}
		return 0
	})
	return rows, nil
}

package libsql

import (
	"context"
	"database/sql"
	"fmt"
)

// ByHand changes the control database behind everybody's back.
func ByHand(ctx context.Context, s *Stores, statement string) error {
	_, err := s.control.exec(ctx, "libsql.ByHand", statement)
	return err
}

// FillDays writes sums by the day as that many events leave them, evenly over organisations o0.example and on, people, models and days from
// day 20,000 on. It returns how many rows that makes.
func FillDays(ctx context.Context, s *Stores, orgs, people, models, days, events int) (rows int, err error) {
	err = s.control.update(ctx, "libsql.FillDays", func(ctx context.Context, c *sql.Conn) error {
		var words []string
		for i := range people {
			words = append(words, fmt.Sprintf("0197f0a1-0000-7000-8000-%012d", i))
		}
		for i := range models {
			words = append(words, fmt.Sprintf("claude-%d", i))
		}
		for i := range orgs {
			words = append(words, fmt.Sprintf("o%d.example", i))
		}
		words = append(words, "", "org", "ok", "anthropic", "agent", "key-1", "deck")
		id, err := intern(ctx, c, words)
		if err != nil {
			return err
		}
		n := int64(events / (orgs * people * models * days))
		var list [][]any
		flush := func() error {
			rows += len(list)
			err := writeRows(ctx, c, upsertDay, list, false)
			list = list[:0]
			return err
		}
		for o := range orgs {
			org := id[fmt.Sprintf("o%d.example", o)]
			if _, err := c.ExecContext(ctx, "INSERT INTO ledger_org (org, zone) VALUES (?, 'Europe/Paris')", org); err != nil {
				return err
			}
			for d := range days {
				for p := range people {
					for m := range models {
						list = append(list, []any{org, 20_000 + d, id["deck"], id[words[p]], id["key-1"], 0, id["anthropic"], id[fmt.Sprintf("claude-%d", m)], id["agent"], 0, id["org"], id["ok"],
							n, n * 900, n * 4000, n * 100, 0, n * 300, n * 50, 0, n * 9000, n * 300_000, 0, 0, 0, 0, 0, 0})
					}
				}
				if err := flush(); err != nil {
					return err
				}
			}
			if _, err := c.ExecContext(ctx, "INSERT INTO rollup_model SELECT org, day, provider, model, key_source, sum(n), sum(t_in), sum(t_cr), sum(t_w5), sum(t_w1), sum(t_out), sum(t_reason), sum(searches), sum(c_hi), sum(c_lo), sum(l_hi), sum(l_lo), sum(b_hi), sum(b_lo), sum(unpriced), sum(estimated) FROM rollup_day WHERE org = ? GROUP BY 1, 2, 3, 4, 5", org); err != nil {
				return err
			}
		}
		return nil
	})
	return rows, err
}

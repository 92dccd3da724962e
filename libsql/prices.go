package libsql

import (
	"context"
	"database/sql"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Prices keeps imported price files and organisations' rate cards, both append-only.
type Prices struct{ db *database }

// PriceRevision is one imported price file. Doc is empty in lists.
type PriceRevision struct {
	Number   int64     `json:"number"`
	Revision string    `json:"revision"` // as the catalogue names itself
	Note     string    `json:"note"`
	By       string    `json:"by"`
	At       time.Time `json:"at"`
	Doc      []byte    `json:"-"`
}

// Import puts a price file in force and returns its number. A file that is in force already keeps its number and nothing is recorded; one
// that was in force earlier is a fault of kind Conflict, code revision_exists, as is every file this gateway cannot read of kind Invalid.
func (p *Prices) Import(ctx context.Context, r PriceRevision) (int64, error) {
	const op = "libsql.Prices.Import"
	cat, err := billing.LoadCatalogue(r.Doc)
	if err != nil {
		return 0, err
	}
	var number int64
	err = p.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		number = 0
		var newest, same int64
		err := eachRow(ctx, c, func(rs *sql.Rows) error { return rs.Scan(&newest, &same) },
			"SELECT coalesce(max(number), 0), coalesce(max(CASE WHEN revision = ? THEN number END), 0) FROM price_revisions", cat.Revision())
		switch {
		case err != nil:
			return err
		case same != 0 && same == newest:
			number = same
			return nil
		case same != 0:
			return fault.New(fault.Conflict, op, "revision_exists", "This price file was in force before and was replaced; give it a new revision to put it back.")
		}
		number = newest + 1
		_, err = c.ExecContext(ctx, "INSERT INTO price_revisions (number, revision, doc, note, by_user, at_ms) VALUES (?, ?, ?, ?, ?, ?)",
			number, cat.Revision(), string(r.Doc), r.Note, r.By, ms(r.At))
		return err
	})
	if err != nil {
		return 0, err
	}
	return number, nil
}

// Active returns the price file in force; ok is false when none was ever imported.
func (p *Prices) Active(ctx context.Context) (r PriceRevision, ok bool, err error) {
	var doc string
	var at int64
	ok, err = p.db.row(ctx, "libsql.Prices.Active", []any{&r.Number, &r.Revision, &doc, &r.Note, &r.By, &at},
		"SELECT number, revision, doc, note, by_user, at_ms FROM price_revisions ORDER BY number DESC")
	r.Doc, r.At = []byte(doc), fromMS(at)
	return r, ok, err
}

// List returns at most limit revisions, newest first, without their files.
func (p *Prices) List(ctx context.Context, limit int) ([]PriceRevision, error) {
	var list []PriceRevision
	err := p.db.rows(ctx, "libsql.Prices.List", func(rs *sql.Rows) error {
		var r PriceRevision
		var at int64
		if err := rs.Scan(&r.Number, &r.Revision, &r.Note, &r.By, &at); err != nil {
			return err
		}
		r.At = fromMS(at)
		list = append(list, r)
		return nil
	}, "SELECT number, revision, note, by_user, at_ms FROM price_revisions ORDER BY number DESC LIMIT ?", clampLimit(limit))
	return list, err
}

// RateCard is a stored rate card, as billing.NewRateCard reads it.
type RateCard struct {
	ID         string
	From, To   time.Time // a zero To never ends
	Multiplier string    // decimal; empty: 1
	Rows       []byte    // a price file; empty: none
	At         time.Time
}

// AddCard records a rate card of an organisation. fault.Invalid for one that cannot be read, fault.Conflict with code card_exists when its
// id is taken: what was charged by a card must stay what it says.
func (p *Prices) AddCard(ctx context.Context, org tenancy.OrgID, card RateCard) error {
	const op = "libsql.Prices.AddCard"
	if err := needOrg(op, org); err != nil {
		return err
	}
	if _, err := billing.NewRateCard(card.ID, card.From, card.To, card.Multiplier, card.Rows); err != nil {
		return err
	}
	n, err := p.db.exec(ctx, op, "INSERT INTO rate_cards (org_id, id, from_ms, to_ms, multiplier, rows, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (org_id, id) DO NOTHING",
		org.String(), card.ID, ms(card.From), optionalMS(card.To), card.Multiplier, string(card.Rows), ms(card.At))
	if err != nil {
		return err
	}
	if n == 0 {
		return fault.New(fault.Conflict, op, "card_exists", "A rate card of this name exists; give the new one a name of its own.")
	}
	return nil
}

// Cards returns the rate cards of an organisation, the earliest start first, ready to be laid over the list.
func (p *Prices) Cards(ctx context.Context, org tenancy.OrgID) ([]*billing.RateCard, error) {
	stored, err := p.StoredCards(ctx, org)
	if err != nil {
		return nil, err
	}
	list := make([]*billing.RateCard, len(stored))
	for i, c := range stored {
		if list[i], err = billing.NewRateCard(c.ID, c.From, c.To, c.Multiplier, c.Rows); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// StoredCards returns the same as they were recorded.
func (p *Prices) StoredCards(ctx context.Context, org tenancy.OrgID) (list []RateCard, err error) {
	const op = "libsql.Prices.StoredCards"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	err = p.db.rows(ctx, op, func(rs *sql.Rows) error {
		var (
			c        RateCard
			rows     string
			from, at int64
			to       sql.NullInt64
		)
		if err := rs.Scan(&c.ID, &from, &to, &c.Multiplier, &rows, &at); err != nil {
			return err
		}
		c.From, c.To, c.Rows, c.At = fromMS(from), fromOptionalMS(to), []byte(rows), fromMS(at)
		list = append(list, c)
		return nil
	}, "SELECT id, from_ms, to_ms, multiplier, rows, at_ms FROM rate_cards WHERE org_id = ? ORDER BY from_ms, id", org.String())
	return list, err
}

// Stamp changes whenever a price file was imported or a rate card recorded: a cheap question to ask again and again.
func (p *Prices) Stamp(ctx context.Context) (stamp [2]int64, err error) {
	_, err = p.db.row(ctx, "libsql.Prices.Stamp", []any{&stamp[0], &stamp[1]}, "SELECT (SELECT coalesce(max(number), 0) FROM price_revisions), (SELECT count(*) FROM rate_cards)")
	return stamp, err
}

// AllCards returns the rate cards of every organisation that has any, as Cards does.
func (p *Prices) AllCards(ctx context.Context) (map[tenancy.OrgID][]*billing.RateCard, error) {
	var orgs []tenancy.OrgID
	err := p.db.rows(ctx, "libsql.Prices.AllCards", func(rs *sql.Rows) error {
		var name string
		if err := rs.Scan(&name); err != nil {
			return err
		}
		org, err := tenancy.ParseOrgID(name)
		orgs = append(orgs, org)
		return err
	}, "SELECT DISTINCT org_id FROM rate_cards")
	if err != nil {
		return nil, err
	}
	all := make(map[tenancy.OrgID][]*billing.RateCard, len(orgs))
	for _, org := range orgs {
		if all[org], err = p.Cards(ctx, org); err != nil {
			return nil, err
		}
	}
	return all, nil
}

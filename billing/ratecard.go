package billing

import (
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// RateCard is what one organisation pays instead of the list: rows of its own, a multiplier on the tokens of everything, or both.
type RateCard struct {
	ID         string
	From, To   time.Time  // requests that start in [From, To); a zero To never ends
	Multiplier int64      // millionths of the list's token prices; 1,000,000 changes nothing
	Rows       *Catalogue // nil: the list's rows
}

// NewRateCard reads a rate card. multiplier is a decimal such as "0.9", empty for 1; rows is a price file, empty for none. A malformed
// part, or a card that changes nothing, is a fault of kind Invalid.
func NewRateCard(id string, from, to time.Time, multiplier string, rows []byte) (*RateCard, error) {
	const op = "billing.NewRateCard"
	card := &RateCard{ID: id, From: from, To: to, Multiplier: millionth}
	if multiplier != "" {
		v, ok := parseFixed(multiplier, 6)
		if !ok || v < 0 || v > 100*millionth {
			return nil, fault.Invalidf(op, "/multiplier", "The multiplier must be a decimal from 0 to 100 with at most 6 decimals, such as 0.9.")
		}
		card.Multiplier = v
	}
	if len(rows) > 0 {
		var err error
		if card.Rows, err = LoadCatalogue(rows); err != nil {
			return nil, err
		}
	}
	if id == "" || card.Rows == nil && card.Multiplier == millionth || !to.IsZero() && !from.Before(to) {
		return nil, fault.Invalidf(op, "", "A rate card needs an id, a time that does not end before it begins, and a multiplier or rows.")
	}
	return card, nil
}

// With returns the catalogue as one organisation's rate card changes it. A nil card changes nothing; several cards are applied one after
// the other, the last one first asked.
func (c *Catalogue) With(card *RateCard) *Catalogue {
	if card == nil {
		return c
	}
	return &Catalogue{books: c.books, models: c.models, revision: c.revision + "+" + card.ID, file: c.file, card: card, base: c}
}

func (r *RateCard) hit(base *Catalogue, provider, model string, at time.Time, inputTotal int64, terms *chat.Terms) hit {
	if !r.covers(at) {
		return base.hit(provider, model, at, inputTotal, terms)
	}
	if r.Rows != nil {
		if h := r.Rows.hit(provider, model, at, inputTotal, terms); h.tier != nil {
			return h // agreed prices are not discounted again
		}
	}
	h := base.hit(provider, model, at, inputTotal, terms)
	h.multiplier = h.multiplier * r.Multiplier / millionth
	return h
}

// agreed applies the multipliers in force at a time to an amount; rows of a card do not count, because the amount has no row.
func (c *Catalogue) agreed(at time.Time, amount Pico) Pico {
	for ; c.card != nil; c = c.base {
		if !c.card.covers(at) {
			continue
		}
		sum := sum128{lo: uint64(max(amount, 0))}
		if p, ok := sum.times(c.card.Multiplier); ok {
			amount = p
		}
	}
	return amount
}

func (r *RateCard) covers(at time.Time) bool {
	return !at.Before(r.From) && (r.To.IsZero() || at.Before(r.To))
}

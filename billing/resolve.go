package billing

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// Like is the price of a model that has none: that of another model, or rates of its own in USD per million tokens by the names of a price file.
type Like struct {
	Provider string            `json:"provider,omitempty"`
	Model    string            `json:"model,omitempty"`
	Rates    map[string]string `json:"rates,omitempty"`
}

// WithModel returns a price file of another revision in which a model of a provider has a price. fault.Invalid when the other model has no price
// or the rates cannot be read; fault.Conflict, code model_priced, when the model has a price of its own.
func (c *Catalogue) WithModel(provider, model string, like Like, revision string) ([]byte, error) {
	const op = "billing.Catalogue.WithModel"
	if provider == "" || model == "" || model == "*" {
		return nil, fault.Invalidf(op, "/model", "Name the provider and the model that are to have a price.")
	}
	if b := c.lookup(provider); b != nil && b.find(model) != nil {
		return nil, fault.New(fault.Conflict, op, "model_priced", "This model has a price; import a price file to change it.")
	}
	name := strings.ToLower(provider)
	if b := c.lookup(provider); b != nil {
		name = b.id
	}
	row := fileRow{Provider: name, ID: model, Names: []string{strings.ToLower(model)}, Src: "resolved"}
	switch {
	case len(like.Rates) > 0 && like.Model == "":
		tier := fileTier{Rates: make(map[string]*string, len(like.Rates))}
		for bucket, rate := range like.Rates {
			tier.Rates[bucket] = &rate
		}
		row.Prices = []filePeriod{{Tiers: []fileTier{tier}}}
	case like.Model != "" && len(like.Rates) == 0:
		from := like.Provider
		if from == "" {
			from = provider
		}
		b := c.lookup(from)
		var r *fileRow
		if b != nil {
			if hit := b.find(like.Model); hit != nil {
				r = c.fileRowOf(hit.id)
			}
		}
		if r == nil {
			return nil, fault.Invalidf(op, "/like", "There is no price for the model it is to be like; name one that has a price, or give rates.")
		}
		row.Variants, row.Prices, row.Sources = r.Variants, r.Prices, r.Sources
	default:
		return nil, fault.Invalidf(op, "/like", "Give either a model to price it like, or rates.")
	}
	file := c.file
	file.Revision = revision
	file.Rows = append(slices.Clone(file.Rows), row)
	doc, err := json.Marshal(file)
	if err != nil {
		return nil, fault.From(err)
	}
	if _, err := LoadCatalogue(doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// fileRowOf is the row of the file with an id.
func (c *Catalogue) fileRowOf(id string) *fileRow {
	for i := range c.file.Rows {
		if c.file.Rows[i].ID == id {
			return &c.file.Rows[i]
		}
	}
	return nil
}

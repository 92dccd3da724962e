package author

import (
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/redaction"
)

// Redactions compile redaction documents.
type Redactions interface {
	ParsePolicy(doc []byte, name string) (*redaction.Profile, error)
}

// plain are Redactions that know of no external detectors.
type plain struct{}

func (plain) ParsePolicy(doc []byte, name string) (*redaction.Profile, error) {
	return redaction.ParsePolicy(doc, name)
}

// Redacting returns an Author that judges redaction documents by what a gateway offers.
func (a *Author) Redacting(r Redactions) *Author {
	b := *a
	b.redactions = r
	return &b
}

// checkRedaction refuses settings whose redaction document nobody could use.
func (a *Author) checkRedaction(s policy.Settings) error {
	if len(s.Redaction) == 0 {
		return nil
	}
	if _, err := a.redactions.ParsePolicy(s.Redaction, s.RedactionProfile); err != nil {
		fe := *fault.From(err)
		fe.Field = "/settings/redaction" + fe.Field
		return &fe
	}
	return nil
}

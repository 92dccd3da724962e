package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
)

// RedactionFindings sums what redaction found in an organisation's turns.
type RedactionFindings interface {
	Findings(ctx context.Context, org tenancy.OrgID, from, to time.Time) ([]redaction.DayTally, error)
}

// RedactionConfig is what the routes of redaction need.
type RedactionConfig struct {
	Engine   *redaction.Engine
	Findings RedactionFindings
	Floor    string // the least strict profile of any organisation; empty: off
}

func (a *api) mountRedaction(org *echo.Group) {
	org.POST("/redaction/preview", a.admins(a.previewRedaction))
	org.GET("/redaction/findings", a.admins(a.redactionFindings))
}

// maxFindingDays bounds one answer of findings.
const maxFindingDays = 366

// protocols names bodies a preview can be made of, by the surface they are sent to.
var protocols = map[string]chat.Protocol{
	"": chat.AnthropicMessages, "agent": chat.AnthropicMessages, "anthropic": chat.AnthropicMessages, "openai-chat": chat.OpenAIChat,
	"openai-responses": chat.OpenAIResponses, "openai-embeddings": chat.OpenAIEmbeddings, "gemini": chat.GeminiGenerate,
}

// previewRedaction shows what redaction would do to a text or a request body, under the live settings or under those that are sent along.
// Nothing is kept and nothing leaves.
func (a *api) previewRedaction(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.previewRedaction"
	raw, err := body(c)
	if err != nil {
		return err
	}
	var in struct {
		Text      *string         `json:"text"`
		Body      json.RawMessage `json:"body"`
		Surface   string          `json:"surface"`
		Profile   string          `json:"profile"`
		Redaction json.RawMessage `json:"redaction"`
	}
	if err := decodeObject(op, raw, "", &in, "text", "body", "surface", "profile", "redaction"); err != nil {
		return err
	}
	if (in.Text == nil) == (len(in.Body) == 0) {
		return fault.Invalidf(op, "", "Send either text or body.")
	}
	proto, known := protocols[in.Surface]
	if !known {
		return fault.Invalidf(op, "/surface", "surface is agent, anthropic, openai-chat, openai-responses, openai-embeddings or gemini.")
	}
	if in.Profile != "" && !policy.ValidProfile(in.Profile) {
		return fault.Invalidf(op, "/profile", "profile is off, balanced or strict.")
	}
	doc, name := in.Redaction, in.Profile
	if len(doc) == 0 && name == "" {
		s, _, err := a.Settings.Settings(c.Request().Context(), t.Org.ID)
		if err != nil {
			return err
		}
		doc, name = s.Redaction, s.RedactionProfile
	}
	p, err := a.Redaction.Engine.Policy(doc, name, name, a.Redaction.Floor)
	if err != nil {
		return under("/redaction", err)
	}
	if in.Text != nil {
		out, err := a.Redaction.Engine.PreviewText(c.Request().Context(), p, t.Org.ID, *in.Text)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, out)
	}
	out, err := a.Redaction.Engine.PreviewBody(c.Request().Context(), p, t.Org.ID, proto, in.Body)
	if err != nil {
		return under("/body", err)
	}
	return c.JSON(http.StatusOK, out)
}

// redactionFindings answers what was found from one day to another, UTC, both in it; the last 30 days when neither is named.
func (a *api) redactionFindings(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.redactionFindings"
	to, err := when(c, "to", time.UTC, a.Clock().UTC())
	if err != nil {
		return err
	}
	from, err := when(c, "from", time.UTC, to.AddDate(0, 0, -29))
	if err != nil {
		return err
	}
	if from.After(to) || to.Sub(from) > maxFindingDays*24*time.Hour {
		return fault.Invalidf(op, "/from", "from must not lie after to, nor more than a year before it.")
	}
	list, err := a.Redaction.Findings.Findings(c.Request().Context(), t.Org.ID, from, to)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"org": t.Org.ID, "from": from.Format(time.DateOnly), "to": to.Format(time.DateOnly), "findings": list})
}

// checkRedaction refuses a patch of the settings that leaves them with a redaction document nobody could use.
func (a *api) checkRedaction(ctx context.Context, org tenancy.OrgID, patch []byte) error {
	live, _, err := a.Settings.Settings(ctx, org)
	if err != nil {
		return err
	}
	next, err := policy.PatchSettings(live, patch)
	if err != nil {
		return err
	}
	if len(next.Redaction) == 0 {
		return nil
	}
	if _, err := a.Redaction.Engine.ParsePolicy(next.Redaction, next.RedactionProfile); err != nil {
		return under("/redaction", err)
	}
	return nil
}

// under puts a fault's place below a pointer.
func under(pointer string, err error) error {
	fe := *fault.From(err)
	fe.Field = pointer + fe.Field
	return &fe
}

package httpapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/tenancy"
)

// reply writes a JSON answer with an ETag and honours If-None-Match. It is the caller's own unless a Cache-Control says otherwise already.
func reply(c echo.Context, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	h := c.Response().Header()
	h.Set("ETag", tag)
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "private, no-cache")
	}
	if c.Request().Header.Get("If-None-Match") == tag {
		return c.NoContent(http.StatusNotModified)
	}
	return c.Blob(http.StatusOK, "application/json", body)
}

// caller is what every route below needs first.
func (s *Server) caller(c echo.Context) (tenancy.Principal, tenancy.Hint, error) {
	who, err := s.Principal(c)
	return who, Hint(c), err
}

// keyView is a key as its owner may see it.
type keyView struct {
	ID         string     `json:"id"`
	Provider   string     `json:"provider"`
	Label      string     `json:"label"`
	Hint       string     `json:"hint"`
	LastFour   string     `json:"lastFour"`
	CreatedAt  time.Time  `json:"createdAt"`
	LastUsedAt *time.Time `json:"lastUsedAt"`
	RevokedAt  *time.Time `json:"revokedAt"`
}

func viewKey(k gateway.Key) keyView {
	return keyView{k.ID, k.Provider, k.Label, k.Hint, k.LastFour, k.CreatedAt, maybe(k.LastUsedAt), maybe(k.RevokedAt)}
}

func maybe(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (s *Server) listKeys(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	keys, err := s.Gateway.OwnKeys(c.Request().Context(), who, hint)
	if err != nil {
		return err
	}
	views := make([]keyView, len(keys))
	for i, k := range keys {
		views[i] = viewKey(k)
	}
	return reply(c, map[string]any{"keys": views})
}

func (s *Server) saveKey(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	body, err := s.readBody(c)
	if err != nil {
		return err
	}
	o, err := decodeObject(body, "", "provider", "key", "label")
	if err != nil {
		return err
	}
	provider, err := o.text("provider", 100, true)
	if err != nil {
		return err
	}
	label, err := o.text("label", 200, false)
	if err != nil {
		return err
	}
	value, err := o.text("key", 1024, true)
	if err != nil {
		return err
	}
	k, err := s.Gateway.SaveKey(c.Request().Context(), who, hint, provider, label, gateway.NewSecret(value))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, viewKey(k))
}

func (s *Server) rotateKey(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	body, err := s.readBody(c)
	if err != nil {
		return err
	}
	o, err := decodeObject(body, "", "key")
	if err != nil {
		return err
	}
	value, err := o.text("key", 1024, true)
	if err != nil {
		return err
	}
	k, err := s.Gateway.RotateKey(c.Request().Context(), who, hint, c.Param("id"), gateway.NewSecret(value))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewKey(k))
}

func (s *Server) revokeKey(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	if err := s.Gateway.RevokeKey(c.Request().Context(), who, hint, c.Param("id")); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *Server) threads(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	page := gateway.Page{Before: c.QueryParam("before"), Limit: 50}
	if v := c.QueryParam("limit"); v != "" {
		if page.Limit, err = strconv.Atoi(v); err != nil || page.Limit < 1 || page.Limit > 200 {
			return fault.Invalidf(opBody, "/limit", "limit must be a number from 1 to 200.")
		}
	}
	list, next, err := s.Gateway.Threads(c.Request().Context(), who, hint, page)
	if err != nil {
		return err
	}
	if list == nil {
		list = []gateway.ThreadHead{}
	}
	return reply(c, map[string]any{"threads": list, "next": next})
}

func (s *Server) thread(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	ctx, id := c.Request().Context(), c.Param("id")
	turns, err := s.Gateway.Thread(ctx, who, hint, id)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	unknown, uerr := s.Gateway.Unknown(ctx, who, hint, id)
	if err == nil && fault.Is(uerr, fault.Unavailable) { // a thread of a moment ago can be read while the database is away
		uerr = nil
	}
	if err = cmp.Or(uerr, err); err != nil && (uerr != nil || len(unknown) == 0) {
		return err
	}
	if turns == nil { // its first turn was cut off before there was anything to keep
		turns = []gateway.Turn{}
	}
	return reply(c, map[string]any{"threadId": id, "turns": turns, "dispatches": viewDispatches(unknown)})
}

func (s *Server) capabilities(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	list, err := s.Gateway.Capabilities(c.Request().Context(), who, hint)
	if err != nil {
		return err
	}
	type view struct {
		Name                 string               `json:"name"`
		App                  string               `json:"app"`
		Title                string               `json:"title"`
		OneLine              string               `json:"oneLine,omitempty"`
		Description          string               `json:"description"`
		InputSchema          json.RawMessage      `json:"inputSchema"`
		OutputSchema         json.RawMessage      `json:"outputSchema,omitempty"`
		Kind                 string               `json:"kind"`
		RequiredTier         string               `json:"requiredTier"`
		RequiresConfirmation bool                 `json:"requiresConfirmation"`
		ConfirmBy            string               `json:"confirmBy,omitempty"` // of what is confirmed: self, admin, anyMember
		Annotations          dispatch.Annotations `json:"annotations"`
		Chat                 dispatch.Hints       `json:"chat"`
		Available            bool                 `json:"available"`
		Why                  string               `json:"why,omitempty"`
		Message              string               `json:"message,omitempty"`
	}
	out := make([]view, len(list))
	for i, s := range list {
		out[i] = view{s.Name, s.App, s.Title, s.OneLine, s.Description, s.InputSchema, s.OutputSchema, string(s.Kind), s.RequiredTier.String(), s.RequiresConfirmation, "", s.Annotations, s.Hints, s.Available, s.Why, s.Message}
		if s.RequiresConfirmation {
			out[i].ConfirmBy = string(s.ConfirmBy)
		}
	}
	return reply(c, map[string]any{"capabilities": out})
}

func (s *Server) models(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	list, err := s.Gateway.ModelList(c.Request().Context(), who, hint)
	if err != nil {
		return err
	}
	type view struct {
		Name      string `json:"name"`
		Provider  string `json:"provider"`
		KeySource string `json:"keySource,omitempty"`
		Available bool   `json:"available"`
		Why       string `json:"why,omitempty"`

		Title         string            `json:"title,omitempty"`
		ContextWindow int               `json:"contextWindow,omitempty"` // tokens of prompt and answer together
		MaxOutput     int               `json:"maxOutput,omitempty"`     // tokens of an answer
		Input         []string          `json:"input,omitempty"`
		Output        []string          `json:"output,omitempty"`
		Sampling      bool              `json:"sampling"`               // whether temperature and its like are taken
		CacheMinimum  int               `json:"cacheMinimum,omitempty"` // tokens below which a prompt is not cached
		PricesUSD     map[string]string `json:"pricesUsd,omitempty"`    // of a million tokens
	}
	out := make([]view, len(list))
	for i, m := range list {
		out[i] = view{m.Name, m.Provider, m.KeySource, m.Available, m.Why, m.Info.Title, m.Info.ContextWindow, m.Info.MaxOutput, m.Info.Input, m.Info.Output,
			!m.Info.NoSampling, m.Info.CacheMinimum, m.Prices}
	}
	return reply(c, map[string]any{"models": out})
}

func (s *Server) orgState(c echo.Context) error {
	who, hint, err := s.caller(c)
	if err != nil {
		return err
	}
	st, err := s.Gateway.State(c.Request().Context(), who, hint)
	if err != nil {
		return err
	}
	disabled := st.Settings.DisabledCapabilities
	if disabled == nil {
		disabled = []string{}
	}
	profile := st.Settings.RedactionProfile
	if profile == "" {
		profile = "balanced"
	}
	return reply(c, map[string]any{
		"org": st.Org.ID, "slug": st.Org.Slug, "name": st.Org.Name, "billingStatus": st.Org.Billing, "plan": st.Org.Plan, "timeZone": st.Org.TimeZone,
		"role": st.Role, "disabledCapabilities": disabled, "redactionProfile": profile, "settingsRevision": st.Revision,
	})
}

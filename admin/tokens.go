package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// TokenKeeper keeps access tokens.
type TokenKeeper interface {
	Add(ctx context.Context, org tenancy.OrgID, t tenancy.AccessToken) error
	Get(ctx context.Context, org tenancy.OrgID, id string) (tenancy.AccessToken, error)
	List(ctx context.Context, org tenancy.OrgID, creator tenancy.UserID) ([]tenancy.AccessToken, error)
	Rotate(ctx context.Context, org tenancy.OrgID, id string, old, hash tenancy.TokenHash, lastFour string) error
	Revoke(ctx context.Context, org tenancy.OrgID, id string, at time.Time) error
	Stop(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, stopped bool) error
}

func (a *api) mountTokens(g, org *echo.Group) {
	for _, r := range []struct {
		group *echo.Group
		path  string
		who   func(func(echo.Context, tenancy.Tenant) error) echo.HandlerFunc
		own   bool
	}{{org, "/tokens", a.admins, false}, {g, "/me/tokens", a.members, true}} {
		with := func(next func(echo.Context, tenancy.Tenant, bool) error) echo.HandlerFunc {
			return r.who(func(c echo.Context, t tenancy.Tenant) error {
				if t.Token != nil {
					return fault.New(fault.Forbidden, "admin.tokens", "token_mint", "An access token cannot manage access tokens. Sign in and do it as a person.")
				}
				return next(c, t, r.own)
			})
		}
		r.group.GET(r.path, with(a.listTokens))
		r.group.POST(r.path, with(a.addToken))
		r.group.POST(r.path+"/:id/rotate", with(a.rotateToken))
		r.group.DELETE(r.path+"/:id", with(a.revokeToken))
		if !r.own {
			r.group.PUT(r.path+"/creators/:user", with(a.stopTokens))
		}
	}
}

// members lets everyone through, in their own organisation.
func (a *api) members(next func(echo.Context, tenancy.Tenant) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		who, err := a.Principal(c)
		if err != nil {
			return err
		}
		if c.Request().Header.Get("X-Act-As-Org") != "" {
			return fault.Invalidf("admin.members", "", "What is yours belongs to you in your own organisation; leave X-Act-As-Org out.")
		}
		t, err := a.Tenants.Resolve(c.Request().Context(), who, tenancy.Hint{Org: c.Request().Header.Get("X-Org-Id")})
		if err != nil {
			return err
		}
		return next(c, t)
	}
}

func (a *api) listTokens(c echo.Context, t tenancy.Tenant, own bool) error {
	var creator tenancy.UserID
	if own {
		creator = t.User
	}
	list, err := a.Tokens.List(c.Request().Context(), t.Org.ID, creator)
	if err != nil {
		return err
	}
	if list == nil {
		list = []tenancy.AccessToken{}
	}
	return c.JSON(http.StatusOK, map[string]any{"tokens": list})
}

// tokenBody is what makes a token.
type tokenBody struct {
	Label        string       `json:"label"`
	Service      bool         `json:"service"`
	Role         tenancy.Role `json:"role"`
	Surfaces     []string     `json:"surfaces"`
	Models       []string     `json:"models"`
	Capabilities []string     `json:"capabilities"`
	Networks     []string     `json:"networks"`
	ExpiresAt    time.Time    `json:"expiresAt"`
}

// shownToken is the one answer that holds a token's text.
type shownToken struct {
	Token string `json:"token"`
	tenancy.AccessToken
}

func (a *api) addToken(c echo.Context, t tenancy.Tenant, own bool) error {
	raw, err := body(c)
	if err != nil {
		return err
	}
	var in tokenBody
	if err := decodeObject("admin.addToken", raw, "", &in, "label", "service", "role", "surfaces", "models", "capabilities", "networks", "expiresAt"); err != nil {
		return err
	}
	if own && in.Service {
		return fault.Invalidf("admin.addToken", "/service", "Your own tokens act as you. An administrator makes those of services, under the organisation.")
	}
	tok, text, err := tenancy.NewAccessToken(t, tenancy.TokenInput(in), a.Clock())
	if err != nil {
		return err
	}
	if err := a.Tokens.Add(lasting(c), t.Org.ID, tok); err != nil {
		return err
	}
	if err := a.note(c, t, "token.add", tok); err != nil {
		// Nobody has seen it, and nobody shall use it: it is in no record.
		return errors.Join(err, a.Tokens.Revoke(lasting(c), t.Org.ID, tok.ID, a.Clock()))
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusCreated, shownToken{text, tok})
}

// token finds a token of the path: a person's own, or any of the organisation for its administrators.
func (a *api) token(c echo.Context, t tenancy.Tenant, own bool) (tenancy.AccessToken, error) {
	tok, err := a.Tokens.Get(c.Request().Context(), t.Org.ID, c.Param("id"))
	if err == nil && own && tok.Creator != t.User {
		err = fault.New(fault.NotFound, "admin.token", "not_found", "There is no such access token here. GET the list of tokens for their ids.")
	}
	return tok, err
}

func (a *api) rotateToken(c echo.Context, t tenancy.Tenant, own bool) error {
	const op = "admin.rotateToken"
	tok, err := a.token(c, t, own)
	if err != nil {
		return err
	}
	switch {
	case tok.Creator != t.User && !tok.Service:
		return fault.New(fault.Forbidden, op, "token_personal", "This token acts as the person who made it, so nobody else may have it. Revoke it, or make another.")
	case !tok.Role.AtMost(t.Role):
		return fault.New(fault.Forbidden, op, "token_role", "This token has a higher role than you. Ask an owner of your organisation.")
	case tok.RevokedAt != nil || !a.Clock().Before(tok.ExpiresAt):
		return fault.New(fault.Conflict, op, "token_ended", "This token has ended. Make a new one.")
	}
	text, hash := tenancy.DrawToken()
	last := text[len(text)-4:]
	if err := a.Tokens.Rotate(lasting(c), t.Org.ID, tok.ID, tok.Hash, hash, last); err != nil {
		return err
	}
	if err := a.note(c, t, "token.rotate", map[string]string{"id": tok.ID, "label": tok.Label, "lastFour": last, "before": tok.LastFour}); err != nil {
		return err
	}
	tok.LastFour = last
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusOK, shownToken{text, tok})
}

func (a *api) revokeToken(c echo.Context, t tenancy.Tenant, own bool) error {
	tok, err := a.token(c, t, own)
	if err != nil {
		return err
	}
	if err := a.Tokens.Revoke(lasting(c), t.Org.ID, tok.ID, a.Clock()); err != nil {
		return err
	}
	if err := a.note(c, t, "token.revoke", map[string]string{"id": tok.ID, "label": tok.Label, "lastFour": tok.LastFour}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// stopTokens stops all tokens of a person who is no longer trusted, also later ones, or lets them on again.
func (a *api) stopTokens(c echo.Context, t tenancy.Tenant, _ bool) error {
	raw, err := body(c)
	if err != nil {
		return err
	}
	var in struct {
		Stopped *bool `json:"stopped"`
	}
	if err := decodeObject("admin.stopTokens", raw, "", &in, "stopped"); err != nil {
		return err
	}
	if in.Stopped == nil {
		return fault.Invalidf("admin.stopTokens", "/stopped", "Say \"stopped\": true or false.")
	}
	user := tenancy.UserID(c.Param("user"))
	if err := a.Tokens.Stop(lasting(c), t.Org.ID, user, *in.Stopped); err != nil {
		return err
	}
	if err := a.note(c, t, "token.stop", map[string]any{"creator": user, "stopped": *in.Stopped}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

package httpapi

import (
	"encoding/json"

	"github.com/labstack/echo/v4"
)

// signingKeys is GET /.well-known/jwks.json: the keys that verify the tokens this gateway sends to host apps (RFC 7517). It is for anyone.
func (s *Server) signingKeys(c echo.Context) error {
	doc, err := s.SigningKeys()
	if err != nil {
		return err
	}
	// Keys are published a whole period before they sign, so an hour in somebody's cache does no harm.
	c.Response().Header().Set("Cache-Control", "public, max-age=3600")
	return reply(c, json.RawMessage(doc))
}

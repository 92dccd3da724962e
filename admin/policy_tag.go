package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
)

// This file is how the answers of the policy routes are told apart: each GET has an ETag of what it says, and is not sent again to
// those who have it.

// versioned answers a document that has a number people refer to by If-Match. The ETag begins with it and goes on with a hash of the
// bytes, because the same number can come with something else: a draft that was not saved yet starts from what is live, and whether a
// revision is live depends on the replicas.
func versioned(c echo.Context, number int64, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fault.From(err)
	}
	return taggedBlob(c, strconv.FormatInt(number, 10)+"-"+hashOf(raw), echo.MIMEApplicationJSON, raw)
}

// hashOf is what of a hash is in an ETag.
func hashOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// taggedBlob answers bytes, or that the caller has them already.
func taggedBlob(c echo.Context, tag, contentType string, raw []byte) error {
	tag = `"` + tag + `"`
	c.Response().Header().Set("ETag", tag)
	for _, known := range strings.Split(c.Request().Header.Get("If-None-Match"), ",") {
		if known = strings.TrimPrefix(strings.TrimSpace(known), "W/"); known == tag || known == "*" {
			return c.NoContent(http.StatusNotModified)
		}
	}
	return c.Blob(http.StatusOK, contentType, raw)
}

// told answers a document without a number.
func told(c echo.Context, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fault.From(err)
	}
	return taggedBlob(c, hashOf(raw), echo.MIMEApplicationJSON, raw)
}

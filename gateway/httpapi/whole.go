package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
)

// sendWhole writes an answer that is not streamed. Each piece of it takes at most writeWindow: a caller who does not read a large document must
// not hold a turn, and its place in the organisation's concurrency, for ever.
func sendWhole(c echo.Context, clock func() time.Time, contentType string, body []byte) error {
	res := c.Response()
	rc := http.NewResponseController(res.Writer)
	defer func() { _ = rc.SetWriteDeadline(time.Time{}) }() // the connection goes on without it
	res.Header().Set("Content-Type", contentType)
	res.Header().Set("Content-Length", strconv.Itoa(len(body)))
	res.WriteHeader(http.StatusOK)
	for len(body) > 0 { // the deadline rolls, so that a slow reader is not a stopped one
		_ = rc.SetWriteDeadline(clock().Add(writeWindow)) // not supported by test recorders; then there is no deadline
		n, err := res.Write(body[:min(len(body), 64<<10)])
		if err != nil {
			return err
		}
		body = body[n:]
	}
	// Not flushed: the last piece leaves when the handler returns, and then the turn is settled. Who has the whole answer has been counted.
	return nil
}

func sendJSON(c echo.Context, clock func() time.Time, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return sendWhole(c, clock, "application/json", body)
}

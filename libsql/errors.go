package libsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"

	sqlite "modernc.org/sqlite"

	"github.com/lossless-group/gateway/fault"
)

// trouble is what a driver's error means to us.
type trouble uint8

const (
	other trouble = iota
	constraint
	away    // locked, full, unreachable: the same call may work later
	expired // the server dropped our stream; nothing of an unfinished transaction was kept
	denied  // the server does not take our token
	cancelled
	late
)

// diagnose is the one place that reads driver errors. The network driver has no typed errors, so their text is read here
// and nowhere else.
func diagnose(err error) trouble {
	var se *sqlite.Error
	if errors.As(err, &se) {
		switch se.Code() & 0xff {
		case 19: // SQLITE_CONSTRAINT
			return constraint
		case 5, 6, 8, 10, 13, 14: // BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN
			return away
		case 9: // INTERRUPT: only a context does that
			return cancelled
		}
		return other
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return late
	case errors.Is(err, context.Canceled):
		return cancelled
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return expired
	}
	text := err.Error()
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	var ne net.Error
	var ue *url.Error
	switch {
	// The driver drops the body of a 400 answer; the protocol knows no other reason for one than a stream that is gone.
	case has("error code 400", "STREAM_EXPIRED", "stream not found", "stream expired", "stream is closed", "invalid baton"):
		return expired
	case has("constraint failed", "SQLITE_CONSTRAINT"):
		return constraint
	case has("database is locked", "database table is locked", "SQLITE_BUSY", "SQLITE_LOCKED"):
		return away
	case has("error code 401", "error code 403"):
		return denied
	case has("error code 404", "error code 429", "error code 5"):
		return away
	case errors.As(err, &ue), errors.As(err, &ne), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return away
	}
	return other
}

// translate makes a fault of a driver's error; faults pass unchanged.
func translate(op string, err error) error {
	if err == nil {
		return nil
	}
	var fe *fault.Error
	if errors.As(err, &fe) {
		return err
	}
	switch diagnose(err) {
	case constraint:
		return fault.Wrap(fault.Conflict, op, "already_exists", "Something with that id or name exists already; read it and decide again.", err)
	case away, expired:
		return fault.Wrap(fault.Unavailable, op, "database_unavailable", "A database of the gateway cannot be reached; try again in a moment.", err)
	case denied:
		return fault.Wrap(fault.Unavailable, op, "database_denied", "A database of the gateway refuses the gateway's token; an operator must renew it.", err)
	case cancelled:
		return fault.Wrap(fault.Canceled, op, "canceled", "The request was cancelled before the database answered.", err)
	case late:
		return fault.Wrap(fault.Timeout, op, "database_timeout", "A database of the gateway did not answer in time; try again in a moment.", err)
	}
	return fault.Wrap(fault.Internal, op, "database_error", "A database of the gateway answered an error; if it stays, tell us the request id.", err)
}

func notFound(op, sentence string) error {
	return fault.New(fault.NotFound, op, "not_found", sentence)
}

func needOrg(op string, org interface{ IsZero() bool }) error {
	if org.IsZero() {
		return fault.New(fault.Internal, op, "org_missing", "An organisation is needed for this; if it stays, tell us the request id.")
	}
	return nil
}

package libsql

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"database/sql"

	client "github.com/tursodatabase/libsql-client-go/libsql"
	sqlite "modernc.org/sqlite"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
)

// address is a parsed database URL.
type address struct {
	path string // of a file database
	url  string // of a network database
	tls  *bool  // libsql: only
}

func (a address) remote() bool { return a.path == "" }

func parseAddress(raw string) (address, error) {
	const op = "libsql.parseAddress"
	bad := func(sentence string) (address, error) {
		return address{}, fault.New(fault.Invalid, op, "config", sentence)
	}
	if path, ok := strings.CutPrefix(raw, "file:"); ok {
		path = strings.TrimPrefix(path, "//")
		if path == "" || path == "/" || strings.HasPrefix(path, ":") || strings.ContainsAny(path, "?#\x00") {
			return bad("A file: database URL is file: and a path, without parameters, such as file:data/control.db.")
		}
		return address{path: filepath.Clean(path)}, nil
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return bad("A database URL is file:PATH, libsql://HOST, https://HOST or http://HOST; give the token apart from it.")
	}
	a := address{}
	switch u.Scheme {
	case "libsql":
		switch u.RawQuery {
		case "":
		case "tls=0":
			off := false
			a.tls = &off
		case "tls=1":
			on := true
			a.tls = &on
		default:
			return bad("A libsql: database URL takes no parameter but tls=0 or tls=1.")
		}
		u.RawQuery = ""
	case "http", "https":
		if u.RawQuery != "" {
			return bad("An http: or https: database URL takes no parameters.")
		}
	default:
		return bad("A database URL starts with file:, libsql:, https: or http:.")
	}
	a.url = strings.TrimSuffix(u.String(), "/")
	return a, nil
}

// fileDSN escapes everything SQLite's URI grammar could read as something else than a path. Pages of 8 KiB hold two turns as most
// are, where one of 4 KiB would hold one and waste the rest; a checkpoint comes every 16 MiB.
func (a address) fileDSN(extra string) string {
	parts := strings.Split(filepath.ToSlash(a.path), "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "file:" + strings.Join(parts, "/") +
		"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=page_size(8192)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=wal_autocheckpoint(2000)&_pragma=foreign_keys(1)" + extra
}

// exists reports whether a file database is there; network databases are assumed to be.
func (a address) exists() bool {
	if a.remote() {
		return true
	}
	_, err := os.Stat(a.path)
	return err == nil
}

// pools opens a writing pool of one connection and a reading pool.
func (a address) pools(token keyring.Secret) (write, read *sql.DB, err error) {
	const op = "libsql.open"
	if !a.remote() {
		if err := os.MkdirAll(filepath.Dir(a.path), 0o700); err != nil {
			return nil, nil, fault.Wrap(fault.Unavailable, op, "database_unavailable", "The directory of a database cannot be created; check the gateway's configuration.", err)
		}
		w, err := sqlite.NewConnector(a.fileDSN(""))
		if err != nil {
			return nil, nil, translate(op, err)
		}
		r, err := sqlite.NewConnector(a.fileDSN("&_pragma=query_only(1)"))
		if err != nil {
			return nil, nil, translate(op, err)
		}
		write, read = sql.OpenDB(w), sql.OpenDB(r)
		write.SetMaxOpenConns(1)
		read.SetMaxOpenConns(4)
		read.SetMaxIdleConns(4)
		return write, read, nil
	}
	var opts []client.Option
	if !token.IsZero() {
		opts = append(opts, client.WithAuthToken(token.Reveal()))
	}
	if a.tls != nil {
		opts = append(opts, client.WithTls(*a.tls))
	}
	c, err := client.NewConnector(a.url, opts...)
	if err != nil {
		return nil, nil, translate(op, err)
	}
	write, read = sql.OpenDB(c), sql.OpenDB(c)
	write.SetMaxOpenConns(1)
	read.SetMaxOpenConns(8)
	read.SetMaxIdleConns(4)
	return write, read, nil
}

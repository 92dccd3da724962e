// Package migrations owns the SQL that shapes the two kinds of database: the one control database and the tenant
// databases, one per organisation.
//
// It refuses to know drivers and how migrations are applied; libsql does that and records a checksum of every file.
//
// Invariants: files are named NNNN_name.sql and run in that order, one transaction each, forward only; a file that was
// released is never edited, a change is a new file.
package migrations

import (
	"embed"
	"io/fs"
)

//go:embed control/*.sql tenant/*.sql
var files embed.FS

// Control returns the migrations of the control database.
func Control() fs.FS { return sub("control") }

// Tenant returns the migrations of a tenant database.
func Tenant() fs.FS { return sub("tenant") }

func sub(dir string) fs.FS {
	f, err := fs.Sub(files, dir)
	if err != nil {
		panic("migrations: " + err.Error()) // the directory is compiled in, so this is a broken build
	}
	return f
}

-- +goose Up
-- Every revision of what an app registered is kept. A NULL document is a revision by which the app was removed.
CREATE TABLE app_documents (
  app      TEXT NOT NULL,
  revision INTEGER NOT NULL,
  sealed   BLOB,
  sha256   TEXT NOT NULL,
  by_user  TEXT NOT NULL,
  at_ms    INTEGER NOT NULL,
  PRIMARY KEY (app, revision)
) STRICT, WITHOUT ROWID;

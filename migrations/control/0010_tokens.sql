-- +goose Up
-- Access tokens: of the token itself there is only its SHA-256. Lists are JSON.
CREATE TABLE access_tokens (
  id           TEXT PRIMARY KEY,
  org_id       TEXT NOT NULL,
  hash         BLOB NOT NULL UNIQUE,
  label        TEXT NOT NULL,
  last_four    TEXT NOT NULL,
  creator      TEXT NOT NULL,
  email        TEXT NOT NULL,
  service      INTEGER NOT NULL,
  role         TEXT NOT NULL,
  surfaces     TEXT NOT NULL,
  models       TEXT NOT NULL,
  capabilities TEXT NOT NULL,
  networks     TEXT NOT NULL,
  created_ms   INTEGER NOT NULL,
  expires_ms   INTEGER NOT NULL,
  last_used_ms INTEGER,
  revoked_ms   INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX access_tokens_by_org ON access_tokens (org_id, created_ms);

-- The standing of those who made tokens: the role they were last seen with, and whether an administrator stopped them.
CREATE TABLE token_creators (
  org_id  TEXT NOT NULL,
  user_id TEXT NOT NULL,
  role    TEXT NOT NULL,
  stopped INTEGER NOT NULL,
  PRIMARY KEY (org_id, user_id)
) STRICT, WITHOUT ROWID;

-- One number that every change of the two tables above raises; replicas ask for it each second.
CREATE TABLE token_generation (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  n   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO token_generation (one, n) VALUES (1, 1);

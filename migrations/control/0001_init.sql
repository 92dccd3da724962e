-- +goose Up
-- Times are Unix milliseconds, money is integer pico-USD.

CREATE TABLE orgs (
  id         TEXT PRIMARY KEY,
  slug       TEXT NOT NULL UNIQUE,
  name       TEXT NOT NULL,
  billing    TEXT NOT NULL,
  plan       TEXT NOT NULL,
  time_zone  TEXT NOT NULL,
  operating  INTEGER NOT NULL,
  created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
  id      TEXT PRIMARY KEY,
  email   TEXT NOT NULL,
  seen_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE memberships (
  user_id TEXT NOT NULL,
  org_id  TEXT NOT NULL,
  role    TEXT NOT NULL,
  seen_ms INTEGER NOT NULL,
  PRIMARY KEY (user_id, org_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX memberships_by_org ON memberships (org_id, user_id);

CREATE TABLE org_keys (
  id           TEXT PRIMARY KEY,
  org_id       TEXT NOT NULL,
  user_id      TEXT NOT NULL CHECK (user_id = ''),
  provider     TEXT NOT NULL,
  label        TEXT NOT NULL,
  last_four    TEXT NOT NULL,
  hint         TEXT NOT NULL,
  master_id    TEXT NOT NULL,
  nonce        BLOB NOT NULL,
  ciphertext   BLOB NOT NULL,
  created_ms   INTEGER NOT NULL,
  last_used_ms INTEGER,
  revoked_ms   INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX org_keys_by_owner ON org_keys (org_id, provider, created_ms);

CREATE TABLE user_api_keys (
  id           TEXT PRIMARY KEY,
  org_id       TEXT NOT NULL,
  user_id      TEXT NOT NULL CHECK (user_id <> ''),
  provider     TEXT NOT NULL,
  label        TEXT NOT NULL,
  last_four    TEXT NOT NULL,
  hint         TEXT NOT NULL,
  master_id    TEXT NOT NULL,
  nonce        BLOB NOT NULL,
  ciphertext   BLOB NOT NULL,
  created_ms   INTEGER NOT NULL,
  last_used_ms INTEGER,
  revoked_ms   INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX user_api_keys_by_owner ON user_api_keys (org_id, user_id, provider, created_ms);

-- Every revision is kept; the highest is in force.
CREATE TABLE org_settings (
  org_id   TEXT NOT NULL,
  revision INTEGER NOT NULL,
  doc      TEXT NOT NULL,
  by_user  TEXT NOT NULL,
  at_ms    INTEGER NOT NULL,
  PRIMARY KEY (org_id, revision)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
  org_id   TEXT NOT NULL,
  at_ms    INTEGER NOT NULL,
  id       TEXT NOT NULL,
  actor    TEXT NOT NULL,
  home_org TEXT NOT NULL,
  action   TEXT NOT NULL,
  detail   TEXT NOT NULL,
  PRIMARY KEY (org_id, at_ms, id)
) STRICT, WITHOUT ROWID;

-- One row per distinct string of the ledger, so that an event holds small integers.
CREATE TABLE word (
  id   INTEGER PRIMARY KEY,
  text TEXT NOT NULL UNIQUE
) STRICT;

-- payload_hash stays NOT NULL on purpose: appending an id again with other content sets it to NULL, which fails the
-- whole statement and so changes nothing.
-- Rows lie in the order reports read them: an organisation's events by their start.
CREATE TABLE usage_event (
  id           TEXT NOT NULL UNIQUE,
  run_len      INTEGER NOT NULL,
  run          TEXT,
  org          INTEGER NOT NULL,
  user         INTEGER NOT NULL,
  home_org     INTEGER NOT NULL,
  project      INTEGER NOT NULL,
  thread       INTEGER NOT NULL,
  surface      INTEGER NOT NULL,
  provider     INTEGER NOT NULL,
  model        INTEGER NOT NULL,
  requested    INTEGER NOT NULL,
  key_source   INTEGER NOT NULL,
  key          INTEGER NOT NULL,
  status       INTEGER NOT NULL,
  basis        INTEGER NOT NULL,
  price_row    INTEGER NOT NULL,
  price_rev    INTEGER NOT NULL,
  step         INTEGER NOT NULL,
  try          INTEGER NOT NULL,
  started_ms   INTEGER NOT NULL,
  took_ms      INTEGER NOT NULL,
  input_hint   INTEGER NOT NULL,
  t_in         INTEGER NOT NULL,
  t_cr         INTEGER NOT NULL,
  t_w5         INTEGER NOT NULL,
  t_w1         INTEGER NOT NULL,
  t_out        INTEGER NOT NULL,
  t_reason     INTEGER NOT NULL,
  searches     INTEGER NOT NULL,
  delivered    INTEGER NOT NULL,
  cost_pico    INTEGER,
  payload_hash BLOB NOT NULL,
  PRIMARY KEY (org, started_ms, id)
) STRICT, WITHOUT ROWID;

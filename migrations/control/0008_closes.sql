-- +goose Up
-- Periods that were closed, and what providers say of the same calls.

-- totals is JSON. sha256 is over the period's rows of rollup_day, sorted, with their words.
CREATE TABLE period_close (
  org_id    TEXT NOT NULL,
  period    TEXT NOT NULL,
  from_ms   INTEGER NOT NULL,
  to_ms     INTEGER NOT NULL,
  zone      TEXT NOT NULL,
  sha256    BLOB NOT NULL,
  rows      INTEGER NOT NULL,
  totals    TEXT NOT NULL,
  by_user   TEXT NOT NULL,
  closed_ms INTEGER NOT NULL,
  PRIMARY KEY (org_id, period)
) STRICT, WITHOUT ROWID;

-- One row per comparison with a provider's own reports; lines is JSON, one per day, key and model. Days before up_to are verified.
CREATE TABLE reconciliation (
  id         INTEGER PRIMARY KEY,
  provider   TEXT NOT NULL,
  from_ms    INTEGER NOT NULL,
  to_ms      INTEGER NOT NULL,
  up_to_ms   INTEGER NOT NULL,
  difference INTEGER NOT NULL,
  lines      TEXT NOT NULL,
  at_ms      INTEGER NOT NULL
) STRICT;

CREATE INDEX reconciliation_newest ON reconciliation (provider, at_ms);

-- Who may read billing without being an administrator; an empty org_id is every organisation.
CREATE TABLE finance_grants (
  user_id TEXT NOT NULL,
  org_id  TEXT NOT NULL,
  by_user TEXT NOT NULL,
  at_ms   INTEGER NOT NULL,
  PRIMARY KEY (user_id, org_id)
) STRICT, WITHOUT ROWID;

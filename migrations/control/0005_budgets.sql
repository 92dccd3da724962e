-- +goose Up
-- What organisations may spend, what was booked against that, and what attempts under way hold.

-- Amounts are nano-USD or tokens. seq is never used twice, so that a hold cannot meet another budget of the same id.
CREATE TABLE budgets (
  seq            INTEGER PRIMARY KEY AUTOINCREMENT,
  org_id         TEXT NOT NULL,
  id             TEXT NOT NULL,
  scope          TEXT NOT NULL,
  subject        TEXT NOT NULL,
  unit           TEXT NOT NULL,
  cap            INTEGER NOT NULL,
  mode           TEXT NOT NULL,
  rhythm         TEXT NOT NULL,
  zone           TEXT NOT NULL,
  alerts         TEXT NOT NULL,
  unpriced       TEXT NOT NULL,
  count_byok     INTEGER NOT NULL,
  raise_amount   INTEGER NOT NULL DEFAULT 0,
  raise_until_ms INTEGER NOT NULL DEFAULT 0,
  raise_reason   TEXT NOT NULL DEFAULT '',
  raise_by       TEXT NOT NULL DEFAULT '',
  version        INTEGER NOT NULL,
  by_user        TEXT NOT NULL,
  at_ms          INTEGER NOT NULL,
  UNIQUE (org_id, id)
) STRICT;

-- One row per budget and window that anything was held in.
CREATE TABLE budget_counters (
  budget   INTEGER NOT NULL,
  start_ms INTEGER NOT NULL,
  spent    INTEGER NOT NULL,
  reserved INTEGER NOT NULL CHECK (reserved >= 0),
  PRIMARY KEY (budget, start_ms)
) STRICT, WITHOUT ROWID;

-- state: held, expired (freed, and booked all the same when its attempt is settled), settled (kept a while, so that settling again books
-- nothing). lines is JSON: [[budget, start_ms, from_ms, amount, unit], ...].
CREATE TABLE budget_holds (
  id      TEXT PRIMARY KEY,
  org_id  TEXT NOT NULL,
  replica TEXT NOT NULL,
  lines   TEXT NOT NULL,
  state   TEXT NOT NULL,
  at_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX budget_holds_open ON budget_holds (replica, at_ms) WHERE state = 'held';
CREATE INDEX budget_holds_done ON budget_holds (at_ms) WHERE state <> 'held';

CREATE TABLE budget_replicas (
  replica  TEXT PRIMARY KEY,
  until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per budget, window and threshold that was crossed, ever.
CREATE TABLE budget_alerts (
  budget   INTEGER NOT NULL,
  start_ms INTEGER NOT NULL,
  percent  INTEGER NOT NULL,
  org_id   TEXT NOT NULL,
  spent    INTEGER NOT NULL,
  cap      INTEGER NOT NULL,
  at_ms    INTEGER NOT NULL,
  PRIMARY KEY (budget, start_ms, percent)
) STRICT, WITHOUT ROWID;

CREATE INDEX budget_alerts_by_org ON budget_alerts (org_id, at_ms);

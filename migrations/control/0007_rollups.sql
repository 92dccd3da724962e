-- +goose Up
-- Sums of the ledger, kept in the same transaction as its events, and what reports and closes need besides.

-- 0 stands for a word that is empty.
ALTER TABLE usage_event ADD COLUMN token INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage_event ADD COLUMN capability INTEGER NOT NULL DEFAULT 0;
-- When the event counts, where that is not when it started: its own period was closed before it came.
ALTER TABLE usage_event ADD COLUMN booked_ms INTEGER;
-- List price and what the organisation owes, less the cost: mostly 0, which takes no room. list_d is NULL when there is no list price.
ALTER TABLE usage_event ADD COLUMN list_d INTEGER DEFAULT 0;
ALTER TABLE usage_event ADD COLUMN billed_d INTEGER NOT NULL DEFAULT 0;
-- 1: no cost is known; -1: a correction that gives one.
ALTER TABLE usage_event ADD COLUMN unpriced INTEGER NOT NULL DEFAULT 0;

UPDATE usage_event SET list_d = NULL, unpriced = 1 WHERE cost_pico IS NULL;
UPDATE usage_event SET billed_d = -cost_pico WHERE cost_pico <> 0 AND key_source IN (SELECT id FROM word WHERE text = 'user-byok');

CREATE INDEX usage_event_booked ON usage_event (org, booked_ms) WHERE booked_ms IS NOT NULL;

-- zone: whose days rollup_day has. Everything before closed_ms is closed. Events that started before kept_ms may be gone; their sums stay.
CREATE TABLE ledger_org (
  org       INTEGER PRIMARY KEY,
  zone      TEXT NOT NULL,
  closed_ms INTEGER NOT NULL DEFAULT 0,
  kept_ms   INTEGER NOT NULL DEFAULT 0
) STRICT;

-- slot counts quarter hours since 1970, UTC. A wide row is the hour that begins there, as most zones need no more.
-- Money is in millions of pico-USD (_hi) and the rest (_lo), so that no sum overflows; l and b are list and billed less the cost.
CREATE TABLE rollup_slot (
  org        INTEGER NOT NULL,
  slot       INTEGER NOT NULL,
  wide       INTEGER NOT NULL,
  project    INTEGER NOT NULL,
  user       INTEGER NOT NULL,
  key        INTEGER NOT NULL,
  token      INTEGER NOT NULL,
  provider   INTEGER NOT NULL,
  model      INTEGER NOT NULL,
  surface    INTEGER NOT NULL,
  capability INTEGER NOT NULL,
  key_source INTEGER NOT NULL,
  status     INTEGER NOT NULL,
  n          INTEGER NOT NULL,
  t_in       INTEGER NOT NULL,
  t_cr       INTEGER NOT NULL,
  t_w5       INTEGER NOT NULL,
  t_w1       INTEGER NOT NULL,
  t_out      INTEGER NOT NULL,
  t_reason   INTEGER NOT NULL,
  searches   INTEGER NOT NULL,
  c_hi       INTEGER NOT NULL,
  c_lo       INTEGER NOT NULL,
  l_hi       INTEGER NOT NULL,
  l_lo       INTEGER NOT NULL,
  b_hi       INTEGER NOT NULL,
  b_lo       INTEGER NOT NULL,
  unpriced   INTEGER NOT NULL,
  estimated  INTEGER NOT NULL,
  PRIMARY KEY (org, slot, wide, project, user, key, token, provider, model, surface, capability, key_source, status)
) STRICT, WITHOUT ROWID;

-- day counts calendar days since 1970 in the organisation's zone.
CREATE TABLE rollup_day (
  org        INTEGER NOT NULL,
  day        INTEGER NOT NULL,
  project    INTEGER NOT NULL,
  user       INTEGER NOT NULL,
  key        INTEGER NOT NULL,
  token      INTEGER NOT NULL,
  provider   INTEGER NOT NULL,
  model      INTEGER NOT NULL,
  surface    INTEGER NOT NULL,
  capability INTEGER NOT NULL,
  key_source INTEGER NOT NULL,
  status     INTEGER NOT NULL,
  n          INTEGER NOT NULL,
  t_in       INTEGER NOT NULL,
  t_cr       INTEGER NOT NULL,
  t_w5       INTEGER NOT NULL,
  t_w1       INTEGER NOT NULL,
  t_out      INTEGER NOT NULL,
  t_reason   INTEGER NOT NULL,
  searches   INTEGER NOT NULL,
  c_hi       INTEGER NOT NULL,
  c_lo       INTEGER NOT NULL,
  l_hi       INTEGER NOT NULL,
  l_lo       INTEGER NOT NULL,
  b_hi       INTEGER NOT NULL,
  b_lo       INTEGER NOT NULL,
  unpriced   INTEGER NOT NULL,
  estimated  INTEGER NOT NULL,
  PRIMARY KEY (org, day, project, user, key, token, provider, model, surface, capability, key_source, status)
) STRICT, WITHOUT ROWID;

-- The same days by what most questions are about, so that they need not read a row for each person.
CREATE TABLE rollup_model (
  org        INTEGER NOT NULL,
  day        INTEGER NOT NULL,
  provider   INTEGER NOT NULL,
  model      INTEGER NOT NULL,
  key_source INTEGER NOT NULL,
  n          INTEGER NOT NULL,
  t_in       INTEGER NOT NULL,
  t_cr       INTEGER NOT NULL,
  t_w5       INTEGER NOT NULL,
  t_w1       INTEGER NOT NULL,
  t_out      INTEGER NOT NULL,
  t_reason   INTEGER NOT NULL,
  searches   INTEGER NOT NULL,
  c_hi       INTEGER NOT NULL,
  c_lo       INTEGER NOT NULL,
  l_hi       INTEGER NOT NULL,
  l_lo       INTEGER NOT NULL,
  b_hi       INTEGER NOT NULL,
  b_lo       INTEGER NOT NULL,
  unpriced   INTEGER NOT NULL,
  estimated  INTEGER NOT NULL,
  PRIMARY KEY (org, day, provider, model, key_source)
) STRICT, WITHOUT ROWID;

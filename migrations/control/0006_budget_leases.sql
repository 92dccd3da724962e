-- +goose Up
-- Replicas keep room for many attempts at once, and are told apart from what was booked. Alerts reach the organisation's own systems.

ALTER TABLE budgets ADD COLUMN since_ms INTEGER NOT NULL DEFAULT 0;

-- One row per replica and organisation that keeps room ahead. lines is JSON: [[budget, start_ms, from_ms, amount, unit], ...].
CREATE TABLE budget_leases (
  id      TEXT PRIMARY KEY,
  org_id  TEXT NOT NULL,
  replica TEXT NOT NULL,
  lines   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Attempts that were booked, kept a while so that booking again does nothing.
CREATE TABLE budget_booked (
  id    TEXT PRIMARY KEY,
  at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX budget_booked_by_time ON budget_booked (at_ms);

-- What was held attempt by attempt is free again: nothing runs while this does, and what was open is booked from the journal.
INSERT INTO budget_booked (id, at_ms) SELECT id, at_ms FROM budget_holds WHERE state = 'settled';
UPDATE budget_counters SET reserved = 0;
DELETE FROM budget_replicas;
DROP TABLE budget_holds;

-- Where an organisation wants to be told. The secret is sealed for the organisation.
CREATE TABLE webhooks (
  org_id  TEXT PRIMARY KEY,
  url     TEXT NOT NULL,
  secret  BLOB NOT NULL,
  version INTEGER NOT NULL,
  by_user TEXT NOT NULL,
  at_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What is to be told, and what was. state: waiting, delivered, failed. A row of a threshold has one id for ever.
CREATE TABLE webhook_outbox (
  id       TEXT PRIMARY KEY,
  org_id   TEXT NOT NULL,
  kind     TEXT NOT NULL,
  body     TEXT NOT NULL,
  state    TEXT NOT NULL,
  tries    INTEGER NOT NULL DEFAULT 0,
  made_ms  INTEGER NOT NULL,
  next_ms  INTEGER NOT NULL,
  done_ms  INTEGER NOT NULL DEFAULT 0,
  status   INTEGER NOT NULL DEFAULT 0,
  trouble  TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE INDEX webhook_outbox_due ON webhook_outbox (next_ms) WHERE state = 'waiting';
CREATE INDEX webhook_outbox_by_org ON webhook_outbox (org_id, made_ms);

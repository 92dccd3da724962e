-- +goose Up
-- Runs, the side effects they began, and what they said. Text in run_events is sealed; the other two tables hold none. at_ms is the moment
-- the status is of, so that a note that comes twice or late does not bring an older status back.
CREATE TABLE runs (
  id             TEXT PRIMARY KEY,
  user_id        TEXT NOT NULL,
  thread_id      TEXT NOT NULL,
  project_id     TEXT NOT NULL,
  asked_thread   TEXT NOT NULL,
  client_turn_id TEXT NOT NULL,
  asked_hash     TEXT NOT NULL,
  status         TEXT NOT NULL,
  last_seq       INTEGER NOT NULL,
  started_ms     INTEGER NOT NULL,
  at_ms          INTEGER NOT NULL,
  ended_ms       INTEGER
) STRICT;

CREATE INDEX runs_by_turn ON runs (user_id, client_turn_id, asked_thread, started_ms) WHERE client_turn_id <> '';
CREATE INDEX runs_listed ON runs (status, user_id, started_ms) WHERE status IN ('running', 'awaiting_confirmation', 'interrupted');
CREATE INDEX runs_by_time ON runs (at_ms);

CREATE TABLE run_dispatches (
  id          TEXT PRIMARY KEY,
  run_id      TEXT NOT NULL,
  user_id     TEXT NOT NULL,
  thread_id   TEXT NOT NULL,
  call_id     TEXT NOT NULL,
  capability  TEXT NOT NULL,
  phase       TEXT NOT NULL,
  preview_id  TEXT NOT NULL,
  args_hash   TEXT NOT NULL,
  state       TEXT NOT NULL,
  at_ms       INTEGER NOT NULL,
  ended_ms    INTEGER,
  resolved_by TEXT NOT NULL,
  resolved_ms INTEGER,
  note        TEXT NOT NULL
) STRICT;

CREATE INDEX run_dispatches_by_run ON run_dispatches (run_id);
CREATE INDEX run_dispatches_unknown ON run_dispatches (user_id, at_ms) WHERE state = 'indeterminate';
CREATE INDEX run_dispatches_by_time ON run_dispatches (at_ms);

CREATE TABLE run_events (
  run_id     TEXT NOT NULL,
  first_seq  INTEGER NOT NULL,
  last_seq   INTEGER NOT NULL,
  sealed     BLOB NOT NULL,
  created_ms INTEGER NOT NULL,
  PRIMARY KEY (run_id, first_seq)
) STRICT;

CREATE INDEX run_events_by_time ON run_events (created_ms);

-- Who may answer a preview besides the person who asked for it, and which call of the model's it is of.
ALTER TABLE pending_runs ADD COLUMN confirm_by TEXT NOT NULL DEFAULT '';
ALTER TABLE pending_runs ADD COLUMN call_id TEXT NOT NULL DEFAULT '';

CREATE INDEX pending_runs_untold ON pending_runs (decided_ms) WHERE status = 'expired' AND outcome = '';
CREATE INDEX pending_runs_decided ON pending_runs (decided_ms) WHERE status <> 'waiting';

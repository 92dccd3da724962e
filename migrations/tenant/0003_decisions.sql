-- +goose Up
-- The decision log: one line per question put to the policy. It holds attributes and counts, never message text.
-- flags: 1 allowed, 2 answered from the cache, 4 could not be evaluated. The question comes last, so that reading the other columns
-- does not read it.
CREATE TABLE decisions (
  id         TEXT PRIMARY KEY,
  at_ms      INTEGER NOT NULL,
  action     TEXT NOT NULL,
  flags      INTEGER NOT NULL,
  user_id    TEXT NOT NULL,
  role       TEXT NOT NULL,
  model      TEXT NOT NULL,
  capability TEXT NOT NULL,
  run_id     TEXT NOT NULL,
  codes      TEXT,
  revision   TEXT NOT NULL,
  us         INTEGER NOT NULL,
  weight     INTEGER NOT NULL,
  input      TEXT
) STRICT;

CREATE INDEX decisions_by_time ON decisions (at_ms, id);
CREATE INDEX decisions_by_action ON decisions (action, at_ms, id);

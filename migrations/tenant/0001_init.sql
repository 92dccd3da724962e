-- +goose Up
-- Times are Unix milliseconds. Text is in its redacted form; sealed columns open with the organisation's key only.

-- Whose database this is; checked at every opening.
CREATE TABLE owner (
  one    INTEGER PRIMARY KEY CHECK (one = 1),
  org_id TEXT NOT NULL
) STRICT;

CREATE TABLE agent_transcripts (
  id                    TEXT PRIMARY KEY,
  org_id                TEXT NOT NULL,
  user_id               TEXT NOT NULL,
  project_id            TEXT NOT NULL,
  project_kind          TEXT NOT NULL,
  thread_id             TEXT NOT NULL,
  turn_index            INTEGER NOT NULL,
  surface               TEXT NOT NULL,
  client_turn_id        TEXT NOT NULL,
  user_message          TEXT NOT NULL,
  model_message         TEXT NOT NULL,
  messages              TEXT,
  tool_calls            TEXT,
  tool_results          TEXT,
  model                 TEXT NOT NULL,
  provider              TEXT NOT NULL,
  key_source            TEXT NOT NULL,
  tokens_in             INTEGER NOT NULL,
  tokens_out            INTEGER NOT NULL,
  cache_read_tokens     INTEGER NOT NULL,
  cache_creation_tokens INTEGER NOT NULL,
  latency_ms            INTEGER NOT NULL,
  spine_hash            TEXT NOT NULL,
  registry_version      TEXT NOT NULL,
  policy_revision       TEXT NOT NULL,
  status                TEXT NOT NULL,
  sealed_map            BLOB,
  created_ms            INTEGER NOT NULL
) STRICT;

CREATE INDEX agent_transcripts_by_thread ON agent_transcripts (user_id, thread_id, turn_index, created_ms, project_id, project_kind);
CREATE INDEX agent_transcripts_by_client_turn ON agent_transcripts (user_id, thread_id, client_turn_id) WHERE client_turn_id <> '';

CREATE TABLE pending_runs (
  preview_id TEXT PRIMARY KEY,
  run_id     TEXT NOT NULL,
  user_id    TEXT NOT NULL,
  thread_id  TEXT NOT NULL,
  capability TEXT NOT NULL,
  sealed     BLOB NOT NULL,
  status     TEXT NOT NULL,
  decided_by TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  expires_ms INTEGER NOT NULL,
  decided_ms INTEGER
) STRICT;

CREATE INDEX pending_runs_waiting ON pending_runs (expires_ms) WHERE status = 'waiting';

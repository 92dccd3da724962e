-- +goose Up
-- What became of a decision about a preview: '' until it is known, then applied, failed or discarded. A decision without an outcome was taken
-- by a process that died before it could say more.
ALTER TABLE pending_runs ADD COLUMN outcome TEXT NOT NULL DEFAULT '';

-- +goose Up
-- Prices that were imported, and what single organisations pay instead.

-- Every revision is kept, because events name the one they were priced by; the highest number is in force.
CREATE TABLE price_revisions (
  number   INTEGER PRIMARY KEY,
  revision TEXT NOT NULL UNIQUE,
  doc      TEXT NOT NULL,
  note     TEXT NOT NULL,
  by_user  TEXT NOT NULL,
  at_ms    INTEGER NOT NULL
) STRICT;

-- rows is a price file of the same form, empty for none. A card is never changed; a later one with a later start follows it.
CREATE TABLE rate_cards (
  org_id     TEXT NOT NULL,
  id         TEXT NOT NULL,
  from_ms    INTEGER NOT NULL,
  to_ms      INTEGER,
  multiplier TEXT NOT NULL,
  rows       TEXT NOT NULL,
  at_ms      INTEGER NOT NULL,
  PRIMARY KEY (org_id, id)
) STRICT, WITHOUT ROWID;

-- What an event says beyond its columns, as JSON: counts by modality, the terms it was served on, the provider's own word on cost.
ALTER TABLE usage_event ADD COLUMN more TEXT;

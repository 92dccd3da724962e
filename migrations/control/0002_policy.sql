-- +goose Up
-- An organisation's settings become part of its policy: each saved document is a revision without Rego, under the same number.

-- settings and files are JSON. sha256 is of {"settings":<settings>,"files":<files>}; it is empty where this migration made the
-- row, because SQLite cannot compute it.
CREATE TABLE policy_revisions (
  org_id   TEXT NOT NULL,
  revision INTEGER NOT NULL CHECK (revision > 0),
  sha256   TEXT NOT NULL,
  author   TEXT NOT NULL,
  note     TEXT NOT NULL,
  restores INTEGER NOT NULL,
  at_ms    INTEGER NOT NULL,
  settings TEXT NOT NULL,
  files    TEXT NOT NULL,
  PRIMARY KEY (org_id, revision)
) STRICT;

-- What was published once is evidence.
-- +goose StatementBegin
CREATE TRIGGER policy_revisions_stay BEFORE UPDATE ON policy_revisions
BEGIN
  SELECT RAISE(ABORT, 'a policy revision never changes');
END;
-- +goose StatementEnd

-- The live revision of each organisation. generation is the number of the publish that made it live, over all organisations.
CREATE TABLE policy_active (
  org_id     TEXT PRIMARY KEY,
  revision   INTEGER NOT NULL,
  generation INTEGER NOT NULL UNIQUE
) STRICT, WITHOUT ROWID;

-- The last generation given out. It is kept apart from policy_active, so that removing an organisation gives none out again.
CREATE TABLE policy_generation (
  one  INTEGER PRIMARY KEY CHECK (one = 1),
  last INTEGER NOT NULL
) STRICT;

-- settings is NULL when the draft was dropped: the row stays, because a version given out again would let a save that was made
-- against the dropped draft overwrite the next one.
CREATE TABLE policy_drafts (
  org_id   TEXT PRIMARY KEY,
  version  INTEGER NOT NULL,
  base     INTEGER NOT NULL,
  author   TEXT NOT NULL,
  at_ms    INTEGER NOT NULL,
  settings TEXT,
  files    TEXT
) STRICT;

INSERT INTO policy_revisions (org_id, revision, sha256, author, note, restores, at_ms, settings, files)
SELECT org_id, revision, '', by_user, '', 0, at_ms, doc, '[]' FROM org_settings;

INSERT INTO policy_active (org_id, revision, generation)
SELECT org_id, max(revision), row_number() OVER (ORDER BY org_id) FROM org_settings GROUP BY org_id;

INSERT INTO policy_generation (one, last) SELECT 1, count(*) FROM policy_active;

DROP TABLE org_settings;

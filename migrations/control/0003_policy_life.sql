-- +goose Up
-- What happens to a policy besides being published: second admins approve it, it is tried beside the live one, replicas say that they
-- serve it.

-- generation is the number of the publish over all organisations, 0 for revisions from before it was kept; approvals is JSON.
ALTER TABLE policy_revisions ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE policy_revisions ADD COLUMN approvals TEXT NOT NULL DEFAULT '[]';

-- Words of second admins for one version of a draft. A version is never given out again, so a later save leaves them behind.
CREATE TABLE policy_approvals (
  org_id   TEXT NOT NULL,
  version  INTEGER NOT NULL,
  by_user  TEXT NOT NULL,
  home_org TEXT NOT NULL,
  sha256   TEXT NOT NULL,
  at_ms    INTEGER NOT NULL,
  PRIMARY KEY (org_id, version, by_user)
) STRICT, WITHOUT ROWID;

-- Attempts to publish by the caller's own name for them. body is the hash of what was asked.
CREATE TABLE policy_requests (
  org_id   TEXT NOT NULL,
  key      TEXT NOT NULL,
  body     TEXT NOT NULL,
  revision INTEGER NOT NULL,
  at_ms    INTEGER NOT NULL,
  PRIMARY KEY (org_id, key)
) STRICT, WITHOUT ROWID;

-- The one policy of an organisation that is evaluated beside the live revision base.
CREATE TABLE policy_shadows (
  org_id   TEXT PRIMARY KEY,
  id       TEXT NOT NULL,
  base     INTEGER NOT NULL,
  version  INTEGER NOT NULL,
  author   TEXT NOT NULL,
  at_ms    INTEGER NOT NULL,
  settings TEXT NOT NULL,
  files    TEXT NOT NULL
) STRICT;

-- What each replica counted so far; writing a count again replaces it, so a repeated write counts nothing twice. counts is JSON.
CREATE TABLE policy_shadow_counts (
  org_id  TEXT NOT NULL,
  id      TEXT NOT NULL,
  replica TEXT NOT NULL,
  counts  TEXT NOT NULL,
  PRIMARY KEY (org_id, id, replica)
) STRICT, WITHOUT ROWID;

-- The processes that serve; generation is that of the newest publish they are ready for.
CREATE TABLE policy_replicas (
  id         TEXT PRIMARY KEY,
  generation INTEGER NOT NULL,
  started_ms INTEGER NOT NULL,
  seen_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Organisations whose newest revision does not decide in a replica.
CREATE TABLE policy_replica_troubles (
  replica  TEXT NOT NULL,
  org_id   TEXT NOT NULL,
  standing TEXT NOT NULL,
  PRIMARY KEY (replica, org_id)
) STRICT, WITHOUT ROWID;

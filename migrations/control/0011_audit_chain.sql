-- +goose Up
-- The audit becomes a chain for each organisation: hash is over the row and prev, which is the hash of the row before. The rows that are
-- there get their numbers here and their hashes when the program first opens the database, which SQL cannot compute.
CREATE TABLE audit_chain (
  org_id   TEXT NOT NULL,
  seq      INTEGER NOT NULL,
  at_ms    INTEGER NOT NULL,
  id       TEXT NOT NULL,
  actor    TEXT NOT NULL,
  home_org TEXT NOT NULL,
  action   TEXT NOT NULL,
  detail   TEXT NOT NULL,
  before   TEXT NOT NULL,
  after    TEXT NOT NULL,
  token    TEXT NOT NULL,
  address  TEXT NOT NULL,
  agent    TEXT NOT NULL,
  request  TEXT NOT NULL,
  prev     BLOB NOT NULL,
  hash     BLOB NOT NULL,
  PRIMARY KEY (org_id, seq)
) STRICT, WITHOUT ROWID;

INSERT INTO audit_chain (org_id, seq, at_ms, id, actor, home_org, action, detail, before, after, token, address, agent, request, prev, hash)
SELECT org_id, row_number() OVER (PARTITION BY org_id ORDER BY at_ms, id), at_ms, id, actor, home_org, action, detail, '', '', '', '', '', '', x'', x'' FROM audit;

DROP TABLE audit;

ALTER TABLE audit_chain RENAME TO audit;

CREATE INDEX audit_by_id ON audit (org_id, id);

-- The end of each chain, so that rows cannot go missing there.
CREATE TABLE audit_heads (
  org_id TEXT PRIMARY KEY,
  seq    INTEGER NOT NULL,
  hash   BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- +goose Up
-- What redaction found in turns, in counts: never a value. day is the UTC day of the turn, as days since 1970.
CREATE TABLE redaction_findings (
	turn_id  TEXT    NOT NULL,
	day      INTEGER NOT NULL,
	entity   TEXT    NOT NULL,
	position TEXT    NOT NULL,
	action   TEXT    NOT NULL,
	n        INTEGER NOT NULL,
	PRIMARY KEY (turn_id, entity, position, action)
) STRICT;
CREATE INDEX redaction_findings_day ON redaction_findings (day, entity, position, action, n);

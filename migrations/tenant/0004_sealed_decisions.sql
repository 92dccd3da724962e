-- +goose Up
-- The question of a decision lies sealed from here on, bound to its organisation and its decision; input stays for lines from before.
-- shadow is what a policy that is being tried said, as JSON.
ALTER TABLE decisions ADD COLUMN shadow TEXT;
ALTER TABLE decisions ADD COLUMN sealed BLOB;

-- Entries become batches: those of one key and hour that were taken in together. An entry from before is a batch of one,
-- where it lies. Journals are taken by position: so many bytes of each are in.

ALTER TABLE entries RENAME TO batches;

ALTER TABLE batches RENAME COLUMN request_id TO id;

ALTER TABLE batches RENAME COLUMN time TO last;

ALTER TABLE batches ADD COLUMN span BIGINT NOT NULL DEFAULT 0;

ALTER TABLE batches ADD COLUMN count BIGINT NOT NULL DEFAULT 1;

ALTER TABLE batches ADD COLUMN prefix TEXT;

ALTER TABLE batches ADD COLUMN low BIGINT;

ALTER TABLE batches ADD COLUMN high BIGINT;

ALTER TABLE batches ADD COLUMN lines TEXT;

CREATE INDEX batches_prefix ON batches (prefix, high) WHERE prefix IS NOT NULL;

CREATE TABLE journals (
    name TEXT PRIMARY KEY,
    taken BIGINT NOT NULL
);

INSERT INTO journals VALUES ('', 0)

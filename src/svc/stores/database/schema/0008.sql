-- Oldest program: 4
-- The schema version whose sums include a batch. A program that does not know a newer sum leaves the number lower, and
-- a newer program then adds what is missing. A version that adds a sum creates the index again, with its own number.

ALTER TABLE batches ADD COLUMN sums_version BIGINT NOT NULL DEFAULT 0;

CREATE INDEX batches_old_sums ON batches (last) WHERE sums_version < 8

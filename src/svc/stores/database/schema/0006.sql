-- Oldest program: 4
-- The sums count the requests that ended with an error or an interrupted stream. Sums from before have 0.

ALTER TABLE hours ADD COLUMN errors BIGINT NOT NULL DEFAULT 0;

ALTER TABLE days ADD COLUMN errors BIGINT NOT NULL DEFAULT 0

-- Oldest program: 4
-- The sums by hour of requests that did not end with the status `ok`, for usage by status. They begin at `since`, after
-- the newest hour that had sums before: usage by status of earlier hours is read from entries.

CREATE TABLE status_hours (
    start BIGINT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    provider TEXT NOT NULL,
    tags TEXT NOT NULL,
    status TEXT NOT NULL,
    key_name TEXT NOT NULL,
    requests BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    priced BIGINT NOT NULL,
    errors BIGINT NOT NULL,
    PRIMARY KEY (key_id, start, model, provider, tags, status)
);

CREATE INDEX status_hours_start ON status_hours (start);

CREATE TABLE status_hours_begin (
    since BIGINT NOT NULL
);

INSERT INTO status_hours_begin SELECT COALESCE(MAX(start) + 3600, 0) FROM hours

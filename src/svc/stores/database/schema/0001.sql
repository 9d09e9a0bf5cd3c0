-- Keys, entries and their sums. Runs on SQLite and PostgreSQL alike. Times of entries are milliseconds since 1970.

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    old_digest TEXT,
    revision BIGINT NOT NULL,
    body TEXT NOT NULL
);

CREATE INDEX keys_old_digest ON keys (old_digest) WHERE old_digest IS NOT NULL;

CREATE INDEX keys_revision ON keys (revision);

CREATE TABLE key_revision (
    one INTEGER PRIMARY KEY,
    revision BIGINT NOT NULL
);

INSERT INTO key_revision VALUES (1, 0);

CREATE TABLE entries (
    request_id TEXT PRIMARY KEY,
    time BIGINT NOT NULL,
    key_id TEXT NOT NULL,
    body TEXT NOT NULL
);

CREATE INDEX entries_time ON entries (time);

CREATE INDEX entries_key_time ON entries (key_id, time);

CREATE TABLE hours (
    start BIGINT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    provider TEXT NOT NULL,
    tags TEXT NOT NULL,
    key_name TEXT NOT NULL,
    requests BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    priced BIGINT NOT NULL,
    PRIMARY KEY (key_id, start, model, provider, tags)
);

CREATE INDEX hours_start ON hours (start);

CREATE TABLE days (
    start BIGINT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    provider TEXT NOT NULL,
    tags TEXT NOT NULL,
    key_name TEXT NOT NULL,
    requests BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    priced BIGINT NOT NULL,
    PRIMARY KEY (key_id, start, model, provider, tags)
);

CREATE INDEX days_start ON days (start)

-- Responses that `[responses] store` keeps, and the items of their requests and outputs, for conversations that continue.

CREATE TABLE responses (
    key_id TEXT NOT NULL,
    id TEXT NOT NULL,
    previous_id TEXT,
    created_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    provider TEXT NOT NULL,
    account BIGINT NOT NULL,
    native BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (key_id, id)
);

CREATE INDEX responses_expires_at ON responses (expires_at);

CREATE TABLE response_items (
    key_id TEXT NOT NULL,
    response_id TEXT NOT NULL,
    position BIGINT NOT NULL,
    item_id TEXT NOT NULL,
    is_input BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (key_id, response_id, position)
);

CREATE INDEX response_items_item_id ON response_items (key_id, item_id)

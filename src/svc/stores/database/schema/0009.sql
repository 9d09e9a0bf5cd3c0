-- Oldest program: 4
-- The ids of stored responses and of their output items, whichever key made them. They outlive the responses: a provider
-- must not get the id of a deleted response, or of one that another key made.

CREATE TABLE response_ids (
    id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    response_id TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (id, key_id)
);

CREATE INDEX response_ids_expires_at ON response_ids (expires_at);

INSERT INTO response_ids
SELECT known.id, known.key_id, MAX(known.response_id), MAX(known.expires_at) FROM (
    SELECT id, key_id, id AS response_id, expires_at FROM responses
    UNION ALL
    SELECT response_items.item_id, response_items.key_id, response_items.response_id, responses.expires_at
    FROM response_items
    JOIN responses ON responses.key_id = response_items.key_id AND responses.id = response_items.response_id
    WHERE response_items.is_input = 0
) AS known GROUP BY known.id, known.key_id

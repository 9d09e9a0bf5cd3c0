-- Oldest program: 4
-- The name of the account that made a response. Unlike its number, it does not depend on the order of `accounts`.
-- It is empty in older rows, whose number counts.

ALTER TABLE responses ADD COLUMN account_name TEXT NOT NULL DEFAULT '';

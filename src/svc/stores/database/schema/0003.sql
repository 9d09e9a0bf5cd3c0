-- The lines of a large batch lie compressed (zlib) in `zipped`: an eighth to a thirtieth of the room, and of the writing.

ALTER TABLE batches ADD COLUMN zipped BYTEA

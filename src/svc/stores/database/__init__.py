"""The ledger, keys and journal segments in SQLite or PostgreSQL."""

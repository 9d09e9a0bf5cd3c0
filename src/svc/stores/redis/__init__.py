"""A Redis client: its connection and its protocol."""

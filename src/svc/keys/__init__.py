"""Manage issued keys: `lifecycle` changes them, `cache` holds those in use, `usage_query` reports usage. No HTTP."""

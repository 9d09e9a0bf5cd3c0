"""Manage issued keys: `lifecycle` changes them, `cache` caches keys in use, `usage_query` reports usage. No HTTP."""

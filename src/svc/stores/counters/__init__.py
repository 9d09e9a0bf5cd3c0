"""Counters of rate limits and budgets, in shared memory or Redis."""

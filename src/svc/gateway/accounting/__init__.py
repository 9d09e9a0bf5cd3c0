"""The cost of requests, and the ledger that records it."""

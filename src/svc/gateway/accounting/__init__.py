"""What requests cost, and the ledger that keeps it."""

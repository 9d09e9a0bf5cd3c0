"""Issued keys: `issuing` makes them, `known` has those in use in memory, `spending` says what they spent. No HTTP."""

"""Issued keys: `issuing` makes and changes them, `known` has those that are in use in memory. No HTTP, no command."""

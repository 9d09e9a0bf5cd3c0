"""The response cache, which is optional: identical requests get the same response."""

"""The registry's server: what it answers, and how it sends large files."""

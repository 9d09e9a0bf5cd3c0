"""Assemble services from settings, and run the servers."""

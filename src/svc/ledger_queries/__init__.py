"""Queries of the ledger for the API and the console. They run in a child process, so that requests do not wait."""

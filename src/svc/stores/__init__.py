"""Persistent and shared state: one interface per kind of state, one module per backend."""

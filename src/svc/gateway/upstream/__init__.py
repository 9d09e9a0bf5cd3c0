"""Connections to providers."""

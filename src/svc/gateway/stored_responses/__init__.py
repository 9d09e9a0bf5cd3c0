"""Responses that `[responses] store` keeps in the database."""

"""Sockets without HTTP: reading, writing, TLS, DNS lookups and memory allocation."""

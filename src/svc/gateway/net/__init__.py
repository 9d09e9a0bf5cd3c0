"""Sockets without HTTP: writing, reading, TLS, names, the allocator."""

"""Mutation testing of the modules without I/O: `make mutation`. Not part of `make test`."""

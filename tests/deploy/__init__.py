"""Installs svc with the files of `deploy/` and starts it there, without a container engine."""

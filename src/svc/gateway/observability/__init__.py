"""Metrics and log lines about requests."""

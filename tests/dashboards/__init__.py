"""Executes every query of the dashboards and alert rules against a real Prometheus."""

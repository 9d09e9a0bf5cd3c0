"""Spans of requests, and their export as OTLP over HTTP (https://opentelemetry.io/docs/specs/otlp/)."""

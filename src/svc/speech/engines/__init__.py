"""Engines: what turns audio into words, one file per library, found by the name in a model's description."""

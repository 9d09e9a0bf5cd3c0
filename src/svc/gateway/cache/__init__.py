"""Answers that are given again to the same request, where the configuration asks for that."""

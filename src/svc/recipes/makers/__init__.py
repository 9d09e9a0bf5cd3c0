"""Makers: files that a recipe derives from others, one module per kind, named by `[[derived]] maker` in the recipe.

A maker is a pure function of bytes:

    def make(*sources: bytes) -> bytes
"""

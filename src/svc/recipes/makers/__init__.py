"""Makers derive files of a recipe from other files. A module each, named by `[[derived]] maker`.

A maker is a function of bytes without I/O:

    def make(*sources: bytes) -> bytes
"""

"""Kinds of stages, one file each; `base` says what they are."""

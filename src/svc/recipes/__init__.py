"""Recipes: how to make a model from published packages. A TOML file each, and the code that executes it."""

"""Recipes: how a model is made from published packages. Data, one TOML file each, and the code that follows it."""

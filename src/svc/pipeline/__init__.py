"""Pipelines of stages, run on this machine, through a gateway, or directly at a provider."""

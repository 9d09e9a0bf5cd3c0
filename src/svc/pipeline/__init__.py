"""Pipelines: one definition of stages, run on this machine, through a gateway, or straight at a provider."""

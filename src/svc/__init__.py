"""svc: one small program through which applications reach models, wherever those run."""

__version__ = "0.1.0"

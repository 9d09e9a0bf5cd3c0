"""HTTP endpoints of the gateway, one file each."""

from __future__ import annotations

from svc import plugins
from svc.dialects.endpoint import Endpoint


def load_endpoints() -> list[Endpoint]:
    """Every endpoint that reaches for a model: the plug-ins of this package that have an `endpoint`."""
    modules = [plugins.load("gateway.endpoints", name) for name in plugins.names("gateway.endpoints")]
    return [module.endpoint for module in modules if hasattr(module, "endpoint")]

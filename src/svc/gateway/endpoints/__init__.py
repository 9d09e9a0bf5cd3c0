"""HTTP endpoints of the gateway, one module per endpoint or family."""

from __future__ import annotations

from svc import plugins
from svc.dialects.endpoint import Endpoint


def load_endpoints() -> list[Endpoint]:
    """Return the endpoints that call a model: the variable `endpoint` of each module of this package that has one."""
    modules = [plugins.load("gateway.endpoints", name) for name in plugins.names("gateway.endpoints")]
    return [module.endpoint for module in modules if hasattr(module, "endpoint")]

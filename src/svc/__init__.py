"""svc is an AI gateway, a live speech server and a model registry in one program.

It also contains an SDK: `svc.init()`, `svc.Client()`.
`import svc` loads no other module. Each name of the SDK is imported at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from svc.client.aio import AsyncClient as AsyncClient
    from svc.client.client import Client as Client
    from svc.client.config import init as init
    from svc.client.config import set_api_key as set_api_key
    from svc.client.config import set_gateway_url as set_gateway_url
    from svc.errors import SvcError as SvcError
    from svc.wire.speech import Final as Final
    from svc.wire.speech import Partial as Partial

__version__ = "0.1.0"

_LAZY_EXPORTS = {
    "AsyncClient": "svc.client.aio",
    "Client": "svc.client.client",
    "Final": "svc.wire.speech",
    "Partial": "svc.wire.speech",
    "SvcError": "svc.errors",
    "init": "svc.client.config",
    "set_api_key": "svc.client.config",
    "set_gateway_url": "svc.client.config",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"module 'svc' has no attribute {name!r}")
    return getattr(import_module(_LAZY_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_EXPORTS})

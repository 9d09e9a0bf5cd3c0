"""What there is to ask: each model at each provider, made ready once: a request only has to pick it. No sockets."""

from __future__ import annotations

from typing import Final

from svc.dialects.base import Dialect, ModelProfile
from svc.gateway.routing.providers import Provider, UpstreamOrigin
from svc.settings import ModelSettings

EMBEDDED_PROVIDER: Final = "local"
"""The provider of the model that runs on this machine."""


class Backend:
    """A model at a provider: one place that a request can go to, its request head made in advance."""

    __slots__ = (
        "account_backends",
        "account_number",
        "context_window",
        "dialect",
        "kind",
        "model",
        "model_id",
        "origin",
        "profile",
        "provider",
        "provider_name",
        "request_head",
    )

    def __init__(self, provider: Provider, model: ModelSettings, account_number: int = 0) -> None:
        self.provider = provider
        self.provider_name: str = provider.name
        self.dialect: Dialect = provider.dialect
        self.kind: str = model.kind
        self.model = model
        self.model_id: str = model.id
        self.context_window: int = model.context_window
        name = model.upstream_id or model.id
        overrides = provider.dialect.model_overrides(name, provider.overrides)
        self.profile = ModelProfile(name, max_output_tokens=model.max_output_tokens, overrides=overrides)
        self.origin = upstream_origin(provider)
        self.request_head = build_request_head(provider)
        """What comes before and after the path: see `build_request_head`."""
        self.account_number = account_number
        """From 1, where the provider has several."""
        self.account_backends: tuple[Backend, ...] = ()
        """The same model by each account, if there are several; a request goes to one of these."""

    def __repr__(self) -> str:
        return f"Offer({self.model_id} at {self.provider_name})"  # never the credentials in the head


def build_backends(provider: Provider) -> list[Backend]:
    """Every model of a provider, ready to be called."""
    backends = [Backend(provider, model) for model in provider.models]
    for backend in backends:
        backend.account_backends = tuple(Backend(one, backend.model, at) for at, one in enumerate(provider.accounts, 1))
    return backends


def upstream_origin(provider: Provider) -> UpstreamOrigin:
    """Where a provider's connections go."""
    address = provider.address
    tls = address.scheme == "https"
    return UpstreamOrigin(address.hostname or "", address.port or (443 if tls else 80), tls)


def build_request_head(provider: Provider) -> tuple[bytes, bytes]:
    """The head of a request before and after the endpoint's path, up to the value of Content-Length."""
    address = provider.address
    lines = [
        " HTTP/1.1",
        f"host: {address.netloc.rpartition('@')[2]}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        "user-agent: svc",
        *[f"{name}: {value}" for name, value in provider.dialect.auth_headers(provider.key)],
        "content-length: ",
    ]
    return f"POST {address.path}".encode("ascii"), "\r\n".join(lines).encode("ascii")

"""What there is to ask: each model at each provider, made ready once: a request only has to pick it. No sockets."""

from __future__ import annotations

from typing import Final

from svc.dialects.base import Dialect, Target
from svc.gateway.providers import Origin, Provider
from svc.settings import ModelSettings

EMBEDDED: Final = "local"
"""The provider of the model that runs on this machine."""


class Offer:
    """A model at a provider: one place that a request can go to, its request head made in advance."""

    __slots__ = (
        "account",
        "accounts",
        "context_window",
        "dialect",
        "head",
        "model",
        "model_id",
        "origin",
        "provider",
        "provider_name",
        "target",
    )

    def __init__(self, provider: Provider, model: ModelSettings, account: int = 0) -> None:
        self.provider = provider
        self.provider_name: str = provider.name
        self.dialect: Dialect = provider.dialect
        self.model = model
        self.model_id: str = model.id
        self.context_window: int = model.context_window
        name = model.upstream_id or model.id
        quirks = provider.dialect.model_quirks(name, provider.quirks)
        self.target = Target(name, max_output_tokens=model.max_output_tokens, quirks=quirks)
        self.origin = origin_of(provider)
        self.head = head_of(provider)
        """Request line and headers up to the value of Content-Length."""
        self.account = account
        """From 1, where the provider has several."""
        self.accounts: tuple[Offer, ...] = ()
        """The same model by each account, if there are several; a request goes to one of these."""

    def __repr__(self) -> str:
        return f"Offer({self.model_id} at {self.provider_name})"  # never the credentials in the head


def offers_of(provider: Provider) -> list[Offer]:
    """Every model of a provider, ready to be called."""
    found = [Offer(provider, model) for model in provider.models]
    for offer in found:
        offer.accounts = tuple(Offer(one, offer.model, at) for at, one in enumerate(provider.accounts, 1))
    return found


def origin_of(provider: Provider) -> Origin:
    """Where a provider's connections go."""
    address = provider.address
    tls = address.scheme == "https"
    return Origin(address.hostname or "", address.port or (443 if tls else 80), tls)


def head_of(provider: Provider) -> bytes:
    """The head of a chat at a provider, up to the value of Content-Length."""
    address, dialect = provider.address, provider.dialect
    lines = [
        f"POST {address.path}{dialect.chat_path} HTTP/1.1",
        f"host: {address.netloc.rpartition('@')[2]}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        "user-agent: svc",
        *[f"{name}: {value}" for name, value in dialect.credentials(provider.key)],
        "content-length: ",
    ]
    return "\r\n".join(lines).encode("ascii")

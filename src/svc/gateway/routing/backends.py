"""A backend: a model at a provider, with its origin and its precomputed request head. No I/O."""

from __future__ import annotations

from svc.dialects.base import Dialect, ModelProfile
from svc.gateway.routing.fair_queue import FairQueue
from svc.gateway.routing.providers import Provider, UpstreamOrigin
from svc.settings import ModelSettings


class Backend:
    """A model at a provider, with its upstream address and request head."""

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
        "queue",
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
        self.profile = ModelProfile(
            name,
            max_output_tokens=model.max_output_tokens,
            overrides=overrides,
            has_responses=provider.has_responses,
            input_window=model.context_window if provider.local_model else 0,
        )
        self.origin = upstream_origin(provider)
        self.request_head = build_request_head(provider, name)
        """The parts of the request head before and after the path, see `build_request_head`."""
        self.account_number = account_number
        """The number of the account, from 1, or 0 if the provider has one account."""
        self.account_backends: tuple[Backend, ...] = ()
        """The model at each account, if the provider has several. A request goes to one of these."""
        self.queue: FairQueue | None = None
        """Where requests wait for their turn, if a server of this machine divides its time between keys."""

    def __repr__(self) -> str:
        return f"Backend({self.model_id} at {self.provider_name})"  # without the credentials in the request head


def build_backends(provider: Provider) -> list[Backend]:
    """Return a backend for each model of a provider."""
    backends = [Backend(provider, model) for model in provider.models]
    for backend in backends:
        backend.account_backends = tuple(
            Backend(account, backend.model, number) for number, account in enumerate(provider.accounts, 1)
        )
    return backends


def upstream_origin(provider: Provider) -> UpstreamOrigin:
    """Return the host, port and scheme of a provider's address."""
    address = provider.address
    uses_tls = address.scheme == "https"
    port = address.port or (443 if uses_tls else 80)
    return UpstreamOrigin(address.hostname or "", port, uses_tls, provider.proxy, provider.local_model)


def build_request_head(provider: Provider, upstream_model: str) -> tuple[bytes, bytes]:
    """Return a request head in two parts, before and after the endpoint's path. It ends before the Content-Length.

    The second part begins with the query of the provider. `upstream_model` may be a part of its address.

    A proxy needs the complete address (RFC 9112, section 3.2.2), unless it only tunnels TLS.
    """
    address, proxy = provider.address, provider.proxy
    is_forwarded = proxy is not None and address.scheme == "http"
    path = provider.base_path(upstream_model)
    target = f"http://{address.netloc}{path}" if is_forwarded else path
    lines = [
        f"{provider.query} HTTP/1.1",
        f"host: {address.netloc.rpartition('@')[2]}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        "user-agent: svc",
        *[f"{name}: {value}" for name, value in provider.auth_headers()],
        *([f"proxy-authorization: {proxy.authorization}"] if is_forwarded and proxy and proxy.authorization else []),
        "content-length: ",
    ]
    return f"POST {target}".encode("ascii"), "\r\n".join(lines).encode("ascii")

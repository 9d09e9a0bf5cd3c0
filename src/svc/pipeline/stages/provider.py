"""Calls a provider's model: directly if its key is in the environment, else through the gateway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from svc import settings
from svc.bundles.metadata import BundleMetadata
from svc.client.chat import ChatBackend
from svc.client.client import Client
from svc.client.core import DirectProvider
from svc.dialects.base import ModelProfile
from svc.errors import GatewayFailed, ProviderFailed, UsageError
from svc.gateway.routing.backends import build_backends
from svc.gateway.routing.providers import Provider, build_providers
from svc.pipeline.definition import Stage
from svc.pipeline.stages._language_model import stream_chat
from svc.pipeline.stages.base import Route, StageChunk, StageRunInfo


def fits(metadata: BundleMetadata) -> bool:
    """Return False: bundles run on the device."""
    return False


def make(stage: Stage, environ: Mapping[str, str], client: Client | None = None) -> ProviderRunner:
    """Create the runner and choose the route. Raises UsageError and InvalidRequest for an invalid address.

    With `client`, the stage calls the gateway of the client, unless it has a `gateway_url`.
    """
    if client is not None and not stage.options.gateway_url:
        return ProviderRunner(stage, client, "gateway", stage.provider, owns_client=False)
    model = stage.model or ""
    provider = None
    if not stage.options.gateway_url:
        model = settings.load(environ).models_by_alias.get(model, model)
        provider = _find_provider(stage, model, environ)
    if provider is None:
        return ProviderRunner(stage, Client(gateway_url=stage.options.gateway_url), "gateway", stage.provider)
    profile = next(
        (backend.profile for backend in build_backends(provider) if backend.model_id == model),
        ModelProfile(model=model, overrides=provider.dialect.model_overrides(model, provider.overrides)),
    )
    direct = DirectProvider(
        provider.address._replace(path=provider.base_path(profile.model)).geturl(),
        dict(provider.auth_headers()),
        ChatBackend(provider.dialect, profile),
    )
    return ProviderRunner(stage, Client(direct=direct), "direct", provider.name)


def _find_provider(stage: Stage, model: str, environ: Mapping[str, str]) -> Provider | None:
    """Return a provider whose key is in the environment: the named one, else the first with the model.

    A provider that needs a query is called through the gateway.
    """
    try:
        keyed_providers = [
            provider for provider in build_providers(settings.load(environ)) if provider.key and not provider.query
        ]
    except UsageError as error:
        raise UsageError(f"The configured providers cannot be used: {error.message}") from error
    if stage.provider:
        return next((provider for provider in keyed_providers if provider.name == stage.provider.lower()), None)
    return next(
        (provider for provider in keyed_providers if any(offered.id == model for offered in provider.models)), None
    )


class ProviderRunner:
    """The runner of a provider stage."""

    input_kind = output_kind = "text"

    def __init__(
        self, stage: Stage, client: Client, route: Route, provider: str | None, *, owns_client: bool = True
    ) -> None:
        self.route: Route = route
        self.model = stage.model or ""
        self.provider = provider
        self.address = client.gateway_url
        self._stage, self._client, self._owns_client = stage, client, owns_client

    def run(self, input_chunks: Iterator[StageChunk], run_info: StageRunInfo) -> Iterator[StageChunk]:
        try:
            yield from stream_chat(self._client, self.model, self._stage.options, input_chunks, run_info)
        except GatewayFailed as error:
            if self.route == "gateway":
                raise
            raise ProviderFailed(error.message) from error

    def close(self) -> None:
        if self._owns_client:
            self._client.close()

"""A provider's model: through the gateway, or directly where its key is at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from svc import settings
from svc.bundles.metadata import Metadata
from svc.client.chat import Server
from svc.client.client import Client
from svc.client.core import Direct
from svc.dialects.base import Target
from svc.errors import GatewayFailed, ProviderFailed, UsageError
from svc.gateway.offers import offers_of
from svc.gateway.providers import Provider, providers_of
from svc.pipeline.definition import Stage
from svc.pipeline.stages._asking import ask
from svc.pipeline.stages.base import Item, Route, Told


def fits(about: Metadata) -> bool:
    """Bundles run on the device."""
    return False


def make(stage: Stage, environ: Mapping[str, str]) -> Asking:
    """The stage, with the way that it takes. Raises UsageError, InvalidRequest for addresses that are none."""
    model = stage.model or ""
    provider = None if stage.options.gateway_url else _provider(stage, model, environ)
    if provider is None:
        return Asking(stage, Client(gateway_url=stage.options.gateway_url), "gateway", stage.provider)
    target = next(
        (offer.target for offer in offers_of(provider) if offer.model_id == model),
        Target(model=model, quirks=provider.dialect.model_quirks(model, provider.quirks)),
    )
    direct = Direct(
        provider.address.geturl(),
        dict(provider.dialect.credentials(provider.key)),
        Server(provider.dialect, target),
    )
    return Asking(stage, Client(direct=direct), "direct", provider.name)


def _provider(stage: Stage, model: str, environ: Mapping[str, str]) -> Provider | None:
    """Whose key is in the environment. A stage that names no provider means the one that has the model."""
    try:
        known = [provider for provider in providers_of(settings.load(environ)) if provider.key]
    except UsageError as error:
        raise UsageError(f"The providers that are configured cannot be used: {error.message}") from error
    if stage.provider:
        return next((provider for provider in known if provider.name == stage.provider.lower()), None)
    return next((one for one in known if any(offered.id == model for offered in one.models)), None)


class Asking:
    """A `Runner`."""

    takes = gives = "text"

    def __init__(self, stage: Stage, client: Client, route: Route, provider: str | None) -> None:
        self.route: Route = route
        self.model = stage.model or ""
        self.provider = provider
        self.address = client.gateway_url
        self._stage, self._client = stage, client

    def run(self, given: Iterator[Item], told: Told) -> Iterator[Item]:
        try:
            yield from ask(self._client, self.model, self._stage.options, given, told)
        except GatewayFailed as error:
            if self.route == "gateway":
                raise
            raise ProviderFailed(error.message) from error

    def close(self) -> None:
        self._client.close()

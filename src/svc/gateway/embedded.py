"""The embedded model as provider `local`: one more row beside A, B and C, reached like any other upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from svc.errors import UsageError
from svc.gateway.local import DEFAULT_MAX_TOKENS, LocalModel, Sampling
from svc.gateway.offers import offers_of
from svc.gateway.providers import provider_of
from svc.gateway.router import Router
from svc.recipes import make, recipe
from svc.settings import ModelSettings, ProviderSettings, Settings


@asynccontextmanager
async def embedded_model(settings: Settings, router: Router) -> AsyncIterator[None]:
    """While the context is, the model of `[local]` is offered, if that is enabled; its child process ends with it.

    Raises CommandFailed when the model is not there or does not start, UsageError when its recipe is of another kind.
    """
    if not settings.local.enabled:
        yield
        return
    found = recipe.load(settings.local.model, settings.home / "recipes")
    template = found.metadata.execution_template
    if template.get("type") != "Gguf":
        raise UsageError(f"[local] model: {settings.local.model} is no language model that runs here (Gguf).")
    context = int(template["context_length"])
    entry = ProviderSettings(name="local", models=(_model(settings.local.model, context),))

    def moved(base_url: str) -> None:
        router.put(offers_of(provider_of(entry, base_url, model.key)))

    path = make.content(found, settings.registry_root) / str(template["model_file"])
    sampling = msgspec.convert(template.get("sampling", {}), Sampling)
    model = LocalModel(settings.local.model, path, context=context, sampling=sampling, moved=moved)
    await model.start()
    try:
        yield
    finally:
        await model.stop()


def _model(name: str, context: int) -> ModelSettings:
    return ModelSettings(
        id=name,
        context_window=context,
        max_output_tokens=DEFAULT_MAX_TOKENS,
        use_case="small, on this machine",
        input_price=0,
        output_price=0,
    )

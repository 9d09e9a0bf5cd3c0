"""Registers the embedded model as the provider `local`, which is called like any other upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from svc.errors import UsageError
from svc.gateway.local_model.supervisor import DEFAULT_LOCAL_MAX_TOKENS, LocalModelSupervisor, Sampling
from svc.gateway.routing.backends import build_backends
from svc.gateway.routing.providers import build_provider
from svc.gateway.routing.router import Router
from svc.recipes import make, recipe
from svc.settings import ModelSettings, ProviderSettings, Settings


@asynccontextmanager
async def run_embedded_model(settings: Settings, router: Router) -> AsyncIterator[None]:
    """Run the model of `[local]` and add its backend to the router, until the context ends. Do nothing if disabled.

    Raises CommandFailed if the model is not installed or does not start, and UsageError if its recipe is not a
    language model.
    """
    if not settings.local.enabled:
        yield
        return
    loaded_recipe = recipe.load_recipe(settings.local.model, settings.home / "recipes")
    template = loaded_recipe.metadata.execution_template
    if template.get("type") != "Gguf":
        raise UsageError(f"[local] model: {settings.local.model} is not a language model of the type Gguf.")
    context = int(template["context_length"])
    entry = ProviderSettings(name="local", models=(_model_settings(settings.local.model, context),))

    def on_address(base_url: str) -> None:
        router.put_backends(build_backends(build_provider(entry, base_url, supervisor.api_key)))

    path = make.content_folder(loaded_recipe, settings.registry_root) / str(template["model_file"])
    sampling = msgspec.convert(template.get("sampling", {}), Sampling)
    supervisor = LocalModelSupervisor(
        settings.local.model, path, context=context, sampling=sampling, on_address=on_address
    )
    await supervisor.start()
    try:
        yield
    finally:
        await supervisor.stop()


def _model_settings(name: str, context: int) -> ModelSettings:
    return ModelSettings(
        id=name,
        context_window=context,
        max_output_tokens=DEFAULT_LOCAL_MAX_TOKENS,
        use_case="small, on this machine",
        input_price=0,
        output_price=0,
    )

"""The guide to switch from LiteLLM: both of its configurations offer the same models in the same order of providers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from svc import settings
from svc.gateway.routing.backends import build_backends
from svc.gateway.routing.providers import build_providers
from svc.gateway.routing.router import Router
from tests.documentation.pages import ROOT
from tests.documentation.snippets import snippets

PAGE = ROOT / "docs" / "how-to" / "switch-from-litellm.md"
KEYS = {"OPENAI_API_KEY": "a", "AZURE_EU_KEY": "b", "ANTHROPIC_API_KEY": "c"}


@pytest.fixture
def loaded(tmp_path: Path) -> settings.Settings:
    """The settings of the page's `svc.toml`."""
    (text,) = (snippet.text for snippet in snippets(PAGE.read_text()) if snippet.language == "toml")
    (tmp_path / "svc.toml").write_text(text)
    return settings.load(KEYS, config=str(tmp_path / "svc.toml"))


@pytest.fixture
def litellm() -> dict[str, list[str]]:
    """The providers of each model in LiteLLM's configuration on the page, in the order of the file."""
    (text,) = (snippet.text for snippet in snippets(PAGE.read_text()) if snippet.language == "yaml")
    models: dict[str, list[str]] = {}
    for deployment in yaml.safe_load(text)["model_list"]:
        provider = deployment["litellm_params"]["model"].partition("/")[0]
        models.setdefault(deployment["model_name"], []).append(provider)
    return models


def test_switch_page_configurations_offer_the_same_models(
    loaded: settings.Settings, litellm: dict[str, list[str]]
) -> None:
    backends = [backend for provider in build_providers(loaded) for backend in build_backends(provider)]
    found: dict[str, list[str]] = {}
    for backend in backends:
        found.setdefault(backend.model.id, []).append(backend.provider.name)
    names = {"openai": "openai", "azure": "azure-eu", "anthropic": "anthropic", "hosted_vllm": "vllm"}
    assert found == {model: [names[provider] for provider in providers] for model, providers in litellm.items()}


def test_switch_page_fallbacks_and_alias_are_followed(loaded: settings.Settings) -> None:
    backends = [backend for provider in build_providers(loaded) for backend in build_backends(provider)]
    router = Router(backends, loaded.routing.fallbacks, aliases=loaded.models_by_alias)
    chains = {model: [backend.provider.name for backend in router.route(model)] for model in ("gpt-4", "qwen")}
    assert chains == {"gpt-4": ["openai", "azure-eu", "anthropic"], "qwen": ["vllm", "openai", "azure-eu"]}

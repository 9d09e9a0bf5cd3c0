"""Presets of [[providers]]: what they give, what an entry overrides, and errors for what only the user can say."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import pytest

from svc import settings
from svc.errors import ModelNotFound, UsageError
from svc.gateway.accounting.price_lookup import _find_price
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.presets import load_presets
from svc.gateway.routing.provider_entries import models_by_provider
from svc.gateway.routing.provider_warnings import provider_warnings
from svc.gateway.routing.providers import Provider, build_providers
from svc.gateway.routing.router import Router
from svc.gateway.routing.unconfigured_providers import missing_keys, models_without_key

PRESETS = ("azure", "gemini", "mistral", "openrouter", "ollama", "vllm")
AZURE = """
preset = "azure"
base_url = "https://mine.openai.azure.com/"
models = [{ id = "gpt-4o", upstream_id = "east" }]
"""
AZURE_KEY = {"AZURE_OPENAI_API_KEY": "azure-key"}


def load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> settings.Settings:
    path = tmp_path / "svc.toml"
    path.write_text(text)
    return settings.load(environ or {}, config=str(path))


def one(tmp_path: Path, entry: str, environ: dict[str, str] | None = None) -> Provider:
    (provider,) = build_providers(load(tmp_path, f"[[providers]]\n{entry}", environ))
    return provider


def head_lines(backend: Backend) -> list[str]:
    before, after = backend.request_head
    return (before + b"/chat/completions" + after).decode().split("\r\n")


def test_presets_are_those_of_the_documentation() -> None:
    assert tuple(load_presets()) == PRESETS


@pytest.mark.parametrize("name", ["gemini", "mistral"])
def test_preset_with_models_needs_only_a_key(tmp_path: Path, name: str) -> None:
    variable = f"{name.upper()}_API_KEY"
    provider = one(tmp_path, f'preset = "{name}"\n', {variable: "secret"})
    assert (provider.name, provider.dialect.name, provider.key) == (name, "openai", "secret")
    assert provider.address.scheme == "https"
    assert len(provider.models) > 3
    assert "authorization: Bearer secret" in head_lines(build_backends(provider)[0])


@pytest.mark.parametrize(("name", "key"), [("openrouter", "OPENROUTER_API_KEY"), ("ollama", ""), ("vllm", "")])
def test_preset_without_models_takes_those_of_the_entry(tmp_path: Path, name: str, key: str) -> None:
    entry = f'preset = "{name}"\nmodels = [{{ id = "m" }}]\n'
    provider = one(tmp_path, entry, {key: "secret"} if key else {})
    assert [model.id for model in provider.models] == ["m"]
    assert provider.address.path.endswith("/v1")
    with pytest.raises(UsageError, match=rf"line 2: Provider {name}: the preset {name} has no models: name yours"):
        one(tmp_path, f'preset = "{name}"\n', {key: "secret"} if key else {})


@pytest.mark.parametrize(("given", "path"), [("", "/v1"), ("/", "/v1"), ("/v1", "/v1"), ("/proxy", "/proxy")])
@pytest.mark.parametrize("name", ["ollama", "vllm"])
def test_preset_of_server_without_path_gets_v1(tmp_path: Path, name: str, given: str, path: str) -> None:
    entry = f'preset = "{name}"\nbase_url = "http://10.0.0.5:11434{given}"\nmodels = [{{ id = "m" }}]\n'
    assert one(tmp_path, entry).address.path == path


def test_preset_entry_overrides_every_value(tmp_path: Path) -> None:
    entry = """
        name = "mine"
        preset = "gemini"
        base_url = "http://127.0.0.1:5/v1"
        api_key_env = "MINE"
        quirks = { rejects = ["n"] }
        models = [{ id = "m" }]
    """
    provider = one(tmp_path, entry, {"MINE": "secret"})
    assert (provider.name, provider.key) == ("mine", "secret")
    assert provider.address.geturl() == "http://127.0.0.1:5/v1"
    assert provider.overrides.rejects == ("n",)
    assert [model.id for model in provider.models] == ["m"]


def test_azure_resource_address_gets_the_v1_path_and_the_key_header(tmp_path: Path) -> None:
    provider = one(tmp_path, AZURE, AZURE_KEY)
    lines = head_lines(build_backends(provider)[0])
    assert lines[0] == "POST /openai/v1/chat/completions HTTP/1.1"
    assert lines[1] == "host: mine.openai.azure.com"
    assert "api-key: azure-key" in lines
    assert not [line for line in lines if line.startswith("authorization")]
    assert provider.models_target() == "/openai/v1/models"


def test_azure_with_an_api_version_uses_the_deployments_path(tmp_path: Path) -> None:
    entry = AZURE.replace('"east"', '"east/1 %"') + 'api_version = "2024-10-21"\n'
    provider = one(tmp_path, entry, AZURE_KEY)
    backend = build_backends(provider)[0]
    path = "/openai/deployments/east%2F1%20%25/chat/completions"
    assert head_lines(backend)[0] == f"POST {path}?api-version=2024-10-21 HTTP/1.1"
    assert provider.models_target() == "/openai/models?api-version=2024-10-21"


def test_azure_address_with_a_path_is_kept(tmp_path: Path) -> None:
    entry = AZURE.replace("azure.com/", "azure.com/openai/v1/") + 'api_version = "preview"\n'
    backend = build_backends(one(tmp_path, entry, AZURE_KEY))[0]
    assert head_lines(backend)[0] == "POST /openai/v1/chat/completions?api-version=preview HTTP/1.1"


def test_azure_accounts_are_other_resources(tmp_path: Path) -> None:
    entry = AZURE + 'accounts = [{ base_url = "https://other.openai.azure.com", api_key_env = "OTHER" }]\n'
    provider = one(tmp_path, entry, {**AZURE_KEY, "OTHER": "other-key"})
    assert [account.address.geturl() for account in provider.accounts] == [
        "https://mine.openai.azure.com/openai/v1",
        "https://other.openai.azure.com/openai/v1",
    ]
    assert "api-key: other-key" in head_lines(build_backends(provider)[0].account_backends[1])


def test_two_entries_may_have_the_same_preset(tmp_path: Path) -> None:
    text = f'[[providers]]\n{AZURE}[[providers]]\nname = "azure-west"\n{AZURE}'
    assert [provider.name for provider in build_providers(load(tmp_path, text, AZURE_KEY))] == ["azure", "azure-west"]
    with pytest.raises(UsageError, match="have the same name 'azure': give one another name"):
        build_providers(load(tmp_path, text.replace('name = "azure-west"\n', ""), AZURE_KEY))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('preset = "azur"', "did you mean 'azure'? known: azure, gemini, mistral, openrouter, ollama, vllm."),
        ('preset = "Foo Bar"', "there is no preset 'Foo Bar'; known: azure,"),
        ('preset = ""', "there is no preset ''"),
        (f'preset = "{"x" * 9999}"', f"there is no preset '{'x' * 64}'; known"),
        ("preset = 1", "got integer in [providers["),
        ('preset = "azure"\nmodels = [{ id = "m" }]', "needs your base_url, such as https://NAME.openai.azure.com."),
        ('name = "openai"\npreset = "gemini"', "Provider openai is built in, so its entry cannot have a preset"),
        ('base_url = "http://a"', "there is no required field `name`"),
        (AZURE + 'api_version = "2024 10"', ".api_version]."),
        (AZURE + 'api_version = ""', ".api_version]."),
        (AZURE + 'api_key_header = "a b"', ".api_key_header]."),
        (AZURE + 'api_key_header = "Content-Length"', "api_key_header of provider azure cannot be 'Content-Length'"),
        (AZURE.replace("com/", "com/x/{deployment}"), "may contain no braces except {model}"),
        (
            AZURE.replace("com/", "com/openai/deployments/a/chat/completions?api-version=1"),
            "may have only a host, a port and a path. Write its api-version as api_version.",
        ),
        (AZURE.replace("com/", "com/openai/deployments/a/chat/completions"), "ends in /chat/completions, which each"),
    ],
)
def test_invalid_entry_names_the_field(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_providers(load(tmp_path, f"[[providers]]\n{entry}\n", AZURE_KEY))
    assert message in caught.value.message
    assert "azure-key" not in caught.value.message


def test_missing_key_is_named_as_for_other_providers(tmp_path: Path) -> None:
    config = load(tmp_path, '[[providers]]\npreset = "gemini"\n')
    assert build_providers(config) == []
    assert missing_keys(config) == [("gemini", "GEMINI_API_KEY")]
    (warning,) = provider_warnings(config, [])
    assert "GEMINI_API_KEY for gemini" in warning
    assert "gemini-3.8-flash" in models_by_provider(config)["gemini"]
    with pytest.raises(ModelNotFound, match=r"the provider gemini has no API key \(set GEMINI_API_KEY\)"):
        Router([], {}, models_without_key(config, [])).route("gemini-3.8-flash")


@pytest.mark.parametrize("name", ["gemini", "mistral"])
def test_models_of_a_preset_have_a_known_price(tmp_path: Path, name: str) -> None:
    provider = one(tmp_path, f'preset = "{name}"\n', {f"{name.upper()}_API_KEY": "k"})
    unpriced = [
        model.id for model in provider.models if not list(_find_price(name, model.id, provider.address.geturl()))
    ]
    assert unpriced == []


def test_presets_file_documents_each_preset_with_its_source() -> None:
    text = resources.files("svc.gateway").joinpath("presets.toml").read_text(encoding="utf-8")
    for block in text.split("[[presets]]")[:-1]:
        assert block.rstrip().rpartition("\n")[2].startswith("# https://"), block[-80:]
    assert len(tomllib.loads(text)["presets"]) == len(PRESETS)


def test_hints_of_openai_are_left_out_where_vendors_reject_them(tmp_path: Path) -> None:
    hints = {"prompt_cache_options", "prompt_cache_retention", "safety_identifier", "verbosity"}
    mistral = one(tmp_path, 'preset = "mistral"\n', {"MISTRAL_API_KEY": "secret"})
    gemini = one(tmp_path, 'preset = "gemini"\n', {"GEMINI_API_KEY": "secret"})
    (groq,) = build_providers(load(tmp_path, "", {"GROQ_API_KEY": "secret"}))
    assert hints <= set(mistral.overrides.rejects)
    assert hints | {"prompt_cache_key"} <= set(gemini.overrides.rejects) & set(groq.overrides.rejects)
    assert not {"prompt_cache_key", "logprobs"} & set(mistral.overrides.rejects)

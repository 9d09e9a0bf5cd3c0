"""Models that no recipe builds: adds GGUF files, and reads the states of all models from a running `svc up`."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from svc import settings
from svc.cli._folders import find_home
from svc.cli._output import print_json
from svc.cli._progress_bar import ProgressBar
from svc.client.discovery import find_gateway, read_local_api_key
from svc.distribution import install_command
from svc.errors import CommandFailed
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER, models_by_provider
from svc.recipes.recipe import list_recipes
from svc.stores.local_models import AddedModel, LocalModel
from svc.stores.model_files.install import ModelFiles, describe_size, install_model_files, local_file
from svc.stores.model_files.ollama import ollama_files

STATE_TIMEOUT_SECONDS = 2.0
_HUB_MODULE = "svc.stores.model_files.hub"
"""Imported on demand: it needs an extra, and takes half a second."""


def is_file_reference(text: str) -> bool:
    """Return whether the argument of `svc models add` names a file, and not a recipe."""
    return text.startswith(("hf:", "ollama:")) or text.lower().endswith(".gguf") or "/" in text


def add(reference: str, name: str | None, *, as_json: bool) -> int:
    """Install a model, and print what was installed. Raises CommandFailed and UsageError."""
    quant: str | None = None
    choices: tuple[str, ...] = ()
    if reference.startswith("hf:"):
        files, quant, choices = _download(reference.removeprefix("hf:"))
    elif reference.startswith("ollama:"):
        files = ollama_files(reference.removeprefix("ollama:"), os.environ)
    else:
        files = local_file(reference)
    reserved_names = [*list_recipes(find_home() / "recipes"), *_provider_names()]
    check_speech = importlib.import_module("svc.speech.model").detect_model if files.is_speech else None
    model, is_new = install_model_files(
        files, find_home(), name, reserved_names=reserved_names, check_speech=check_speech or (lambda _: None)
    )
    if as_json:
        row = describe(model, {})
        print_json({**row, "sha256": files.sha256, "quant": quant, "choices": list(choices), "new": is_new})
        return 0
    if quant and len(choices) > 1:
        print(f"chose {quant} of {', '.join(choices)}; choose another one with {reference.partition(':')[0]}:…:QUANT")
    details = [model.task, describe_size(model.size_bytes), f"licence {model.licence or 'unknown: see its page'}"]
    print(f"{model.name} {'added' if is_new else 'is already there'} ({', '.join(details)}): {model.folder}")
    return 0


def _provider_names() -> set[str]:
    """Return the models and aliases of providers: a model of this machine with such a name would be ambiguous."""
    loaded = settings.load(os.environ)
    names = {name for models in (models_by_provider(loaded) | {LOCAL_PROVIDER: ()}).values() for name in models}
    return names | loaded.models_by_alias.keys()


def _download(reference: str) -> tuple[ModelFiles, str | None, tuple[str, ...]]:
    """Return the files, the quantisation that was chosen, and all choices with their sizes."""
    if find_spec("huggingface_hub") is None:
        raise CommandFailed(f"Models of the Hugging Face Hub need an extra; install it with: {install_command('hub')}")
    hub = importlib.import_module(_HUB_MODULE)
    with ProgressBar() as progress:
        files, variant, variants = hub.hub_files(reference, progress)
    has_choice = ":" not in reference
    return (
        files,
        (variant.quant or None) if variant is not None else None,
        tuple(map(str, variants)) if has_choice else (),
    )


def describe(model: AddedModel, states: Mapping[str, str]) -> dict[str, Any]:
    """Return the row of an added model, with the fields of `svc models ls --json`."""
    is_missing = model.missing_file is not None
    return {
        "name": model.name,
        "model_id": model.name,
        "version": model.version,
        "task": model.task,
        "licence": model.licence,
        "download_bytes": 0,
        "size_bytes": model.size_bytes,
        "path": None if is_missing else str(model.folder),
        "source": model.source,
        "state": states.get(model.name),
        "description": f"its file is missing: {model.missing_file}" if is_missing else model.description,
    }


def describe_bundle(model: LocalModel, states: Mapping[str, str]) -> dict[str, Any]:
    """Return the row of a language or embedding model that was pulled from a registry."""
    added = AddedModel(
        name=model.name,
        folder=model.path.parent,
        version=model.version,
        task=model.kind,
        licence=model.licence,
        source="",
        description=model.description,
        size_bytes=model.size_bytes,
        missing_file=None if model.size_bytes else model.path,
    )
    return {**describe(added, states), "source": None}


def read_states(home: Path) -> dict[str, str]:
    """Return the states of the models in the running `svc up`: loaded, loading, unloaded or failed."""
    url, key = find_gateway(home), read_local_api_key(home)
    if url is None or key is None or not re.match(r"https?://", url):
        return {}
    outbound_http = importlib.import_module("svc.outbound_http")  # slow to import
    httpx2 = importlib.import_module("httpx2")
    try:
        tls = outbound_http.select_tls_context(url, trust_env=False)
        with httpx2.Client(verify=tls, timeout=STATE_TIMEOUT_SECONDS, trust_env=False) as client:
            response = client.get(f"{url}/models", headers={"authorization": f"Bearer {key}"})
            listed = response.json()["data"]
    except (*outbound_http.HTTP_ERRORS, ValueError, KeyError):
        return {}
    return {row["id"]: row["state"] for row in listed if isinstance(row, dict) and "state" in row}

"""The presets of `[[providers]]`, from `svc/gateway/presets.toml`."""

from __future__ import annotations

from collections.abc import Callable

from svc.gateway.routing.presets import load_presets
from svc.settings import DEFAULT_DIALECT
from svc.wire.chat import UpstreamOverrides
from tests.documentation.reference.markdown import table


def presets_table() -> str:
    """Name, dialect, address, variable and models of each preset."""
    rows = []
    for preset in load_presets().values():
        address = preset.base_url or f"{preset.example}{preset.path}"
        models = ", ".join(f"`{model.id}`" for model in preset.models or ())
        variable = f"`{preset.api_key_env}`" if preset.api_key_env else "none"
        rows.append(
            (f"`{preset.name}`", preset.dialect or DEFAULT_DIALECT, f"`{address}`", variable, models or "yours")
        )
    return table(("Preset", "Dialect", "Address", "Variable of the key", "Models"), rows)


def quirks_table() -> str:
    """The request fields that the gateway leaves out or renames for each preset."""
    rows = []
    for preset in load_presets().values():
        quirks = preset.quirks or UpstreamOverrides()
        if quirks == UpstreamOverrides():
            continue
        rejects = ", ".join(f"`{field}`" for field in quirks.rejects)
        renames = ", ".join(f"`{old}` to `{new}`" for old, new in quirks.renames.items())
        options = "none" if quirks.stream_usage else "`stream_options`"
        rows.append((f"`{preset.name}`", rejects, renames or "none", options))
    return table(("Preset", "Left out or rejected", "Renamed", "Also left out"), rows)


REGIONS: dict[str, Callable[[], str]] = {"presets": presets_table, "presets.quirks": quirks_table}

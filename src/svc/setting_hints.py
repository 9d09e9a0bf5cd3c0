"""Hints for errors of the configuration file: the most similar key, and our names of other gateways' settings. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from svc.wire.toml_errors import UNKNOWN_KEY_PATTERN, find_error_path, list_known_keys

_KEY_HINT: Final = "Name the environment variable with the key as `api_key_env`, or a file as `api_key_file`."
_PRICE_HINT: Final = "in USD per million tokens."
_BREAKER_HINT: Final = "The circuit breaker decides which backends are skipped: `breaker` in [routing]."
_TABLES_HINT: Final = "The tables are [[providers]], [[aliases]], [routing] and [gateway]."
_LIMITS_HINT: Final = "Limits belong to the keys of clients: `svc keys create --help`."
_OTHER_NAMES: Final[Mapping[str, str]] = {
    "allowed_fails": _BREAKER_HINT,
    "api_base": "Use `base_url`.",
    "api_key": _KEY_HINT,
    "cache_creation_input_token_cost": f"Use `cache_write_price`, {_PRICE_HINT}",
    "cache_params": "Use [cache].",
    "cache_read_input_token_cost": f"Use `cached_input_price`, {_PRICE_HINT}",
    "context_window_fallbacks": "Use `fallbacks`: they also get prompts that are too long for the model.",
    "cooldown_time": _BREAKER_HINT,
    "database_url": "Set the environment variable SVC_DATABASE_URL.",
    "default_fallbacks": "Name the fallbacks of each model in `fallbacks`.",
    "disable_cooldowns": _BREAKER_HINT,
    "drop_params": "Remove it: the gateway leaves out hints that the provider rejects.",
    "enable_pre_call_checks": "Remove it: the gateway compares each prompt with `context_window`.",
    "general_settings": _TABLES_HINT,
    "input_cost_per_token": f"Use `input_price`, {_PRICE_HINT}",
    "litellm_params": "Its values belong to the provider (`base_url`, `api_key_env`) and to the model (`upstream_id`).",
    "litellm_settings": _TABLES_HINT,
    "master_key": "Set the environment variable SVC_API_KEYS, or create a key with the scope `admin`.",
    "max_budget": _LIMITS_HINT,
    "max_input_tokens": "Use `context_window`.",
    "max_parallel_requests": _LIMITS_HINT,
    "max_retries": "Use `retries` in [routing].",
    "max_tokens": "Use `max_output_tokens`.",
    "mode": "Use `kind`.",
    "model_group_alias": "Use [[aliases]].",
    "model_list": _TABLES_HINT,
    "model_name": "Use `id`.",
    "num_retries": "Use `retries` in [routing].",
    "output_cost_per_token": f"Use `output_price`, {_PRICE_HINT}",
    "redis_host": "Set the environment variable SVC_REDIS_URL.",
    "redis_url": "Set the environment variable SVC_REDIS_URL.",
    "request_timeout": "Use `total_timeout` in [gateway].",
    "router_settings": _TABLES_HINT,
    "routing_strategy": "Use `strategy`.",
    "rpm": _LIMITS_HINT,
    "stream_timeout": "Use `first_byte_timeout` in [gateway].",
    "timeout": "Use `total_timeout` in [gateway].",
    "tpm": _LIMITS_HINT,
    "weight": "Use [routing.weights], or `weight` of an account.",
}
"""Keys of other gateways, mainly of LiteLLM (https://docs.litellm.ai/docs/proxy/config_settings)."""
_TYPE_HINTS: Final[Mapping[str, str]] = {
    "routing.fallbacks": 'Write a line such as `"gpt-4o" = ["gpt-4o-mini"]` below [routing.fallbacks].',
    "providers[].models[]": 'Write each model as `{ id = "NAME" }`.',
}
"""Paths of tables for which a value of another type is often written."""


def hint_for_error(settings_type: type[msgspec.Struct], message: str) -> str:
    """Return a sentence that helps to correct msgspec's error, or an empty string."""
    found = UNKNOWN_KEY_PATTERN.search(message)
    if found is not None:
        return _hint_for_key(settings_type, found[1], list_known_keys(settings_type, message))
    if message.startswith("Expected `object`"):
        return _TYPE_HINTS.get(re.sub(r"\[\d+\]", "[]", find_error_path(message)), "")
    return ""


def _hint_for_key(settings_type: type[msgspec.Struct], key: str, known_keys: tuple[str, ...]) -> str:
    if key in _OTHER_NAMES:
        return _OTHER_NAMES[key]
    tables = [name for name, table in _tables_of(settings_type).items() if key in table.__struct_fields__]
    if tables:
        return f"It belongs to [{tables[0]}]."
    close_matches = difflib.get_close_matches(key, known_keys, 1)
    return f"Did you mean `{close_matches[0]}`?" if close_matches else ""


def _tables_of(settings_type: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the tables of the file that are no arrays."""
    fields = {field.name: field.type for field in msgspec.structs.fields(settings_type)}
    return {name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}

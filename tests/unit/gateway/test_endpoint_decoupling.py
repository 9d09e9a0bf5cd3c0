"""The server, proxy and routing packages use endpoints and codecs, and name no dialect and no path."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import svc
import svc.gateway
from svc import plugins
from svc.dialects.base import RequestBody
from svc.dialects.token_estimate import billable_usage
from svc.gateway.endpoints import load_endpoints
from svc.gateway.server.endpoint_table import EndpointTable
from svc.wire.usage import TokenUsage

PACKAGES = ("server", "proxy", "routing")
FILES = [path for name in PACKAGES for path in sorted(Path(svc.gateway.__path__[0], name).glob("*.py"))]
DIALECTS = [name for name in plugins.names("dialects") if hasattr(plugins.load("dialects", name), "dialect")]


def fields_of_usage() -> list[str]:
    """Return the constructor's arguments, read from the source, because a compiled class does not expose them."""
    tree = ast.parse(Path(svc.__path__[0], "wire", "usage.py").read_text(encoding="utf-8"))
    (usage,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TokenUsage"]
    (init,) = [node for node in usage.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return [argument.arg for argument in init.args.args[1:]]


def code_strings(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of the code, without docstrings."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            yield node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)


def imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_gateway_packages_do_not_name_dialects_or_paths(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    banned = [*DIALECTS, *(endpoint.path for endpoint in load_endpoints()), "/chat/completions"]
    assert [text for text in code_strings(tree) if any(name in text for name in banned)] == []
    modules = tuple(f"svc.dialects.{name}." for name in DIALECTS)
    assert [name for name in imported_names(tree) if f"{name}.".startswith(modules)] == []
    if path.parent.name != "routing":  # routing configures providers, which have a dialect
        assert "svc.dialects.base.Dialect" not in imported_names(tree)


def test_decoupling_check_finds_strings_and_imports() -> None:
    assert len(FILES) > 30
    assert {"openai", "anthropic"} <= set(DIALECTS)
    tree = ast.parse('"""openai"""\nx = b"/v1/messages"\nfrom svc.dialects.openai.usage import to_usage\n')
    assert list(code_strings(tree)) == ["/v1/messages"]
    assert list(imported_names(tree)) == ["svc.dialects.openai.usage.to_usage"]


def test_endpoint_table_finds_error_format_by_path_prefix_or_header() -> None:
    table = EndpointTable(load_endpoints())
    messages, chat = table.by_path[b"/v1/messages"], table.by_path[b"/v1/chat/completions"]
    assert table.find_error_format("/v1/messages", []) is table.find_error_format("/v1/messages/x", []) is messages
    assert table.find_error_format("/v1/messagesx", []) is table.find_error_format("/v1", []) is None
    headers = [(b"host", b"h"), (b"anthropic-version", b"2023-06-01")]
    assert table.find_error_format("/v1/models", headers) is messages
    assert table.find_error_format("/v1/chat/completions/x", headers) is chat
    assert table.paths_by_kind()["chat"] == "/v1/chat/completions"


def test_endpoints_have_unique_paths_and_cache_routes() -> None:
    endpoints = load_endpoints()
    assert len({endpoint.path for endpoint in endpoints}) == len(endpoints)
    assert len({endpoint.cache_route for endpoint in endpoints}) == len(endpoints)
    assert {"openai", "anthropic"} <= {
        endpoint.cache_route for endpoint in endpoints
    }  # part of the response cache's keys in Redis


def test_routing_info_of_large_body_holds_no_bytes() -> None:
    body = RequestBody(b'{"model":"m","messages":[{"role":"user","content":"%b"}],"n":2}' % (b"long " * 20_000))
    info = load_endpoints()[0].decode_routing_info(body)
    assert info.choice_count == 2
    assert not any(isinstance(getattr(info, name), bytes) for name in dir(info))
    assert 0 < len(body.skeleton) < len(body.raw)


def test_token_usage_add_sums_every_field() -> None:
    numbers = {name: number for number, name in enumerate(fields_of_usage(), 1)}
    usage = TokenUsage(**numbers)
    assert set(usage.as_tuple()) == set(numbers.values())
    total = usage.add(usage)
    assert {name: getattr(total, name) for name in numbers} == {name: 2 * number for name, number in numbers.items()}


def test_billable_usage_estimate_keeps_reported_fields() -> None:
    reported = TokenUsage(**{name: number for number, name in enumerate(fields_of_usage(), 1)})
    usage, is_estimated = billable_usage(reported, b"", 1000)
    assert (usage.completion_tokens, is_estimated) == (1000, True)
    kept = [name for name in fields_of_usage() if name != "completion_tokens"]
    assert [getattr(usage, name) for name in kept] == [getattr(reported, name) for name in kept]

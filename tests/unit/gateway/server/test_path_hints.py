"""The path that an error suggests for one that does not exist."""

import pytest

from svc.gateway.server.path_hints import path_not_found

KNOWN_PATHS = ("/health", "/v1/chat/completions", "/v1/messages", "/v1/models", "/v1/usage")


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/engines/gpt-4o/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/gpt-4o/chat/completions", "/v1/chat/completions"),
        ("/anthropic/v1/messages", "/v1/messages"),
        ("/models", "/v1/models"),
    ],
)
def test_path_not_found_variant_of_known_path_suggests_it(path: str, known: str) -> None:
    assert path_not_found(path, KNOWN_PATHS).message == f"There is no path '{path}' here. Did you mean '{known}'?"


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/", "/v1/completions", "/v1/threads/t1/messages", "/v1/mymodels", "/model/info"],
)
def test_path_not_found_other_path_suggests_nothing(path: str) -> None:
    assert path_not_found(path, KNOWN_PATHS).message == f"There is no path '{path}' here."

"""Names of operations and providers in OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

from typing import Final

_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
    "/v1/messages/count_tokens": "count_tokens",
    "/v1/responses/input_tokens": "count_tokens",
    "/v1/audio/speech": "text_to_speech",
}
_PROVIDER_NAMES: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Names of the conventions that differ from the gateway's. Others are the same: openai, anthropic, groq."""


def operation_of(endpoint: str) -> str:
    """Return the conventions' name of the operation that an endpoint has."""
    return _OPERATIONS.get(endpoint, "speech_to_text")


def provider_name_of(provider: str) -> str:
    """Return the conventions' name of a configured provider."""
    return _PROVIDER_NAMES.get(provider, provider)

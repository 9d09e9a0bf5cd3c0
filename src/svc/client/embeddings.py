"""Encodes requests for embeddings and decodes responses. No sockets."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence

import msgspec

from svc.client.request_fields import encode_request_body, select_fields
from svc.client.transport import ClientResponse
from svc.errors import GatewayFailed

EmbeddingInput = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
SDK_DEFAULT_EMBEDDING_MODEL = "text-embedding-3-small"
EMBEDDINGS_PATH = "/embeddings"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int = 0
    total_tokens: int = 0


class EmbeddingResult(msgspec.Struct, frozen=True):
    """The vectors, in the order of the inputs. A single text has one vector."""

    vectors: list[list[float]]
    usage: EmbeddingUsage | None
    model: str = ""
    request_id: str | None = None


class _EmbeddingRow(msgspec.Struct):
    embedding: str | list[float]
    index: int | None = None


class _EmbeddingList(msgspec.Struct):
    data: list[_EmbeddingRow]
    usage: EmbeddingUsage | None = None
    model: str = ""


def build_embedding_request(model: str, texts: EmbeddingInput, dimensions: int | None) -> bytes:
    """Encode the request. It asks for base64, which is a third of the size. Raises InvalidRequest."""
    fields = select_fields({"dimensions": dimensions})
    return encode_request_body({"model": model, "input": texts, "encoding_format": "base64", **fields})


def decode_embeddings(texts: EmbeddingInput, response: ClientResponse, body: bytes) -> EmbeddingResult:
    """Decode a response. Raises GatewayFailed if it has not exactly one vector for each input."""
    try:
        decoded = msgspec.json.decode(body, type=_EmbeddingList)
        rows = {position if row.index is None else row.index: row for position, row in enumerate(decoded.data)}
        vectors = [_decode_vector(rows[position].embedding) for position in range(_count_inputs(texts))]
        if not len(vectors) == len(rows) == len(decoded.data):
            raise ValueError("there are more vectors than inputs")
    except (msgspec.DecodeError, ValueError, KeyError, struct.error) as error:
        raise GatewayFailed(
            "The response does not have one embedding for each input. Check that the address is a gateway's."
        ) from error
    return EmbeddingResult(vectors, decoded.usage, decoded.model, response.headers.get("x-request-id"))


def _decode_vector(encoded: str | list[float]) -> list[float]:
    """Return the numbers of base64, or of a list: some servers ignore `encoding_format`."""
    if isinstance(encoded, list):
        vector = encoded
    else:
        raw = binascii.a2b_base64(encoded, strict_mode=True)
        vector = list(struct.unpack(f"<{len(raw) // 4}f", raw))
    if not vector:
        raise ValueError("an embedding is empty")
    return vector


def _count_inputs(texts: EmbeddingInput) -> int:
    is_single = isinstance(texts, str) or (len(texts) > 0 and isinstance(texts[0], int))
    return 1 if is_single else len(texts)

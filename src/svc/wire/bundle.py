"""An entry of a registry's index, as its HTTP API and index.json have it.

index = { "<model_id>/<version>/<platform>": entry }
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from svc.errors import InvalidRequest

MAX_SIGNATURES = 8
"""Maximum signatures of a bundle."""
SIGNATURE_HEADER = "x-svc-signature"
"""The request header of a signature: the key, a space and the value."""
Sha256Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Signature(msgspec.Struct, frozen=True):
    """An Ed25519 signature of the entry's `signed_statement`. Both values are base64."""

    key: str
    value: str


class BundleEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One bundle. Entries that other tools write have only the first five fields."""

    model_id: str
    """The name of the model."""
    version: str
    """The version."""
    target: str
    """The platform, such as `linux-x86_64` or `any`."""
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """Bytes of the bundle."""
    path: str
    """The path of the bundle, relative to the registry."""
    sha256: Sha256Hex | None = None
    """The SHA-256 of the bundle in hex. Null until it is computed."""
    created: str | None = None
    """When the bundle was published: ISO 8601, UTC."""
    yanked: bool = False
    """Whether the bundle is withdrawn."""
    signatures: tuple[Signature, ...] = ()
    """Ed25519 signatures: `key` and `value`, both in base64."""

    @property
    def key(self) -> str:
        """The key of the entry: `<model_id>/<version>/<platform>`."""
        return f"{self.model_id}/{self.version}/{self.target}"


class _BundleEntryJson(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in JSON: eight fields, and `signatures` if there are any."""

    model_id: str
    version: str
    target: str
    size_bytes: int
    path: str
    sha256: str | None
    created: str | None
    yanked: bool
    signatures: tuple[Signature, ...] | msgspec.UnsetType = msgspec.UNSET


def entry_for_json(entry: BundleEntry, path: str | None = None) -> _BundleEntryJson:
    """Return the entry for encoding, with `path` if it is given."""
    return _BundleEntryJson(
        model_id=entry.model_id,
        version=entry.version,
        target=entry.target,
        size_bytes=entry.size_bytes,
        path=entry.path if path is None else path,
        sha256=entry.sha256,
        created=entry.created,
        yanked=entry.yanked,
        signatures=entry.signatures or msgspec.UNSET,
    )


def parse_signature_headers(values: list[str]) -> tuple[Signature, ...]:
    """Return the signatures in the values of SIGNATURE_HEADER. Raises InvalidRequest."""
    pairs = [value.split() for value in values]
    if len(pairs) > MAX_SIGNATURES or any(len(pair) != 2 or len("".join(pair)) > 200 for pair in pairs):
        raise InvalidRequest(f"{SIGNATURE_HEADER} must be a key and a value, both in base64.")
    return tuple(Signature(key, value) for key, value in pairs)


def signed_statement(entry: BundleEntry) -> bytes:
    """Return the signed bytes: {id, version, platform, sha256, size} as JSON with sorted keys and no spaces."""
    return msgspec.json.encode(
        {
            "id": entry.model_id,
            "platform": entry.target,
            "sha256": entry.sha256,
            "size": entry.size_bytes,
            "version": entry.version,
        },
        order="sorted",
    )

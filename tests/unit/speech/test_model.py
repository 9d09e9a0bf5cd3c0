import errno
import json
import os
from pathlib import Path

import pytest

from svc.errors import InvalidRequest, ModelNotFound, SpeechFailed
from svc.settings import Settings, SpeechSettings
from svc.speech.model import detect_model
from svc.speech.model_catalog import SpeechBundleSource, SpeechModelCatalog
from svc.wire.speech import ConfigMessage

VAD = "silero_vad.onnx"


def folder(path: Path, *names: str, **stt: object) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).touch()
    if stt:
        (path / "stt.json").write_text(json.dumps(stt))
    return path


@pytest.mark.parametrize(
    ("name", "files", "engine", "family"),
    [
        ("a", ["encoder_model.ort", "decoder_model_merged.ort", "tokens.txt"], "sherpa-offline", "moonshine"),
        ("a", ["encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"], "sherpa-offline", "transducer"),
        ("a-streaming-b", ["encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"], "sherpa-online", "transducer"),
        ("a", ["encoder-chunk-16.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"], "sherpa-online", "transducer"),
        ("a", ["tiny-encoder.onnx", "tiny-decoder.onnx", "tiny-tokens.txt"], "sherpa-offline", "whisper"),
        ("b-paraformer", ["encoder.onnx", "decoder.onnx", "tokens.txt"], "sherpa-online", "paraformer"),
        ("sense-voice-small", ["model.onnx", "tokens.txt"], "sherpa-offline", "sense-voice"),
        ("a", ["model.bin", "config.json", "tokenizer.json"], "faster-whisper", "whisper"),
    ],
)
def test_a_folder_is_known_by_its_files(tmp_path, name, files, engine, family):
    found = detect_model(folder(tmp_path / name, *files))
    assert (found.name, found.engine, found.family, found.languages) == (name, engine, family, ())
    assert all(Path(path).is_file() for path in found.files.values())


def test_the_quantised_file_is_taken(tmp_path):
    names = ["encoder.onnx", "encoder.int8.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"]
    assert detect_model(folder(tmp_path, *names)).files["encoder"].endswith("encoder.int8.onnx")


def test_a_description_comes_before_the_files(tmp_path):
    files = {"model": "m.onnx", "tokens": "t.txt"}
    described = folder(
        tmp_path / "x", "m.onnx", "t.txt", engine="mine", family="f", files=files, languages=["de"], name="n"
    )
    found = detect_model(described)
    assert (found.name, found.engine, found.family, found.languages) == ("n", "mine", "f", ("de",))


@pytest.mark.parametrize(
    "stt",
    [
        "",
        "[]",
        '{"engine": 1}',
        '{"engine": "e", "family": "f", "files": {"model": "../secret"}}',
        '{"engine": "e", "family": "f", "files": {"model": "missing"}}',
        '{"engine": "e", "family": "f", "files": {"model": "/etc/passwd"}}',
    ],
)
def test_a_description_that_is_wrong(tmp_path, stt):
    (tmp_path / "stt.json").write_text(stt)
    with pytest.raises(SpeechFailed):
        detect_model(tmp_path)


@pytest.mark.parametrize("files", [[], ["tokens.txt"], ["model.onnx", "tokens.txt"], ["model.bin"]])
def test_a_folder_that_is_no_model(tmp_path, files):
    with pytest.raises(SpeechFailed):
        detect_model(folder(tmp_path / "a", *files))


@pytest.fixture
def home(tmp_path) -> Path:
    for version in ("1.2.0", "1.10.0", "2.0.0-rc1"):
        files = {"model": "m", "vad": VAD}
        folder(
            tmp_path / "registry" / "talk" / version / "any" / "content",
            "m",
            VAD,
            engine="e",
            family=version,
            files=files,
            languages=["en", "pt-BR"],
        )
    folder(tmp_path / "models" / "bare", "model.bin", "config.json")
    return tmp_path


def catalogue(home: Path, *dirs: str) -> SpeechModelCatalog:
    speech = SpeechSettings(default_model="talk", model_dirs=dirs)
    return SpeechModelCatalog(Settings(home=home, speech=speech), SpeechBundleSource(lambda reference: None, list))


@pytest.mark.parametrize(
    ("name", "version"),
    [
        (None, "1.10.0"),
        ("talk", "1.10.0"),
        ("talk@1", "1.10.0"),
        ("talk@2.0.0-rc1", "2.0.0-rc1"),
        ("talk@2", "2.0.0-rc1"),
        ("talk@1.2", "1.2.0"),
        ("talk@1.2.0", "1.2.0"),
        ("talk@latest", "1.10.0"),
    ],
)
def test_references(home, name, version):
    assert catalogue(home).resolve(ConfigMessage(model=name))[0].family == version


@pytest.mark.parametrize("name", ["other", "talk@3", "talk@", "..", "../registry/talk", "talk@../1.2.0", "", "a b"])
def test_names_that_are_not_there(home, name):
    if name in ("", "talk@"):
        assert catalogue(home).resolve(ConfigMessage(model=name))
        return
    with pytest.raises(ModelNotFound) as refusal:
        catalogue(home).resolve(ConfigMessage(model=name))
    assert "talk" in refusal.value.message


def test_a_folder_that_cannot_be_read(home):
    """The session is told, instead of waiting for a model for ever."""

    def unpack(reference: str) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/its/place")

    full = SpeechModelCatalog(Settings(home=home), SpeechBundleSource(unpack, list))
    with pytest.raises(SpeechFailed) as failure:
        full.resolve(ConfigMessage(model="another"))
    assert failure.value.message == "The model's files cannot be read: No space left on device."
    assert full.missing_reference(ConfigMessage(model="another")) is None


def test_languages(home):
    choose = catalogue(home).resolve
    assert choose(ConfigMessage(language="EN-gb"))[1] == "en"
    assert choose(ConfigMessage(language="pt_br"))[1] == "pt-BR"
    assert choose(ConfigMessage())[1] is None
    with pytest.raises(InvalidRequest) as refusal:
        choose(ConfigMessage(language="fr"))
    assert "en, pt-BR" in refusal.value.message


def test_a_folder_without_a_detector_borrows_one(home):
    model, language = catalogue(home).resolve(ConfigMessage(model="bare", language="de"))
    assert model.files["vad"].endswith(VAD)
    assert (model.engine, language) == ("faster-whisper", "de")


def test_only_allowed_folders(home, tmp_path):
    outside = folder(tmp_path / "elsewhere" / "m", "model.bin", "config.json")
    (home / "models" / "link").symlink_to(outside)
    for wanted in (outside, home / "models" / "link", home / "models" / ".." / "elsewhere" / "m", home / "none"):
        with pytest.raises(InvalidRequest):
            catalogue(home).resolve(ConfigMessage(model_dir=str(wanted)))
    assert catalogue(home).resolve(ConfigMessage(model_dir=str(home / "models" / "bare")))[0].name == "bare"
    assert catalogue(home, str(tmp_path / "elsewhere")).resolve(ConfigMessage(model_dir=str(outside)))[0].name == "m"


def test_a_bundle_that_nobody_has_unpacked(home):
    made = folder(home / "made", "model.bin", "config.json")
    catalogue = SpeechModelCatalog(Settings(home=home), SpeechBundleSource({"fresh@1": made}.get, lambda: ["fresh"]))
    assert catalogue._find_installed_folder("fresh@1") == made
    assert catalogue.model_names() == ["bare", "fresh", "talk"]

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
        ("a", ["encoder_model.ort", "decoder_model_merged.ort", "tokens.txt"], "moonshine", "moonshine"),
        ("a", ["encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"], "sherpa-offline", "transducer"),
        ("a-streaming-b", ["encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"], "sherpa-online", "transducer"),
        ("a", ["encoder-chunk-16.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"], "sherpa-online", "transducer"),
        ("a", ["tiny-encoder.onnx", "tiny-decoder.onnx", "tiny-tokens.txt"], "sherpa-offline", "whisper"),
        ("b-paraformer", ["encoder.onnx", "decoder.onnx", "tokens.txt"], "sherpa-online", "paraformer"),
        ("sense-voice-small", ["model.onnx", "tokens.txt"], "sherpa-offline", "sense-voice"),
        ("a", ["model.bin", "config.json", "tokenizer.json"], "faster-whisper", "whisper"),
    ],
)
def test_detect_model_folder_is_recognized_by_its_files(tmp_path, name, files, engine, family):
    found = detect_model(folder(tmp_path / name, *files))
    assert (found.name, found.engine, found.family, found.languages) == (name, engine, family, ())
    assert all(Path(path).is_file() for path in found.files.values())


def test_detect_model_quantized_file_is_preferred(tmp_path):
    names = ["encoder.onnx", "encoder.int8.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"]
    assert detect_model(folder(tmp_path, *names)).files["encoder"].endswith("encoder.int8.onnx")


def test_detect_model_description_overrides_file_names(tmp_path):
    files = {"model": "m.onnx", "tokens": "t.txt"}
    described = folder(
        tmp_path / "x", "m.onnx", "t.txt", engine="mine", family="f", files=files, languages=["de"], name="n"
    )
    found = detect_model(described)
    assert (found.name, found.engine, found.family, found.languages) == ("n", "mine", "f", ("de",))


def test_detect_model_moonshine_described_for_sherpa_gets_moonshine_engine(tmp_path):
    files = {"encoder": "e.ort", "decoder": "d.ort", "tokens": "t.txt"}
    described = folder(tmp_path / "x", *files.values(), engine="sherpa-offline", family="moonshine", files=files)
    assert detect_model(described).engine == "moonshine"


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
def test_detect_model_invalid_description_raises_speech_failed(tmp_path, stt):
    (tmp_path / "stt.json").write_text(stt)
    with pytest.raises(SpeechFailed):
        detect_model(tmp_path)


@pytest.mark.parametrize("files", [[], ["tokens.txt"], ["model.onnx", "tokens.txt"], ["model.bin"]])
def test_detect_model_incomplete_folder_raises_speech_failed(tmp_path, files):
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


def make_catalog(home: Path, *dirs: str) -> SpeechModelCatalog:
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
def test_catalog_reference_resolves_to_version(home, name, version):
    assert make_catalog(home).resolve(ConfigMessage(model=name))[0].family == version


@pytest.mark.parametrize("name", ["other", "talk@3", "talk@", "..", "../registry/talk", "talk@../1.2.0", "", "a b"])
def test_catalog_unknown_name_raises_model_not_found(home, name):
    if name in ("", "talk@"):
        assert make_catalog(home).resolve(ConfigMessage(model=name))
        return
    with pytest.raises(ModelNotFound) as caught:
        make_catalog(home).resolve(ConfigMessage(model=name))
    assert "talk" in caught.value.message


def test_catalog_unreadable_bundle_raises_speech_failed(home):
    """The session gets an error instead of waiting forever."""

    def unpack(reference: str) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/bundle")

    full = SpeechModelCatalog(Settings(home=home), SpeechBundleSource(unpack, list))
    with pytest.raises(SpeechFailed) as caught:
        full.resolve(ConfigMessage(model="another"))
    assert caught.value.message == "The model's files cannot be read: No space left on device."
    assert full.missing_reference(ConfigMessage(model="another")) is None


def test_catalog_language_is_matched_or_rejected(home):
    choose = make_catalog(home).resolve
    assert choose(ConfigMessage(language="EN-gb"))[1] == "en"
    assert choose(ConfigMessage(language="pt_br"))[1] == "pt-BR"
    assert choose(ConfigMessage())[1] is None
    with pytest.raises(InvalidRequest) as caught:
        choose(ConfigMessage(language="fr"))
    assert "en, pt-BR" in caught.value.message


def test_catalog_folder_without_vad_uses_installed_vad(home):
    model, language = make_catalog(home).resolve(ConfigMessage(model="bare", language="de"))
    assert model.files["vad"].endswith(VAD)
    assert (model.engine, language) == ("faster-whisper", "de")


def test_catalog_folder_outside_model_dirs_raises_invalid_request(home, tmp_path):
    outside = folder(tmp_path / "elsewhere" / "m", "model.bin", "config.json")
    (home / "models" / "link").symlink_to(outside)
    for wanted in (outside, home / "models" / "link", home / "models" / ".." / "elsewhere" / "m", home / "none"):
        with pytest.raises(InvalidRequest):
            make_catalog(home).resolve(ConfigMessage(model_dir=str(wanted)))
    assert make_catalog(home).resolve(ConfigMessage(model_dir=str(home / "models" / "bare")))[0].name == "bare"
    assert make_catalog(home, str(tmp_path / "elsewhere")).resolve(ConfigMessage(model_dir=str(outside)))[0].name == "m"


def test_catalog_packed_bundle_is_unpacked_and_listed(home):
    made = folder(home / "made", "model.bin", "config.json")
    catalog = SpeechModelCatalog(Settings(home=home), SpeechBundleSource({"fresh@1": made}.get, lambda: ["fresh"]))
    assert catalog._find_installed_folder("fresh@1") == made
    assert catalog.model_names() == ["bare", "fresh", "talk"]

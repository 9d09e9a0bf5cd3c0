"""`svc bundle pack` and its output path."""

import json

import pytest

from svc.cli import main


@pytest.fixture
def model(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    metadata = {"model_id": "m", "version": "1", "execution_template": {"type": "X"}, "files": ["w.bin"]}
    (folder / "model_metadata.json").write_text(json.dumps(metadata))
    (folder / "w.bin").write_bytes(b"weights")
    monkeypatch.chdir(folder)
    return folder


def test_bundle_pack_in_current_folder_excludes_output(model):
    assert main(["bundle", "pack", "."]) == 0
    first = (model / "m.xyb").read_bytes()
    assert main(["bundle", "pack", "."]) == 0
    assert (model / "m.xyb").read_bytes() == first
    assert sorted(path.name for path in model.iterdir()) == ["m.xyb", "model_metadata.json", "w.bin"]


@pytest.mark.parametrize(("output", "expected_text"), [(".", "is a folder"), ("gone/m.xyb", "There is no folder gone")])
def test_bundle_pack_invalid_output_names_it(model, capsys, output, expected_text):
    assert main(["bundle", "pack", ".", "-o", output]) == 2
    assert expected_text in capsys.readouterr().err

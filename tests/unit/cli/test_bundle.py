"""`svc bundle pack`, where its output goes."""

import json

import pytest

from svc.cli import main


@pytest.fixture
def model(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    about = {"model_id": "m", "version": "1", "execution_template": {"type": "X"}, "files": ["w.bin"]}
    (folder / "model_metadata.json").write_text(json.dumps(about))
    (folder / "w.bin").write_bytes(b"weights")
    monkeypatch.chdir(folder)
    return folder


def test_a_folder_packed_from_within_has_no_bundle_in_it(model):
    assert main(["bundle", "pack", "."]) == 0
    first = (model / "m.xyb").read_bytes()
    assert main(["bundle", "pack", "."]) == 0
    assert (model / "m.xyb").read_bytes() == first
    assert sorted(path.name for path in model.iterdir()) == ["m.xyb", "model_metadata.json", "w.bin"]


@pytest.mark.parametrize(("output", "said"), [(".", "is a folder"), ("gone/m.xyb", "There is no folder gone")])
def test_an_output_that_cannot_be_is_named(model, capsys, output, said):
    assert main(["bundle", "pack", ".", "-o", output]) == 2
    assert said in capsys.readouterr().err

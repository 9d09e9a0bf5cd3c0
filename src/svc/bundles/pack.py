"""Create a bundle from a folder. The same files give the same bytes on any machine.

Members are stored, not deflated. Deflate saves 8 % on weights and reads many times slower, and its output depends
on the version of zlib.
"""

from __future__ import annotations

import os
import stat
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path

from svc.bundles import metadata
from svc.bundles.archive import ARCHIVE_READ_BYTES, read_metadata
from svc.bundles.disk_space import add_path_to_errors
from svc.bundles.member_names import MemberNames, normalize_member_name
from svc.bundles.open_archive import open_archive
from svc.errors import InvalidBundle
from svc.file_lock import create_locked, remove_abandoned

_TEMPORARY_PREFIX = ".packing-"
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)

PackProgress = Callable[[int, int], None]
"""Called with the bytes done and the total bytes."""


def pack(folder: Path, output: Path, on_progress: PackProgress | None = None) -> metadata.BundleMetadata:
    """Write `output` atomically, and return its metadata. Raises InvalidBundle, and OSError with the path.

    The temporary file beside it is locked. Temporary files of killed processes have no lock, and are removed first.
    """
    bundle_metadata = read_folder_metadata(folder)
    files = _collect_files(folder, output)
    metadata.check_files(bundle_metadata, files.keys())
    total_bytes, bytes_done = sum(path.stat().st_size for path in files.values()), 0
    for leftover in output.parent.glob(f"{_TEMPORARY_PREFIX}*.xyb"):
        remove_abandoned(leftover)
    temporary = output.parent / f"{_TEMPORARY_PREFIX}{uuid.uuid4().hex}.xyb"
    with add_path_to_errors(output), os.fdopen(create_locked(temporary), "wb") as file:
        try:
            with zipfile.ZipFile(file, "w") as archive:
                for name, path in files.items():
                    bytes_done += _add_member(archive, name, path)
                    if on_progress is not None:
                        on_progress(bytes_done, total_bytes)
            file.flush()
            os.fsync(file.fileno())
            with open_archive(temporary) as packed:
                read_metadata(packed)
            os.chmod(temporary, 0o644)
            os.replace(temporary, output)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return bundle_metadata


def read_folder_metadata(folder: Path) -> metadata.BundleMetadata:
    """Read the metadata of a folder to pack. Raises InvalidBundle."""
    file = folder / metadata.METADATA_FILE
    if not folder.is_dir():
        raise InvalidBundle(f"{folder} is not a folder.")
    if not file.is_file():
        raise InvalidBundle(
            f"{folder} has no {metadata.METADATA_FILE}: it needs model_id, version, "
            "execution_template (with a type) and files."
        )
    return metadata.parse_metadata(file.read_bytes())


def _collect_files(folder: Path, output: Path) -> dict[str, Path]:
    """Map bundle names to files, metadata first, then sorted by name. Hidden files are excluded."""
    names, files, root = MemberNames(), {}, folder.resolve()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or path.is_dir() or path.resolve() == output.resolve():
            continue
        if not path.resolve().is_relative_to(root):
            raise InvalidBundle(f"{path} is a link to a file outside {folder}; replace it with the file.")
        if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
            raise InvalidBundle(f"{path} is not a file.")
        names.add(normalize_member_name(name.as_posix()), is_folder=False)
        files[name.as_posix()] = path
    return {metadata.METADATA_FILE: files.pop(metadata.METADATA_FILE), **files}


def _add_member(archive: zipfile.ZipFile, name: str, path: Path) -> int:
    info = zipfile.ZipInfo(name, _ZIP_EPOCH)
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.file_size = size = path.stat().st_size
    bytes_read = 0
    with path.open("rb") as source, archive.open(info, "w") as member:
        while block := source.read(ARCHIVE_READ_BYTES):
            bytes_read += len(block)
            member.write(block)
    if bytes_read != size:
        raise InvalidBundle(f"{path} changed while it was read.")
    return size

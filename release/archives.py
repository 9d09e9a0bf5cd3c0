"""Write sdists and wheels with fixed times, orders and modes, so that equal content gives equal bytes."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
import time
import zipfile
from pathlib import Path

MIN_ZIP_TIME = 315532800
"""1980-01-01, the first time that a zip archive can have."""
CHECKSUMS = "SHA256SUMS"


def format_time(epoch: int) -> str:
    """Return a time in seconds since 1970 as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


def unpack_tar(archive: Path, folder: Path) -> None:
    """Unpack an archive that this repository has written into a folder."""
    with tarfile.open(archive) as tar:
        # Python 3.11.0 to 3.11.3, such as that of Debian 12, have no filters.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)


def normalize_sdist(sdist: Path, output: Path, epoch: int) -> Path:
    """Write a copy of an sdist into `output`, and return it."""
    buffer = io.BytesIO()
    with tarfile.open(sdist) as source, tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member in sorted(source.getmembers(), key=lambda entry: entry.name):
            clean = tarfile.TarInfo(member.name)
            clean.type, clean.size, clean.mtime = member.type, member.size, epoch
            clean.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            target.addfile(clean, source.extractfile(member) if member.isfile() else None)
    result = output / sdist.name
    with result.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as compressed:
        compressed.write(buffer.getvalue())
    return result


def normalize_wheel(wheel: Path, output: Path, epoch: int) -> Path:
    """Write a copy of a wheel into `output`, and return it."""
    return write_wheel(output / wheel.name, read_wheel(wheel), epoch)


def read_wheel(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def write_wheel(path: Path, files: dict[str, bytes], epoch: int) -> Path:
    """Write a wheel with a new RECORD. The metadata come last, as the standard recommends."""
    (record,) = [name for name in files if name.endswith(".dist-info/RECORD")]
    info = record.removesuffix("RECORD")
    names = sorted((name for name in files if name != record), key=lambda name: (name.startswith(info), name))
    rows = [f"{_quote(name)},sha256={_digest(files[name])},{len(files[name])}" for name in names]
    files = {**files, record: "\n".join([*rows, f"{record},,", ""]).encode()}
    moment = time.gmtime(max(epoch, MIN_ZIP_TIME))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in (*names, record):
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, files[name])
    return path


def add_modules(pure: Path, modules: dict[str, bytes], tag: str, output: Path, epoch: int) -> Path:
    """Write a wheel for one CPython on Linux: the pure wheel with compiled modules beside their sources."""
    platform_tag = f"{tag}-{tag}-linux_x86_64"
    files = read_wheel(pure)
    (metadata,) = [name for name in files if name.endswith(".dist-info/WHEEL")]
    lines = files[metadata].decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    files[metadata] = lines.replace("Tag: py3-none-any", f"Tag: {platform_tag}").encode()
    if platform_tag not in files[metadata].decode():
        raise ValueError(f"{pure.name} is not a pure wheel")
    name = pure.name.replace("py3-none-any", platform_tag)
    return write_wheel(output / name, {**files, **modules}, epoch)


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of all files of a folder, in the format of sha256sum."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.name != CHECKSUMS
    ]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="ascii")


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _quote(name: str) -> str:
    return f'"{name}"' if "," in name else name

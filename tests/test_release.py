"""The parts of `make dist`: archives with equal bytes, the SBOM, the man page and the checksums."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from release import archives, build, sbom
from release.man_page import format_man_page

from svc import plugins

ROOT = Path(__file__).parent.parent
EPOCH = 1_700_000_000
INFO = "svc_gateway-1.0.dist-info"
FILES = {
    "svc/__init__.py": b"",
    "svc/a,b.py": b"A = 1\n",
    f"{INFO}/METADATA": b"Name: svc-gateway\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n",
    f"{INFO}/RECORD": b"",
}


def write_zip(path: Path, names: Iterable[str], moment: int) -> Path:
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name, time.gmtime(moment)[:6]), FILES[name])
    return path


def write_tar(path: Path, names: Iterable[str], moment: int, owner: int) -> Path:
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"svc_gateway-1.0/{name}")
            member.size, member.mtime, member.uid, member.uname = len(FILES[name]), moment, owner, f"user{owner}"
            archive.addfile(member, io.BytesIO(FILES[name]))
    return path


def test_wheels_of_equal_content_have_equal_bytes(tmp_path: Path) -> None:
    name = "svc_gateway-1.0-py3-none-any.whl"
    first = write_zip(tmp_path / "a" / name, FILES, EPOCH)
    second = write_zip(tmp_path / "b" / name, reversed(FILES), EPOCH + 5000)
    results = []
    for source in (first, second):
        output = source.parent / "out"
        output.mkdir()
        results.append(archives.normalize_wheel(source, output, EPOCH).read_bytes())
    assert first.read_bytes() != second.read_bytes()
    assert results[0] == results[1]


def test_wheel_record_has_the_digest_of_each_file(tmp_path: Path) -> None:
    wheel = archives.write_wheel(tmp_path / "w.whl", FILES, EPOCH)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.namelist()[-1] == f"{INFO}/RECORD"
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(f"{INFO}/RECORD").decode()))}
        assert rows.keys() == set(archive.namelist())
        for name, (digest, size) in rows.items():
            content = archive.read(name)
            encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert name.endswith("RECORD") or (digest, size) == (f"sha256={encoded}", str(len(content)))


def test_sdists_of_equal_content_have_equal_bytes(tmp_path: Path) -> None:
    name = "svc_gateway-1.0.tar.gz"
    first = write_tar(tmp_path / "a" / name, FILES, EPOCH, 0)
    second = write_tar(tmp_path / "b" / name, reversed(FILES), EPOCH + 5000, 1000)
    results = []
    for source in (first, second):
        output = source.parent / "out"
        output.mkdir()
        results.append(archives.normalize_sdist(source, output, EPOCH).read_bytes())
    assert results[0] == results[1]


def test_unpack_tar_works_with_each_supported_python(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a" / "svc_gateway-1.0.tar.gz", FILES, EPOCH, owner=0)
    archives.unpack_tar(archive, tmp_path / "b")
    folder = tmp_path / "b" / "svc_gateway-1.0"
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == FILES


def test_compiled_wheel_has_modules_tags_and_is_for_one_cpython(tmp_path: Path) -> None:
    pure = archives.write_wheel(tmp_path / "svc_gateway-1.0-py3-none-any.whl", FILES, EPOCH)
    wheel = archives.add_modules(pure, {"svc/a.cpython-312-x86_64-linux-gnu.so": b"\x7fELF"}, "cp312", tmp_path, EPOCH)
    assert wheel.name == "svc_gateway-1.0-cp312-cp312-linux_x86_64.whl"
    files = archives.read_wheel(wheel)
    assert files["svc/a.cpython-312-x86_64-linux-gnu.so"] == b"\x7fELF"
    assert files["svc/a,b.py"] == FILES["svc/a,b.py"]
    assert b"Root-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\n" in files[f"{INFO}/WHEEL"]
    with pytest.raises(ValueError, match="not a pure wheel"):
        archives.add_modules(wheel, {}, "cp313", tmp_path, EPOCH)


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"b")
    (tmp_path / "a.tar.gz").write_bytes(b"a")
    archives.write_checksums(tmp_path)
    archives.write_checksums(tmp_path)
    checked = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert checked.stdout == "a.tar.gz: OK\nb.whl: OK\n"


def test_sbom_has_locked_packages_and_parts_of_the_console_and_is_reproducible() -> None:
    document = sbom.build_sbom(ROOT, "0" * 40, EPOCH)
    assert document == sbom.build_sbom(ROOT, "0" * 40, EPOCH)
    found = json.loads(document)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    scopes = {component["name"]: component["scope"] for component in found["components"]}
    assert (scopes["msgspec"], scopes["starlette"], scopes["xllamacpp"]) == ("required", "required", "optional")
    assert scopes["preact"] == "required"
    assert not {"mypy", "setuptools", "vite", "typescript"} & scopes.keys()
    references = {component["bom-ref"] for component in found["components"]}
    assert len(references) == len(found["components"])
    for entry in found["dependencies"][1:]:
        assert {entry["ref"], *entry["dependsOn"]} <= references
    locked = sbom.read_lock(ROOT / "requirements.lock")
    msgspec = next(component for component in found["components"] if component["name"] == "msgspec")
    assert msgspec["purl"] == f"pkg:pypi/msgspec@{locked['msgspec'][0]}"
    assert len(msgspec["externalReferences"]) == len(locked["msgspec"][1]) > 0


def test_man_page_has_each_command_and_the_time_of_the_commit() -> None:
    page = format_man_page(EPOCH)
    assert page.startswith('.TH SVC 1 2023-11-14 "svc ')
    for verb in plugins.names("cli"):
        assert f'.SS "svc {verb}"' in page.replace("\\-", "-"), verb
    assert '.SS "svc registry sign\\-key"' in page
    assert not [line for line in page.splitlines() if line.startswith("'")]


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_man_page_has_no_warnings_of_groff() -> None:
    command = ["groff", "-man", "-Tascii", "-ww", "-z"]
    rendered = subprocess.run(command, input=format_man_page(EPOCH), capture_output=True, text=True, check=True)
    assert rendered.stderr == ""


def test_sign_runs_the_command_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a b.whl", "SHA256SUMS"):
        (tmp_path / name).write_bytes(name.encode())
    build.sign(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setenv("DIST_SIGN", 'cp "$1" "$1.sig"')
    build.sign(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["SHA256SUMS", "SHA256SUMS.sig", "a b.whl", "a b.whl.sig"]
    monkeypatch.setenv("DIST_SIGN", "exit 3")
    with pytest.raises(build.BuildFailed, match="DIST_SIGN for SHA256SUMS"):
        build.sign(tmp_path)

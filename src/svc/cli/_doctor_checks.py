"""Check the database, Redis, the blob store, the disks and the installed extras for `svc doctor`.

Each check connects as the gateway or registry does, with the same credentials, and with a timeout of seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from svc import plugins
from svc.distribution import install_command
from svc.errors import SvcError, UsageError
from svc.settings import Settings
from svc.stores.bundles.folder import RESERVED_DISK_BYTES
from svc.stores.bundles.records import BundleRecords
from svc.stores.database.base import StoreUnavailable
from svc.stores.database.factory import database_url, open_database
from svc.stores.redis.address import parse_redis_url
from svc.stores.redis.factory import open_redis

OPTIONAL_EXTRAS: Final = {
    "local": (("xllamacpp",), "the embedded model, text generation in pipelines"),
    "hub": (("huggingface_hub",), "models of the Hugging Face Hub"),
    "speech": (("numpy", "python_multipart", "sherpa_onnx", "soundfile"), "speech to text, natural voices"),
    "whisper": (("av", "faster_whisper"), "Whisper models, compressed audio files"),
    "voice": (("espeakng_loader",), "espeak-ng voices"),
    "onnx": (("numpy", "onnxruntime", "PIL", "tokenizers"), "ONNX models in pipelines"),
    "postgres": (("psycopg",), "a PostgreSQL database"),
    "redis": (("hiredis", "redis"), "limits that machines share through Redis"),
    "s3": (("obstore",), "a bucket as the registry's store"),
    "signing": (("cryptography",), "signed bundles"),
    "ray": (("ray",), "pipelines on a Ray cluster"),
    "http2": (("h2",), "HTTP/2 in the SDK"),
}
"""Extra -> its import names, and its purpose."""
OPENMP_LIBRARY: Final = "libgomp.so.1"
LOW_DISK_BYTES: Final = 256 << 20
"""Below this free space, the disk may soon be full."""
JOURNAL_PROBE_BYTES: Final = 4096
DATABASE_ADVICE: Final = (
    ("password authentication failed", "check the user and the password in SVC_DATABASE_URL"),
    ("too many clients", "raise max_connections of PostgreSQL"),
    ("too many connections", "raise the connection limit of the role or of the database"),
    ("remaining connection slots", "raise max_connections of PostgreSQL"),
    (" does not exist", "create the database and its user, or check SVC_DATABASE_URL"),
)
"""Part of PostgreSQL's English message -> the remedy."""
REDIS_ADVICE: Final = (
    ("READONLY", "name the primary server in SVC_REDIS_URL, or its Sentinels"),
    ("OOM", "raise maxmemory of Redis"),
    ("WRONGPASS", "check the user and the password in SVC_REDIS_URL"),
    ("NOAUTH", "add the password to SVC_REDIS_URL"),
    ("NOPERM", "give the user of SVC_REDIS_URL the rights that the guide for Redis lists"),
)
"""Code of an error of Redis -> the remedy."""


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one check. `advice` is the remedy, or empty. In JSON, the fields keep their first names."""

    subject: str = msgspec.field(name="what")
    state: Literal["ok", "off", "bad"]
    detail: str = msgspec.field(name="says")
    advice: str = msgspec.field(default="", name="mend")


def check_python() -> CheckResult:
    """Report the version, and whether the interpreter lacks profile-guided optimisation, which makes it slower."""
    version = platform.python_version()
    if _is_optimized_build():
        return CheckResult("python", "ok", version)
    detail = f"{version}, built without --enable-optimizations: requests need up to half again the CPU"
    return CheckResult("python", "off", detail, "install svc with an optimised Python, such as the system's")


def _is_optimized_build() -> bool:
    """Return False for a build that was configured without profile-guided optimisation.

    Debian and others optimise theirs in ways that the configuration does not name. A Python in /usr counts as theirs.
    """
    options = sysconfig.get_config_var("CONFIG_ARGS")
    is_system = Path(sys.base_prefix) == Path("/usr")
    return is_system or options is None or "--enable-optimizations" in options


def check_extras() -> Iterator[CheckResult]:
    """Report which optional extras are installed."""
    for extra, (modules, purpose) in OPTIONAL_EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        if extra == "local" and not missing and not _has_openmp():
            yield CheckResult(f"extra {extra}", "bad", f"{OPENMP_LIBRARY} is missing", "apt-get install libgomp1")
        elif not missing:
            yield CheckResult(f"extra {extra}", "ok", "installed")
        else:
            detail = f"not installed; needed for {purpose}"
            if len(missing) < len(modules):
                detail = f"lacks {', '.join(missing)}: needed for {purpose}"
            yield CheckResult(f"extra {extra}", "off", detail, install_command(extra))


def _has_openmp() -> bool:
    """Return whether the library that the embedded model needs on Linux can be loaded."""
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL(OPENMP_LIBRARY)
    except OSError:
        return False
    return True


def check_database(settings: Settings) -> CheckResult:
    """Check the database of keys and usage. A missing SQLite file is not created."""
    url = database_url(settings.environ, settings.home)
    source = "SVC_DATABASE_URL" if settings.environ.get("SVC_DATABASE_URL") else "the state folder"
    is_file = url.startswith("sqlite:///")
    if is_file and not os.path.exists(file := Path(url.removeprefix("sqlite:///")).expanduser()):
        return _check_missing_file(file)
    try:
        store = open_database(url)
    except UsageError as error:
        return CheckResult("database", "bad", error.message, "fix SVC_DATABASE_URL, or unset it")
    try:
        store.ping()
        is_read_only = store.is_read_only()
    except StoreUnavailable as error:
        store.close()
        return CheckResult(
            "database", "bad", error.message, _advise_on_database(error.message, source, is_file=is_file)
        )
    try:
        if not is_read_only:
            store.check_schema()
    except UsageError as error:
        return CheckResult("database", "bad", error.message, "install a newer svc, or restore a backup")
    except StoreUnavailable as error:
        advice = f"make the user in {source} the owner of the database and its tables"
        return CheckResult("database", "bad", error.message, f"check {source}" if is_file else advice)
    finally:
        store.close()
    if is_read_only:
        detail = "PostgreSQL responds, but is read-only: keys cannot be changed, and usage is not recorded"
        return CheckResult("database", "bad", detail, f"name the primary server in {source}")
    if is_file:
        return CheckResult("database", "ok", f"the file {url.removeprefix('sqlite:///')}")
    return CheckResult("database", "ok", "PostgreSQL responds: machines share keys and usage")


def _advise_on_database(reason: str, source: str, *, is_file: bool) -> str:
    if is_file:
        return f"check {source}"
    return next((advice for text, advice in DATABASE_ADVICE if text in reason), f"start it, or check {source}")


def check_client_keys(settings: Settings, *, can_read_keys: bool) -> CheckResult:
    """Report whether any client can have a key. Keys of the database count only if it can be read."""
    if settings.api_keys:
        return CheckResult("client keys", "ok", f"{len(settings.api_keys)} in SVC_API_KEYS")
    if can_read_keys and _has_valid_key(settings):
        return CheckResult("client keys", "ok", "in the database")
    problem = "has no valid key" if can_read_keys else "cannot be read"
    detail = f"SVC_API_KEYS is not set, and the database {problem}"
    return CheckResult("client keys", "off", detail, "svc up creates a key; or run: svc keys create --name me")


def _has_valid_key(settings: Settings) -> bool:
    """Return whether one of the first thousand keys is valid. A missing SQLite file is not created."""
    url = database_url(settings.environ, settings.home)
    if url.startswith("sqlite:///") and not os.path.exists(Path(url.removeprefix("sqlite:///")).expanduser()):
        return False
    store = open_database(url)
    try:
        now = time.time()
        return any(key.revoked is None and (key.expires or math.inf) > now for key in store.list_keys())
    except StoreUnavailable:  # the database has no schema yet
        return False
    finally:
        store.close()


def _check_missing_file(file: Path) -> CheckResult:
    folder = find_existing_folder(file.absolute().parent)
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return CheckResult("database", "ok", f"the file {file}, created by the first start")
    return CheckResult("database", "bad", f"the file {file} cannot be created", "check SVC_DATABASE_URL and SVC_HOME")


def check_redis(settings: Settings) -> Iterator[CheckResult]:
    """Check the Redis of SVC_REDIS_URL, if set."""
    url = settings.environ.get("SVC_REDIS_URL")
    if not url:
        yield CheckResult("redis", "off", "SVC_REDIS_URL is not set: each machine counts limits separately")
        return
    try:
        address = parse_redis_url(url).display_name
        asyncio.run(open_redis(url).check_connection())
    except UsageError as error:
        yield CheckResult("redis", "bad", error.message, "fix SVC_REDIS_URL, or unset it")
    except StoreUnavailable as error:
        advice = f"{_advise_on_redis(error.message)}; until then each machine counts limits separately"
        yield CheckResult("redis", "bad", f"{address} is not usable: {error.message}", advice)
    else:
        yield CheckResult("redis", "ok", f"{address}: machines share their limits")


def _advise_on_redis(reason: str) -> str:
    return next((advice for code, advice in REDIS_ADVICE if code in reason), "start it, or check SVC_REDIS_URL")


def check_blob_store(settings: Settings) -> CheckResult:
    """Check the store of bundles that a registry on this machine would use."""
    url = settings.environ.get("SVC_BLOB_URL")
    if not url:
        return _check_folder(settings.registry_root)
    scheme, _, rest = url.partition("://")
    if scheme == "file" and rest.startswith("/"):
        return _check_folder(Path(rest))
    advice = "check SVC_BLOB_URL, AWS_ENDPOINT_URL and the AWS_ credentials"
    if scheme != "s3" or not rest.partition("/")[0]:
        return CheckResult("blob store", "bad", "SVC_BLOB_URL must be s3://bucket/prefix or file:///folder", advice)
    try:
        plugins.load("stores.bundles", "s3").check_bucket(f"s3://{rest}", settings.environ)
    except ImportError as error:
        return CheckResult("blob store", "bad", f"a bucket needs the extra s3 ({error})", install_command("s3"))
    except SvcError as error:
        return CheckResult("blob store", "bad", error.message, advice)
    return CheckResult("blob store", "ok", f"the bucket s3://{rest}")


def _check_folder(folder: Path) -> CheckResult:
    """Check that the folder can be written, and its records read and written."""
    advice = "check SVC_REGISTRY_ROOT, and the owner and permissions of the folder"
    existing = find_existing_folder(folder)
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return CheckResult("blob store", "bad", f"the folder {folder} is not writable", advice)
    path = folder / ".registry" / "records.sqlite"
    if not os.path.exists(path):
        return CheckResult("blob store", "ok", f"the folder {folder}")
    try:
        with contextlib.closing(BundleRecords(path)) as records:
            is_writable = records.is_writable
    except SvcError as error:
        detail = f"{error.message} ({error.reason})" if error.reason else error.message
        return CheckResult("blob store", "bad", detail, advice)
    if is_writable:
        return CheckResult("blob store", "ok", f"the folder {folder}")
    return CheckResult("blob store", "bad", f"the records {path} can be read, but not written", advice)


def check_journal(home: Path) -> Iterator[CheckResult]:
    """Check that the folder of the ledger's journal can be written, if it exists."""
    folder = home / "journal"
    if not os.path.exists(folder):
        return
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(JOURNAL_PROBE_BYTES))
            file.flush()
    except OSError as error:
        advice = "free some space on its disk, or check its owner and permissions; until then usage may be lost"
        yield CheckResult("journal", "bad", f"the folder {folder} cannot be written: {error.strerror}", advice)
    else:
        yield CheckResult("journal", "ok", f"the folder {folder}")


def check_temporary_folder() -> Iterator[CheckResult]:
    """Report a machine without a writable temporary folder, such as a container with a read-only file system."""
    try:
        with tempfile.TemporaryFile():
            pass
    except OSError as error:
        detail = f"there is none to write to, so uploads of audio are rejected: {error.strerror}"
        yield CheckResult("temporary folder", "off", detail, "mount one at /tmp, or set TMPDIR to a writable folder")


def check_disk_space(settings: Settings) -> Iterator[CheckResult]:
    """Check the free space of the state folder's disk, and of the registry's if it is another one."""
    devices = set()
    for subject, folder in (("disk space", settings.home), ("disk space, registry", settings.registry_root)):
        existing = find_existing_folder(folder)
        device = existing.stat().st_dev
        if device not in devices:
            yield _check_free_space(subject, existing)
        devices.add(device)


def _check_free_space(subject: str, folder: Path) -> CheckResult:
    free_bytes = shutil.disk_usage(folder).free
    detail = f"{free_bytes >> 20} MiB are free in {folder}"
    if free_bytes < RESERVED_DISK_BYTES:
        advice = f"free some space: below {RESERVED_DISK_BYTES >> 20} MiB, bundles are refused and usage may be lost"
        return CheckResult(subject, "bad", detail, advice)
    if free_bytes < LOW_DISK_BYTES:
        return CheckResult(subject, "off", f"little space: {detail}", "free some space")
    return CheckResult(subject, "ok", detail)


def find_existing_folder(folder: Path) -> Path:
    """Return the folder, or its closest parent that exists."""
    return next((path for path in (folder, *folder.absolute().parents) if os.path.exists(path)), Path("/"))

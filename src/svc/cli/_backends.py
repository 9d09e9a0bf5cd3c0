"""The checks of `svc doctor` for the database, Redis, the blob store and the installed extras. No verb.

Each is asked in the way that a gateway or a registry uses it: with its credentials, and within seconds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from svc import plugins
from svc.distribution import install_command
from svc.errors import SvcError, UsageError
from svc.settings import Settings
from svc.stores.base import StoreDown
from svc.stores.opening import database_url, open_database
from svc.stores.redis import Redis, address_of

EXTRAS: Final = {
    "local": (("xllamacpp",), "the embedded model, text generation in pipelines"),
    "speech": (("numpy", "python_multipart", "sherpa_onnx", "soundfile"), "speech to text, natural voices"),
    "whisper": (("av", "faster_whisper"), "Whisper models, compressed audio files"),
    "voice": (("espeakng_loader",), "espeak-ng voices"),
    "onnx": (("numpy", "onnxruntime", "PIL", "tokenizers"), "ONNX models in pipelines"),
    "postgres": (("psycopg",), "a PostgreSQL database"),
    "s3": (("obstore",), "a bucket as the registry's store"),
    "signing": (("cryptography",), "signed bundles"),
    "ray": (("ray",), "pipelines on a Ray cluster"),
}
"""Extra -> the modules that it brings, and what it is for."""


class Finding(msgspec.Struct, frozen=True):
    """One line; `mend` says what to do, and is empty when there is nothing to."""

    what: str
    state: Literal["ok", "off", "bad"]
    says: str
    mend: str = ""


def extras() -> Iterator[Finding]:
    """Which of the optional parts are installed."""
    for extra, (modules, purpose) in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        if not missing:
            yield Finding(f"extra {extra}", "ok", "installed")
        else:
            says = f"not installed: it is for {purpose}"
            if len(missing) < len(modules):
                says = f"lacks {', '.join(missing)}: it is for {purpose}"
            yield Finding(f"extra {extra}", "off", says, install_command(extra))


def database(loaded: Settings) -> Finding:
    """The database of keys and usage. A file that is not there yet is not made."""
    url = database_url(loaded.environ, loaded.home)
    named = "SVC_DATABASE_URL" if loaded.environ.get("SVC_DATABASE_URL") else "the state folder"
    if url.startswith("sqlite:///") and not (file := Path(url.removeprefix("sqlite:///")).expanduser()).exists():
        return _absent_file(file)
    try:
        found = open_database(url)
    except UsageError as error:
        return Finding("database", "bad", error.message, "mend SVC_DATABASE_URL, or unset it")
    try:
        found.ping()
    except StoreDown as error:
        return Finding("database", "bad", error.message, f"start it, or check {named}")
    finally:
        found.close()
    if url.startswith("sqlite:///"):
        return Finding("database", "ok", f"the file {url.removeprefix('sqlite:///')}")
    return Finding("database", "ok", "PostgreSQL answers: keys and usage are shared with other machines")


def _absent_file(file: Path) -> Finding:
    folder = next((folder for folder in file.absolute().parents if folder.exists()), Path("/"))
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return Finding("database", "ok", f"the file {file}, made by the first start")
    return Finding("database", "bad", f"the file {file} cannot be made", "check SVC_DATABASE_URL and SVC_HOME")


def redis(loaded: Settings) -> Iterator[Finding]:
    """The Redis of SVC_REDIS_URL, where that is set."""
    url = loaded.environ.get("SVC_REDIS_URL")
    if not url:
        yield Finding("redis", "off", "SVC_REDIS_URL is not set: each machine counts its limits by itself")
        return
    try:
        shown = address_of(url).shown
        asyncio.run(Redis(url).check())
    except UsageError as error:
        yield Finding("redis", "bad", error.message, "mend SVC_REDIS_URL, or unset it")
    except StoreDown as error:
        mend = "start it, or check SVC_REDIS_URL; until then each machine keeps the limits by itself"
        yield Finding("redis", "bad", f"{shown} is not usable: {error.message}", mend)
    else:
        yield Finding("redis", "ok", f"{shown}: limits are shared with other machines")


def blob_store(loaded: Settings) -> Finding:
    """Where a registry started here keeps bundles."""
    scheme, _, rest = (loaded.environ.get("SVC_BLOB_URL") or f"file://{loaded.registry_root}").partition("://")
    if scheme == "file":
        return _folder(Path(rest))
    mend = "check SVC_BLOB_URL, AWS_ENDPOINT_URL and the AWS_ credentials"
    if scheme != "s3" or not rest.partition("/")[0]:
        return Finding("blob store", "bad", "SVC_BLOB_URL is not like s3://bucket/prefix or file:///folder", mend)
    try:
        plugins.load("stores.bundles", "s3").check_bucket(f"s3://{rest}", loaded.environ)
    except ImportError as error:
        return Finding("blob store", "bad", f"a bucket needs the extra s3 ({error})", install_command("s3"))
    except SvcError as error:
        return Finding("blob store", "bad", error.message, mend)
    return Finding("blob store", "ok", f"the bucket s3://{rest}")


def _folder(folder: Path) -> Finding:
    present = next((one for one in (folder, *folder.absolute().parents) if one.exists()), Path("/"))
    if present.is_dir() and os.access(present, os.W_OK | os.X_OK):
        return Finding("blob store", "ok", f"the folder {folder}")
    return Finding("blob store", "bad", f"the folder {folder} cannot be written", "check SVC_REGISTRY_ROOT")

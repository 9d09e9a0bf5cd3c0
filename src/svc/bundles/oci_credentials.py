"""Find the credentials of an OCI registry where `docker login` and its helper programs keep them.

The file is `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json`
(https://docs.docker.com/reference/cli/docker/login/#credential-stores). Keys of `auths` may have a path, as podman
writes them (https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md).
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from svc.errors import RegistryFailed, UsageError

HELPER_TIMEOUT_SECONDS = 60.0
"""A helper may ask for the password of a keyring."""
MAX_DOCKER_CONFIG_BYTES = 4 << 20
DOCKER_HUB_HOSTS: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")
DOCKER_HUB_KEY: Final = "https://index.docker.io/v1/"
IDENTITY_USER: Final = "<token>"
"""The user name of a helper's response whose secret is an identity token."""

_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_FOUND = "credentials not found"
"""Part of a helper's message if it has no credentials of the registry."""


class OciCredentials(msgspec.Struct, frozen=True):
    """A user with a password, or an identity token, which the token service replaces by a bearer token."""

    user: str = ""
    password: str = ""
    identity_token: str = ""

    def __repr__(self) -> str:
        return f"OciCredentials({self.user!r})"  # never the secrets

    @property
    def basic_authorization(self) -> str:
        """The value of `Authorization` for Basic authentication (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class _AuthEntry(msgspec.Struct):
    """An entry of `auths`. `auth` is the Base64 encoding of USER:PASSWORD."""

    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _DockerConfig(msgspec.Struct, rename="camel"):
    auths: dict[str, _AuthEntry | None] = {}
    creds_store: str = ""
    cred_helpers: dict[str, str] = {}


class _HelperResponse(msgspec.Struct, rename="pascal"):
    username: str = ""
    secret: str = ""


def find_credentials(host: str, repository: str, environ: Mapping[str, str]) -> OciCredentials | None:
    """Return the credentials of a registry, or None. `host` includes the port.

    The helper program of the registry comes first, then that of all registries, then the file itself. Raises UsageError
    for a file that cannot be read, and RegistryFailed if a program fails.
    """
    folder = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or "~", ".docker")).expanduser()
    config = _read_config(folder / "config.json")
    keys = list(_candidate_keys(host, repository))
    helper = next((config.cred_helpers[key] for key in keys if key in config.cred_helpers), config.creds_store)
    if helper:
        server = DOCKER_HUB_KEY if host in DOCKER_HUB_HOSTS else host
        if credentials := _run_helper(helper, server, environ):
            return credentials
    entries = {_normalize_key(key): entry for key, entry in config.auths.items() if entry is not None}
    entry = next((entries[key] for key in map(_normalize_key, keys) if key in entries), None)
    return None if entry is None else _decode_entry(entry, folder / "config.json")


def _read_config(path: Path) -> _DockerConfig:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_DOCKER_CONFIG_BYTES), type=_DockerConfig)
    except (FileNotFoundError, NotADirectoryError):
        return _DockerConfig()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not a configuration of docker: {error}.") from error


def _candidate_keys(host: str, repository: str) -> Iterator[str]:
    """Yield the keys of a repository, the most specific first: HOST/A/B, HOST/A, HOST."""
    parts = repository.split("/")
    yield from ("/".join((host, *parts[:count])) for count in range(len(parts), -1, -1))
    if host in DOCKER_HUB_HOSTS:
        yield from (DOCKER_HUB_KEY, *DOCKER_HUB_HOSTS)


def _normalize_key(key: str) -> str:
    """Remove the scheme and the version of the API: docker also writes `https://HOST/v1/`."""
    return re.sub(r"/v[12]$", "", key.partition("://")[2].rstrip("/") if "://" in key else key.rstrip("/"))


def _decode_entry(entry: _AuthEntry, path: Path) -> OciCredentials | None:
    user, password = entry.username, entry.password
    if entry.auth:
        try:
            user, separator, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            separator = ""
        if not separator:
            raise UsageError(f"{path} has an `auth` that is not the Base64 encoding of USER:PASSWORD.")
    if not (user or entry.identitytoken):
        return None
    return OciCredentials(user, password.rstrip("\0"), entry.identitytoken)


def _run_helper(name: str, server: str, environ: Mapping[str, str]) -> OciCredentials | None:
    """Ask a credential helper (https://github.com/docker/docker-credential-helpers). Raises RegistryFailed."""
    if not _HELPER_NAME.fullmatch(name):
        raise UsageError(f"The configuration of docker names a malformed credential helper: {name[:80]!r}.")
    program = f"docker-credential-{name}"
    try:
        done = subprocess.run(
            [program, "get"],
            input=server.encode(),
            env=dict(environ),
            capture_output=True,
            timeout=HELPER_TIMEOUT_SECONDS,
            check=False,
        )
    except OSError as error:
        raise RegistryFailed(f"{program}, which the configuration of docker names, does not start: {error}.") from error
    except subprocess.TimeoutExpired as error:
        raise RegistryFailed(f"{program} did not respond within {HELPER_TIMEOUT_SECONDS:.0f} s.") from error
    if done.returncode != 0:
        if _NOT_FOUND in done.stdout.decode("utf-8", "replace"):
            return None
        # The output may contain a secret.
        raise RegistryFailed(f"{program} has no credentials for {server}: it ended with status {done.returncode}.")
    try:
        response = msgspec.json.decode(done.stdout, type=_HelperResponse)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RegistryFailed(f"{program} did not print the JSON of a credential helper.") from error
    if response.username == IDENTITY_USER:
        return OciCredentials(identity_token=response.secret)
    return OciCredentials(response.username, response.secret) if response.username else None

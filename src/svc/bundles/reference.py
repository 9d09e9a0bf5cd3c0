"""References to bundles and the order of versions (decisions, section 5). Pure.

<id>@<version>   that one, withdrawn or not
<id>, <id>@latest   the newest that is not withdrawn
<id>@1, <id>@1.2    the newest under that prefix, unless a version is called just that
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

import msgspec

from svc.errors import InvalidRequest
from svc.wire.bundle import Entry

MAX_NAME = 128
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_NUMERIC = r"(?:0|[1-9]\d*)"
_SEMVER = re.compile(rf"({_NUMERIC})\.({_NUMERIC})\.({_NUMERIC})(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?", re.ASCII)
_RUNS = re.compile(r"\d+|[A-Za-z]+", re.ASCII)
_PREFIX = re.compile(r"[vV]?\d+(\.\d+)*", re.ASCII)


class Reference(msgspec.Struct, frozen=True):
    """`version` is None for the newest."""

    model_id: str
    version: str | None = None

    def __str__(self) -> str:
        return self.model_id if self.version is None else f"{self.model_id}@{self.version}"


def check_name(what: str, name: str) -> str:
    """The name, if it can be a model id, a version or a platform. Raises InvalidRequest."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{what} {name[:64]!r} is not valid: letters, digits, '.', '_' and '-' are, from a letter or digit on, "
            f"{MAX_NAME} at most.",
            param=what,
        )
    return name


def parse(text: str) -> Reference:
    """Reads a reference. Raises InvalidRequest."""
    model_id, at, version = text.strip().partition("@")
    check_name("model_id", model_id)
    if not at or version == "latest":
        return Reference(model_id)
    return Reference(model_id, check_name("version", version))


def is_prerelease(version: str) -> bool:
    """By SemVer where it parses, else: letters after digits (`1.0-rc1`, but not `v1.0`)."""
    if match := _SEMVER.fullmatch(version):
        return match[4] is not None
    runs = _RUNS.findall(version)
    digits = next((place for place, run in enumerate(runs) if run.isdigit()), len(runs))
    return any(run.isalpha() for run in runs[digits:])


def compare(left: str, right: str) -> int:
    """Below, at or above 0, as `left` comes before, with or after `right`."""
    one, other = _SEMVER.fullmatch(left), _SEMVER.fullmatch(right)
    first = _semver(one) if one and other else _natural(left)
    second = _semver(other) if one and other else _natural(right)
    return (first > second) - (first < second)


def _semver(match: re.Match[str]) -> tuple[object, ...]:
    core = tuple(int(match[place]) for place in (1, 2, 3))
    if match[4] is None:
        return (core, 1, ())
    parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in match[4].split("."))
    return (core, 0, parts)


def _natural(version: str) -> tuple[tuple[int, int, str], ...]:
    """Runs of digits come after the end, and the end after runs of letters."""
    runs = ((2, int(run), "") if run.isdigit() else (0, 0, run.lower()) for run in _RUNS.findall(version))
    return (*runs, (1, 0, ""))


def newest(versions: Iterable[str]) -> str | None:
    """The last in order; pre-releases only when there is nothing else."""
    known = sorted(set(versions))
    finals = [version for version in known if not is_prerelease(version)]
    return max(finals or known, key=functools.cmp_to_key(compare), default=None)


def sort(versions: Iterable[str]) -> list[str]:
    """Oldest first."""
    return sorted(sorted(set(versions)), key=functools.cmp_to_key(compare))


def choose(reference: Reference, entries: Iterable[Entry], platforms: tuple[str, ...]) -> Entry | None:
    """The entry that a reference means, for the first of `platforms` that has it. None when there is none."""
    rank = {platform: place for place, platform in enumerate(platforms)}
    fitting = [entry for entry in entries if entry.model_id == reference.model_id and entry.target in rank]
    version = _version(reference, fitting)
    named = [entry for entry in fitting if entry.version == version]
    if reference.version != version:
        named = [entry for entry in named if not entry.yanked]
    return min(named, key=lambda entry: rank[entry.target], default=None)


def _version(reference: Reference, entries: list[Entry]) -> str | None:
    wanted = reference.version
    if wanted is not None and any(entry.version == wanted for entry in entries):
        return wanted
    if wanted is not None and not _PREFIX.fullmatch(wanted):
        return None
    versions = [entry.version for entry in entries if not entry.yanked]
    if wanted is not None:
        versions = [version for version in versions if version.startswith((f"{wanted}.", f"{wanted}-"))]
    return newest(versions)

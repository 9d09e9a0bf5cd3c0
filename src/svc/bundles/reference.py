"""Parse bundle references and order versions. Pure functions.

<id>@<version>      exactly this version, even if yanked
<id>, <id>@latest   the newest version that is not yanked
<id>@1, <id>@1.2    the newest version with that prefix, unless a version has exactly that name
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

import msgspec

from svc.errors import InvalidRequest
from svc.wire.bundle import BundleEntry

MAX_BUNDLE_NAME_LENGTH = 128
LATEST_VERSION = "latest"
_BUNDLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_NUMERIC = r"(?:0|[1-9]\d*)"
_SEMVER = re.compile(rf"({_NUMERIC})\.({_NUMERIC})\.({_NUMERIC})(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?", re.ASCII)
_ALPHANUMERIC_RUN = re.compile(r"\d+|[A-Za-z]+", re.ASCII)
_VERSION_PREFIX = re.compile(r"[vV]?\d+(\.\d+)*", re.ASCII)


class BundleReference(msgspec.Struct, frozen=True):
    """A model and a version. `version` is None for the newest."""

    model_id: str
    version: str | None = None

    def __str__(self) -> str:
        return self.model_id if self.version is None else f"{self.model_id}@{self.version}"


def check_name(field: str, name: str) -> str:
    """Return the name if it is a valid model id, version or platform. Raises InvalidRequest."""
    if len(name) > MAX_BUNDLE_NAME_LENGTH or not _BUNDLE_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{field} {name[:64]!r} is not valid: use letters, digits, '.', '_' and '-', first a letter or digit, "
            f"at most {MAX_BUNDLE_NAME_LENGTH} characters.",
            param=field,
        )
    return name


def parse_reference(text: str) -> BundleReference:
    """Parse a reference. Raises InvalidRequest."""
    model_id, separator, version = text.strip().partition("@")
    check_name("model_id", model_id)
    if not separator or version == LATEST_VERSION:
        return BundleReference(model_id)
    return BundleReference(model_id, check_name("version", version))


def is_prerelease(version: str) -> bool:
    """Return whether a version is a pre-release: by SemVer, else letters after digits (`1.0-rc1`, not `v1.0`)."""
    if match := _SEMVER.fullmatch(version):
        return match[4] is not None
    runs = _ALPHANUMERIC_RUN.findall(version)
    digits = next((index for index, run in enumerate(runs) if run.isdigit()), len(runs))
    return any(run.isalpha() for run in runs[digits:])


def compare_versions(left: str, right: str) -> int:
    """Return a number below, equal to or above 0 if `left` sorts before, equal to or after `right`."""
    left_semver, right_semver = _SEMVER.fullmatch(left), _SEMVER.fullmatch(right)
    left_key = _semver_key(left_semver) if left_semver and right_semver else _natural_key(left)
    right_key = _semver_key(right_semver) if left_semver and right_semver else _natural_key(right)
    return (left_key > right_key) - (left_key < right_key)


def _semver_key(match: re.Match[str]) -> tuple[object, ...]:
    core = tuple(int(match[group]) for group in (1, 2, 3))
    if match[4] is None:
        return (core, 1, ())
    parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in match[4].split("."))
    return (core, 0, parts)


def _natural_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key in which digits sort after the end of the text, and letters before it."""
    runs = ((2, int(run), "") if run.isdigit() else (0, 0, run.lower()) for run in _ALPHANUMERIC_RUN.findall(version))
    return (*runs, (1, 0, ""))


def newest_version(versions: Iterable[str]) -> str | None:
    """Return the newest version. Pre-releases count only if there is no other version."""
    ordered = sorted(set(versions))
    releases = [version for version in ordered if not is_prerelease(version)]
    return max(releases or ordered, key=functools.cmp_to_key(compare_versions), default=None)


def sort_versions(versions: Iterable[str]) -> list[str]:
    """Sort versions, oldest first."""
    return sorted(sorted(set(versions)), key=functools.cmp_to_key(compare_versions))


def sort_entries(entries: Iterable[BundleEntry]) -> list[BundleEntry]:
    """Sort entries by model, version (oldest first) and platform."""
    by_model: dict[str, list[BundleEntry]] = {}
    for entry in entries:
        by_model.setdefault(entry.model_id, []).append(entry)
    ordered: list[BundleEntry] = []
    for _, of_model in sorted(by_model.items()):
        ranks = {version: rank for rank, version in enumerate(sort_versions(entry.version for entry in of_model))}
        ordered += sorted(of_model, key=lambda entry: (ranks[entry.version], entry.target))
    return ordered


def select_entry(
    reference: BundleReference, entries: Iterable[BundleEntry], platforms: tuple[str, ...]
) -> BundleEntry | None:
    """Select the entry of a reference, for the first of `platforms` that has one. Returns None without a match."""
    rank = {platform: index for index, platform in enumerate(platforms)}
    candidates = [entry for entry in entries if entry.model_id == reference.model_id and entry.target in rank]
    version = _resolve_version(reference, candidates)
    matches = [entry for entry in candidates if entry.version == version]
    if reference.version != version:
        matches = [entry for entry in matches if not entry.yanked]
    return min(matches, key=lambda entry: rank[entry.target], default=None)


def describe_yanked(
    reference: BundleReference, entries: Iterable[BundleEntry], platforms: tuple[str, ...]
) -> str | None:
    """Return how to get the newest yanked version that the reference would select otherwise, or None."""
    restored = [msgspec.structs.replace(entry, yanked=False) for entry in entries]
    entry = select_entry(reference, restored, platforms)
    if entry is None:
        return None
    model_id, version = entry.model_id, entry.version
    return f"Version {version} of {model_id} is yanked. To use it, give its version: {model_id}@{version}"


def list_other_platforms(reference: BundleReference, entries: Iterable[BundleEntry]) -> str:
    """Return the platforms that have a bundle of the reference, for an error. Empty without any."""
    known_entries = list(entries)
    platforms = sorted({entry.target for entry in known_entries if entry.model_id == reference.model_id})
    return ", ".join(name for name in platforms if select_entry(reference, known_entries, (name,)) is not None)


def _resolve_version(reference: BundleReference, entries: list[BundleEntry]) -> str | None:
    requested = reference.version
    if requested is not None and any(entry.version == requested for entry in entries):
        return requested
    if requested is not None and not _VERSION_PREFIX.fullmatch(requested):
        return None
    versions = [entry.version for entry in entries if not entry.yanked]
    if requested is not None:
        versions = [version for version in versions if version.startswith((f"{requested}.", f"{requested}-"))]
    return newest_version(versions)

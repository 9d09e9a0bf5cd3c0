"""Writes the software bill of materials, CycloneDX 1.6: https://cyclonedx.org/docs/1.6/json/.

It has the Python packages of the lock that this project and its locked extras need on this platform, and the npm
packages that are part of the console's files.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import re
import tomllib
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.archives import format_time

LOCKED = re.compile(r"^([A-Za-z0-9._-]+==[^\\]+)")
LOCKED_EXTRAS = ("local", "speech", "voice")
"""Extras of requirements.lock. Other extras are not pinned, and an SBOM names versions."""


def build_sbom(root: Path, commit: str, epoch: int) -> bytes:
    """Return the document."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked = read_lock(root / "requirements.lock")
    edges: dict[str, list[str]] = {}
    required = _collect(project["dependencies"], locked, edges)
    extras = [entry for extra in LOCKED_EXTRAS for entry in project["optional-dependencies"][extra]]
    optional = _collect(extras, locked, edges) - required
    components = [
        _python_component(name, *locked[name], "required" if name in required else "optional")
        for name in sorted(required | optional)
    ]
    npm = list(_npm_components(root / "console" / "package-lock.json"))
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    direct = sorted(_names([*project["dependencies"], *extras], set()) & locked.keys())
    dependencies = [{"ref": own, "dependsOn": [*(_purl(name, locked) for name in direct), *(c["purl"] for c in npm)]}]
    dependencies += [
        {"ref": _purl(name, locked), "dependsOn": [_purl(other, locked) for other in edges[name]]}
        for name in sorted(required | optional)
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{own}#{commit}')}",
        "version": 1,
        "metadata": {
            "timestamp": format_time(epoch),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
                "properties": [{"name": "svc:commit", "value": commit}],
            },
        },
        "components": [*components, *npm],
        "dependencies": dependencies,
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def read_lock(lock: Path) -> dict[str, tuple[str, list[str]]]:
    """Return the version and the SHA-256 of the files of each package that a requirements file has for this machine."""
    packages: dict[str, tuple[str, list[str]]] = {}
    digests: list[str] = []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if found := LOCKED.match(line):
            requirement, digests = Requirement(found[1]), []
            if _applies(requirement, frozenset()):
                version = str(requirement.specifier).removeprefix("==")
                packages[canonicalize_name(requirement.name)] = (version, digests)
        elif digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            digests.append(digest[1])
    return packages


def _collect(requirements: Iterable[str], locked: dict[str, Any], edges: dict[str, list[str]]) -> set[str]:
    """Return the locked packages that requirements need, with theirs. Fills `edges`."""
    found: set[str] = set()
    waiting = [(text, frozenset[str]()) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        text, extras = waiting.pop()
        requirement = Requirement(text)
        if not _applies(requirement, extras):
            continue
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if name not in locked or key in seen:
            continue
        seen.add(key)
        found.add(name)
        needed = importlib.metadata.requires(name) or []
        waiting += [(entry, key[1]) for entry in needed]
        edges[name] = sorted({*edges.get(name, ()), *(_names(needed, set(key[1])) & locked.keys())})
    return found


def _names(requirements: Iterable[str], extras: set[str]) -> set[str]:
    parsed = map(Requirement, requirements)
    return {canonicalize_name(entry.name) for entry in parsed if _applies(entry, frozenset(extras))}


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or ("",))


def _purl(name: str, locked: dict[str, tuple[str, list[str]]]) -> str:
    return f"pkg:pypi/{name}@{locked[name][0]}"


def _python_component(name: str, version: str, hashes: list[str], scope: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "scope": scope,
        # The lock has the digest of each file of a package. One component may have only one digest of a kind.
        "externalReferences": [
            {
                "type": "distribution",
                "url": purl,
                "comment": f"file {number} of {len(hashes)}",
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
            for number, digest in enumerate(sorted(hashes), 1)
        ],
    }


def _npm_components(lock: Path) -> Iterator[dict[str, Any]]:
    packages = json.loads(lock.read_text(encoding="utf-8"))["packages"]
    for path, entry in sorted(packages.items()):
        if not path or entry.get("dev") or entry.get("optional"):
            continue
        name = path.rpartition("node_modules/")[2]
        purl = f"pkg:npm/{name.replace('@', '%40')}@{entry['version']}"
        algorithm, _, digest = entry["integrity"].partition("-")
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": entry["version"],
            "purl": purl,
            "scope": "required",
            "hashes": [{"alg": algorithm.upper().replace("SHA", "SHA-"), "content": base64.b64decode(digest).hex()}],
        }

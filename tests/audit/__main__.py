"""`make audit`: runs pip-audit over the lock files. A package without advisory data is a failure."""

from __future__ import annotations

import subprocess
import sys

import msgspec

SECONDS = 900
LOCKS = ("requirements.lock", "requirements-dev.lock")
CLEAN, VULNERABLE, UNKNOWN = 0, 1, 2


class Vulnerability(msgspec.Struct):
    """One advisory."""

    id: str
    fix_versions: list[str] = []


class Package(msgspec.Struct):
    """A package in pip-audit's report, with a reason if it was skipped."""

    name: str
    version: str = ""
    vulns: list[Vulnerability] = []
    skip_reason: str = ""


class Report(msgspec.Struct):
    """The JSON report of pip-audit."""

    dependencies: list[Package]


def main(program: str) -> int:
    """Print the findings. Return 0 if every package was audited and none has a known vulnerability."""
    locks = [part for lock in LOCKS for part in ("-r", lock)]
    command = [program, "--format", "json", "--progress-spinner", "off", "--require-hashes", "--disable-pip", *locks]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    status, text = verdict(done.stdout, done.stderr)
    sys.stdout.write(f"{text}\n")
    return status


def verdict(output: str, errors: str) -> tuple[int, str]:
    """Return the exit status and the text to print."""
    try:
        packages = msgspec.json.decode(output, type=Report).dependencies
    except msgspec.DecodeError:
        packages = []
    if not packages:
        reason = (errors.strip().splitlines() or ["it gave no reason"])[-1][:300]
        return UNKNOWN, f"audit: FAILED, nothing was audited. pip-audit reached no advisory data: {reason}"
    lines = [
        f"{package.name} {package.version}: {found.id}, fixed in {', '.join(found.fix_versions) or 'no release'}"
        for package in packages
        for found in package.vulns
    ]
    skipped = [package for package in packages if package.skip_reason]
    named = ", ".join(package.name for package in skipped)
    if lines:
        lines.append(f"audit: FAILED, {len(lines)} known vulnerabilities in {len(packages)} packages.")
        lines += [f"Not audited: {named}"] if skipped else []
        return VULNERABLE, "\n".join(lines)
    if skipped:
        return UNKNOWN, (
            f"Not audited: {named}\n"
            f"audit: FAILED, no advisory data for {len(skipped)} of {len(packages)} packages. pip-audit asks the JSON\n"
            "API of the Python Package Index for each release; run this where that API can be reached."
        )
    return CLEAN, f"audit: {len(packages)} packages, no known vulnerability."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

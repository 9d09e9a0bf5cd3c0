"""Installs svc in a clean Debian root and starts it there.

mmdebstrap makes the root from the package sources of this machine. `deploy/container/install.sh` runs in it, as in the
Dockerfile. Then `svc gateway` runs as the image's user with a read-only root file system, and the image's health check
runs beside it. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.deploy.checks import CheckFailed, run, say
from tests.deploy.dockerfile import DOCKERFILE, INSTALL, read_instructions
from tests.fakes.ports import closed_port

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements-dev.lock"
EXTRAS = "postgres,redis,s3"
FOR_OLDER_PYTHON = ("async-timeout",)
"""Required by redis before Python 3.11.3. Debian 12 has 3.11.2, and pip evaluates markers for its own interpreter."""
START_SECONDS = 60
READ_ONLY = """
set -eu
mount --bind "$1" "$1"
mount --bind "$1/data" "$1/data"
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
mount -o remount,bind,ro "$1"
user=$2
root=$1
shift 2
exec chroot --userspec="$user" "$root" "$@"
"""
"""Runs a command in a root whose only writable folders are /data, /tmp and /dev/shm."""


def check_clean_root(dist: Path) -> None:
    """Install the distribution in the folder `dist`, and start it. Raises CheckFailed."""
    if os.geteuid() or not shutil.which("mmdebstrap"):
        raise CheckFailed("this needs root and mmdebstrap; install it, for example with: apt-get install mmdebstrap")
    if not list(dist.glob("*.whl")):
        raise CheckFailed(f"{dist} has no wheel: run make dist")
    with tempfile.TemporaryDirectory(prefix="svc-deploy-") as name:
        root = Path(name) / "root"
        say("making a clean Debian root")
        run(["mmdebstrap", "--quiet", "--variant=minbase", release(), str(root), *sources()])
        say("running deploy/container/install.sh in it")
        install(root, dist)
        check_leftovers(root)
        say("starting the servers in it, with a read-only root file system")
        start(root, "gateway")
        start(root, "registry", "serve")
        say("starting the gateway with a folder /data as in Kubernetes")
        mount_like_kubernetes(root / "data")
        start(root, "gateway")


def release() -> str:
    """Return the release that the Dockerfile uses."""
    found = re.search(r"^ARG BASE=debian:(\w+)-slim$", DOCKERFILE.read_text(), flags=re.M)
    assert found
    return found[1]


def sources() -> list[str]:
    """Return the files with this machine's package sources, of which mmdebstrap makes those of the root."""
    folder = Path("/etc/apt")
    found = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("debian*.sources"))]
    return [str(path) for path in found if path.exists() and path.stat().st_size]


def install(root: Path, dist: Path) -> None:
    """Run the script with the wheels of the dependencies beside ours, so that the root needs no package index."""
    build = root / "build"
    shutil.copytree(dist, build / "dist")
    shutil.copy(INSTALL, build)
    shutil.copy(LOCK, build)
    (wheel, *_) = sorted(dist.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", "3.11"]
    constraints = build / "constraints.txt"
    constraints.write_text("\n".join(re.findall(r"^([A-Za-z0-9].*==.*?) *\\?$", LOCK.read_text(), flags=re.M)))
    run([*pip, "-c", str(constraints), "--dest", str(build / "wheels"), f"{wheel}[{EXTRAS}]", *FOR_OLDER_PYTHON])
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "EXTRAS": EXTRAS,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "/build/wheels",
    }
    script = ["/build/install.sh", "all", "/build/dist", "/build/requirements-dev.lock"]
    say(f"  {run(['chroot', str(root), 'sh', *script], env=environment).strip()}")
    shutil.rmtree(build)


def check_leftovers(root: Path) -> None:
    """Check that no cache is left, and that only the image's user can read its folder."""
    for folder in ("var/lib/apt/lists", "root/.cache", "var/cache/apt/archives/partial", "tmp"):
        path = root / folder
        left = sorted(each.name for each in path.rglob("*") if each.is_file()) if path.exists() else []
        assert not left, f"/{folder} has {left}"
    state = (root / "data").stat()
    assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (10001, 10001, 0o700)
    assert not (root / "opt/svc/bin/pip").exists()


def start(root: Path, *command: str) -> None:
    """Start a server of the image, run the health check, and send the stop signal."""
    image = read_instructions()
    port = str(closed_port())
    environment = {**image.environment, "PORT": port}
    server = [*image.entrypoint, *command, "--port", port]
    with in_read_only_root(root, image.user, server, environment) as process:
        deadline = time.monotonic() + START_SECONDS
        while (status := health(root, image.user, image.health_check, environment)) and time.monotonic() < deadline:
            if process.poll() is not None:
                break
            time.sleep(0.2)
        if status:
            raise CheckFailed(f"the health check failed with status {status}")
    if process.returncode:
        raise CheckFailed(f"svc {command[0]} ended with status {process.returncode} after the stop signal")
    if not health(root, image.user, image.health_check, environment):
        raise CheckFailed("the health check succeeds without a server")
    say(f"  svc {command[0]}: healthy, ended with status 0 after the stop signal, then the health check fails")


def mount_like_kubernetes(folder: Path) -> None:
    """Give a folder the owner and the mode of an `emptyDir` with `fsGroup`."""
    os.chown(folder, 0, 10001)
    folder.chmod(0o2777)


def health(root: Path, user: str, command: Sequence[str], environment: dict[str, str]) -> int:
    with in_read_only_root(root, user, command, environment) as process:
        process.wait(30)
    return process.returncode


@contextlib.contextmanager
def in_read_only_root(
    root: Path, user: str, command: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the root, in a mount namespace of its own. Sends SIGTERM at the end."""
    shell = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(root), user]
    searched = {**environment, "PATH": f"{environment['PATH']}:/usr/sbin:/sbin"}
    process = subprocess.Popen([*shell, *command], env=searched, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

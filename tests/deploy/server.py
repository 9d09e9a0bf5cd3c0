"""Runs the commands of docs/how-to/deploy-on-debian.md in a clean Debian root, as a new operator would.

The root is made by mmdebstrap, and its network has no other host. systemd does not run in it: tests/deploy/systemctl.py
starts what the units say. A fake provider takes the place of OpenAI. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.deploy.checks import CheckFailed, run, say
from tests.deploy.clean_root import FOR_OLDER_PYTHON, LOCK, release, sources
from tests.documentation.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "deploy-on-debian.md"
SYSTEMCTL = Path(__file__).with_name("systemctl.py")
EXTRAS = "postgres,redis"
ON_EVERY_SERVER = ("ca-certificates", "procps", "systemd")
"""Packages of a usual Debian that a minimal root lacks."""
WAIT_SECONDS = 60
PROVIDER_KEY = "sk-fake-provider"
KEY_PROMPT = "read -rs KEY;"
KEY_PLACEHOLDER = "svc_sk_…"
MOUNTS = """
set -eu
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$1/run"
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
ip link set lo up
mkdir "$1/run/postgresql" "$1/run/lock"
chroot "$1" chown postgres:postgres /run/postgresql
echo ready
exec sleep infinity
"""
"""Runs in namespaces of its own. systemd makes the folders in /run on a real server."""


def check_server(dist: Path) -> None:
    """Follow the page with the distribution in the folder `dist`. Raises CheckFailed."""
    if os.geteuid() or not shutil.which("mmdebstrap"):
        raise CheckFailed("this needs root and mmdebstrap; install it, for example with: apt-get install mmdebstrap")
    wheels = sorted(dist.glob("*.whl"))
    if not wheels:
        raise CheckFailed(f"{dist} has no wheel: run make dist")
    commands = shell_blocks(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="svc-server-") as name:
        root = Path(name) / "root"
        say("making a Debian root with the packages of the page")
        make_root(root, packages(commands))
        download_wheels(root, wheels[0])
        start = time.monotonic()
        with namespaces(root) as process_id, fake_provider(process_id) as address:
            follow(root, process_id, commands, address)
        say(f"  all commands of the page: {time.monotonic() - start:.0f} s")


def shell_blocks(page: str) -> list[tuple[str, str]]:
    """Return the heading and the text of each block with commands."""
    found, heading = [], ""
    for block in blocks(page):
        if block.kind == "heading":
            heading = block.text
        elif block.kind == "fence" and block.language == "sh":
            found.append((heading, block.text))
    return found


def packages(commands: list[tuple[str, str]]) -> list[str]:
    """Return what the page installs with apt-get."""
    line = next(line for _, text in commands for line in text.splitlines() if line.startswith("apt-get install"))
    return [word for word in line.split()[2:] if not word.startswith("-")]


def make_root(root: Path, names: list[str]) -> None:
    """Make the root. No package may start a service in it."""
    no_start = (
        f"printf '#!/bin/sh\\nexit 101\\n' > {root}/usr/sbin/policy-rc.d && chmod 755 {root}/usr/sbin/policy-rc.d"
    )
    include = ",".join([*names, *ON_EVERY_SERVER])
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--aptopt=APT::Install-Recommends false"]
    run([*command, f"--essential-hook={no_start}", f"--include={include}", release(), str(root), *sources()])
    target = root / "usr/local/sbin/systemctl"
    shutil.copy(SYSTEMCTL, target)
    target.chmod(0o755)


def download_wheels(root: Path, wheel: Path) -> None:
    """Put the wheels of the locked dependencies beside ours, so that the root needs no package index."""
    folder = root / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", "3.11"]
    constraints = root / "constraints.txt"
    constraints.write_text("\n".join(re.findall(r"^([A-Za-z0-9].*==.*?) *\\?$", LOCK.read_text(), flags=re.M)))
    run([*pip, "-c", str(constraints), "--dest", str(folder), f"{wheel}[{EXTRAS}]", *FOR_OLDER_PYTHON])


@contextlib.contextmanager
def namespaces(root: Path) -> Iterator[int]:
    """Keep namespaces for mounts, processes and the network. Yields the process to enter them by.

    All processes in them end with the context.
    """
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", MOUNTS, "sh", str(root)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            raise CheckFailed("the namespaces cannot be made here")
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        yield int(children[0])
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()


@contextlib.contextmanager
def fake_provider(process_id: int) -> Iterator[str]:
    """Run a provider in the network of the root. Yields its address."""
    enter = ["nsenter", "--target", str(process_id), "--net"]
    process = subprocess.Popen(
        [*enter, sys.executable, "-m", "tests.soak.provider_process", PROVIDER_KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the provider did not start"
        yield address
    finally:
        process.kill()
        process.communicate(timeout=10)


def follow(root: Path, process_id: int, commands: list[tuple[str, str]], provider: str) -> None:
    """Run each block, and check what the page promises."""
    functions = ""
    output: dict[str, str] = {}
    for heading, text in commands:
        if KEY_PROMPT in text:  # the key comes from the terminal
            text = text.replace("read -rs KEY;", f"KEY={PROVIDER_KEY};")
        if KEY_PLACEHOLDER in text:
            key = re.search(r"\bsvc_sk_\S+", output["Create a key"])
            assert key, output["Create a key"]
            text = text.replace(KEY_PLACEHOLDER, key[0])
        text = text.replace('api_key_file = "/etc', f'base_url = "{provider}/v1"\napi_key_file = "/etc')
        start = time.monotonic()
        output[heading] = output.get(heading, "") + in_root(root, process_id, functions + text)
        say(f"  {heading}: {time.monotonic() - start:.1f} s")
        functions += "".join(f"{line}\n" for line in text.splitlines() if re.match(r"\w+\(\) \{", line))
    health = json.loads(output["Start the gateway"][output["Start the gateway"].index("{") :])
    assert (health["status"], health["degraded"]) == ("ok", []), health
    assert '"ok"' in output["Terminate TLS"], output["Terminate TLS"]
    assert '"finish_reason":"stop"' in output["Send a request"].replace(" ", ""), output["Send a request"]
    assert "gpt-4o-mini" in output["Send a request"]
    check_prometheus(root, process_id)
    check_reload_and_stop(root, process_id)


def in_root(root: Path, process_id: int, script: str) -> str:
    """Run a shell script in the root. Returns its output. Raises CheckFailed with it if the script fails."""
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "/wheels",
    }
    enter = ["nsenter", "--target", str(process_id), "--mount", "--net", "--pid"]
    return run([*enter, "chroot", str(root), "bash", "-eu", "-c", script], env=environment)


def check_prometheus(root: Path, process_id: int) -> None:
    """Check that Prometheus reads the gateway, and knows the rules."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        api = "curl -sS --retry 20 --retry-connrefused http://127.0.0.1:9090/api/v1/"
        targets = json.loads(in_root(root, process_id, f"{api}targets"))["data"]["activeTargets"]
        if [target["health"] for target in targets] == ["up"]:
            break
        if time.monotonic() > deadline:
            raise CheckFailed(f"Prometheus does not read the gateway: {targets}")
        time.sleep(1)
    rules = json.loads(in_root(root, process_id, f"{api}rules"))["data"]["groups"]
    assert sum(len(group["rules"]) for group in rules) > 5, rules
    say("  Prometheus reads the gateway and has the rules")


def check_reload_and_stop(root: Path, process_id: int) -> None:
    """Check the commands of the last part."""
    in_root(root, process_id, "systemctl reload svc")
    deadline = time.monotonic() + WAIT_SECONDS
    log = root / "var/log/svc.log"
    while "reloaded the configuration" not in log.read_text():
        if time.monotonic() > deadline:
            raise CheckFailed(f"the gateway did not reload its configuration:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)
    in_root(root, process_id, "systemctl restart svc && systemctl stop svc prometheus redis-server")
    assert "Traceback" not in log.read_text(), log.read_text()
    say("  reload, restart and stop")

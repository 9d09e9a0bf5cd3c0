"""Installs the distribution in dist/ as a user would, and starts it: `make dist-check`.

    python release/check.py [--dist DIR] [--limit SECONDS]

A server on loopback offers dist/ as a package index, in addition to the index that pip and uv are configured with. pip,
uvx and pipx install `svc-gateway[local,speech]` from it. No compiler and no Node are in PATH. `svc up` must answer
within the limit after each installation.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import html
import http.server
import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from release import archives  # noqa: E402
from release.build import BuildFailed, make_environment, run_command, say  # noqa: E402

REQUIREMENT = "svc-gateway[local,speech]"
GATEWAY_LINE = re.compile(rb"^gateway +(http://\S+)/v1", re.MULTILINE)
SYSTEM_PROGRAMS = ("sh", "dirname", "realpath", "uname")
"""Programs of the base system, which launchers of uv use. The folder that has them may have a compiler, too."""
STOP_TIMEOUT_SECONDS = 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder with the distribution (default dist/)")
    parser.add_argument(
        "--limit", type=float, default=15, help="seconds from the start to the first answer (default 15)"
    )
    parser.add_argument("--with", dest="installers", action="append", choices=("pip", "uvx", "pipx"))
    options = parser.parse_args()
    try:
        check_files(options.dist)
        with serve_index(options.dist) as index, tempfile.TemporaryDirectory() as folder:
            for name in options.installers or ("pip", "uvx", "pipx"):
                say(f"{name}: installing {REQUIREMENT}")
                work = Path(folder) / name
                work.mkdir()
                command, environment = INSTALLERS[name](work, index)
                check_program(command, environment, work, options.limit, options.dist)
                shutil.rmtree(work, ignore_errors=True)
    except BuildFailed as error:
        sys.stderr.write(f"the distribution is not good: {error}\n")
        return 1
    return 0


def check_files(dist: Path) -> None:
    """Check the checksums, and the SBOM against the schema of CycloneDX. Raises BuildFailed."""
    sums = dist / archives.CHECKSUMS
    if not sums.is_file():
        raise BuildFailed(f"{sums} is missing: run make dist")
    for line in sums.read_text(encoding="ascii").splitlines():
        digest, _, name = line.partition("  ")
        if hashlib.sha256((dist / name).read_bytes()).hexdigest() != digest:
            raise BuildFailed(f"{name} is not the file of {sums.name}")
    (document,) = dist.glob("*.cdx.json")
    code = (
        "import sys; from cyclonedx.schema import SchemaVersion;"
        "from cyclonedx.validation.json import JsonStrictValidator;"
        "error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1], encoding='utf-8').read());"
        "sys.exit(str(error) if error else 0)"
    )
    tools = make_environment(sys.executable, "tools", "tools.lock")
    run_command([str(tools / "python"), "-c", code, str(document)], "the SBOM")
    say("checksums and SBOM: ok")


@contextlib.contextmanager
def serve_index(dist: Path) -> Iterator[str]:
    """Serve dist/ as a package index (https://packaging.python.org/en/latest/specifications/simple-repository-api/)."""
    links = "".join(
        f'<a href="/files/{html.escape(path.name)}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}">'
        f"{html.escape(path.name)}</a><br>"
        for path in sorted(dist.iterdir())
        if path.name.endswith((".whl", ".tar.gz"))
    )
    handler = functools.partial(_IndexHandler, links.encode(), dist)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _IndexHandler(http.server.BaseHTTPRequestHandler):
    def __init__(self, links: bytes, dist: Path, *arguments: object) -> None:
        self._links, self._dist = links, dist
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        file = self._dist / Path(self.path).name
        if self.path == "/simple/svc-gateway/":
            self._respond(200, "text/html", self._links)
        elif self.path.startswith("/files/") and file.is_file():
            self._respond(200, "application/octet-stream", file.read_bytes())
        else:
            self._respond(404, "text/plain", b"not found")

    do_HEAD = do_GET  # uv asks for the size first

    def _respond(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def clean_environment(work: Path, *folders: Path) -> dict[str, str]:
    """Return an environment with a home of its own, and with only these folders and a few system programs in PATH."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "LANG"))}
    (work / "home").mkdir(exist_ok=True)
    system = work / "system"
    system.mkdir(exist_ok=True)
    for program in SYSTEM_PROGRAMS:
        if (found := shutil.which(program)) and not (system / program).exists():
            (system / program).symlink_to(found)
    return {
        **kept,
        "HOME": str(work / "home"),
        "SVC_HOME": str(work / "state"),
        "PATH": os.pathsep.join(map(str, (*folders, system))),
    }


def install_with_pip(work: Path, index: str) -> tuple[list[str], dict[str, str]]:
    run_command([sys.executable, "-m", "venv", str(work / "venv")], "a virtual environment")
    folder = work / "venv" / "bin"
    environment = clean_environment(work, folder)
    pip = [str(folder / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    # pip's own configuration names the index of the dependencies, so it needs the real home.
    home = {**environment, "HOME": os.environ.get("HOME", "/")}
    run_command([*pip, "--extra-index-url", index, REQUIREMENT], "pip install", env=home)
    return [str(folder / "svc")], environment


def install_with_uvx(work: Path, index: str) -> tuple[list[str], dict[str, str]]:
    tools = make_environment(sys.executable, "tools", "tools.lock")
    environment = clean_environment(work, tools)
    environment["UV_CACHE_DIR"] = str(work / "cache")
    uvx = [str(tools / "uvx"), "--quiet", "--no-build", "--python", sys.executable, "--index", index]
    command = [*uvx, "--from", REQUIREMENT, "svc"]
    run_command([*command, "--version"], "uvx", env=environment)
    return command, environment


def install_with_pipx(work: Path, index: str) -> tuple[list[str], dict[str, str]]:
    tools = make_environment(sys.executable, "tools", "tools.lock")
    programs = work / "bin"
    environment = clean_environment(work, programs)
    environment |= {"PIPX_HOME": str(work / "pipx"), "PIPX_BIN_DIR": str(programs), "PIPX_MAN_DIR": str(work / "man")}
    options = ["--python", sys.executable, "--pip-args", f"--extra-index-url={index} --only-binary=:all:"]
    home = {**environment, "HOME": os.environ.get("HOME", "/"), "PATH": os.pathsep.join((str(programs), str(tools)))}
    run_command([str(tools / "pipx"), "install", "--quiet", *options, REQUIREMENT], "pipx install", env=home)
    if not (work / "man" / "man1" / "svc.1").exists():
        raise BuildFailed("pipx did not find the man page")
    return [str(programs / "svc")], environment


INSTALLERS = {"pip": install_with_pip, "uvx": install_with_uvx, "pipx": install_with_pipx}


def check_program(command: list[str], environment: dict[str, str], work: Path, limit: float, dist: Path) -> None:
    """Check the build facts, then start `svc up`, and request the health and the console. Raises BuildFailed."""
    for program in ("cc", "gcc", "node", "npm"):
        if shutil.which(program, path=environment["PATH"]):
            raise BuildFailed(f"{program} is in PATH, which the check must do without")
    facts = json.loads(run_command([*command, "--version", "--json"], "svc --version", env=environment))
    has_compiled_wheel = any(f"-cp{sys.version_info[0]}{sys.version_info[1]}-" in path.name for path in dist.iterdir())
    (document,) = dist.glob("*.cdx.json")
    (commit,) = json.loads(document.read_text(encoding="utf-8"))["metadata"]["component"]["properties"]
    for wheel in dist.glob("*.whl"):
        sources = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".c", ".h"))]
        if sources:
            raise BuildFailed(f"{wheel.name} contains {sources[0]}")
    if facts["commit"] != commit["value"] or facts["compiled"] != has_compiled_wheel:
        raise BuildFailed(f"another distribution was installed: {facts}")
    start = time.monotonic()
    up = [*command, "up", "--port", "0", "--registry-port", "0"]
    with (work / "log").open("wb") as log:
        process = subprocess.Popen(up, env=environment, cwd=work, stdout=subprocess.PIPE, stderr=log)
    try:
        address = read_address(process, work, start + limit)
        for path in ("/health", "/console/"):
            with urllib.request.urlopen(f"{address}{path}", timeout=limit) as response:
                body = response.read()
            if not body:
                raise BuildFailed(f"{path} has no content")
        elapsed = time.monotonic() - start
    except (urllib.error.URLError, TimeoutError) as error:
        raise BuildFailed(f"svc up does not answer: {error}") from error
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if elapsed > limit:
        raise BuildFailed(f"svc up answered after {elapsed:.1f} s, later than {limit:g} s")
    say(f"  svc up answered after {elapsed:.1f} s; {facts['python']}, compiled: {facts['compiled']}")


def read_address(process: subprocess.Popen[bytes], work: Path, deadline: float) -> str:
    """Return the gateway's address from the output of `svc up`. Raises BuildFailed after the deadline."""
    assert process.stdout is not None
    output = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not (found := GATEWAY_LINE.search(output)):
            if not selector.select(max(deadline - time.monotonic(), 0)):
                break
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            output += chunk
    if found is None:
        log = (work / "log").read_text(errors="replace")[-1000:]
        if process.poll() is None and not log:
            raise BuildFailed("svc up printed no address in time. A busy machine needs a higher --limit.")
        raise BuildFailed(f"svc up printed no address. Its log ends: {log}")
    return found[1].decode()


if __name__ == "__main__":
    sys.exit(main())

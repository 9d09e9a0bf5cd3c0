"""The gateways that are compared, and how each is started with one provider behind it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".compare"
CLIENT_KEY, PROVIDER_KEY = "sk-client-1234", "sk-provider-5678"
MODEL = "gpt-4o-mini"
LITELLM = PLACE / "litellm" / "bin" / "litellm"
PORTKEY = PLACE / "node" / "node_modules" / "@portkey-ai" / "gateway"
"""Uses @hono/node-server 1.14.1 (`locks/package.json`). Newer allowed versions break its streams (its issue 1389)."""
SVC = ROOT / ".venv" / "bin" / "svc"


@dataclass(frozen=True)
class Target:
    """`settle` is the number of seconds between the first response and the measurement of idle memory."""

    name: str
    command: list[str]
    health: str = "/health"
    env: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    settle: float = 1.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def target(name: str, folder: Path, port: int, provider: int) -> Target:
    """The command of a target. Raises FileNotFoundError if it is not installed."""
    return {"nginx": _nginx, "svc": _svc, "litellm": _litellm, "portkey": _portkey}[name](folder, port, provider)


def _nginx(folder: Path, port: int, provider: int) -> Target:
    """A plain proxy that checks the client's key and replaces it with the provider's.

    With its usual buffer for bodies, nginx would write larger prompts to files.
    """
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise FileNotFoundError("nginx is not installed: apt-get install nginx-light")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(f"""
{"user root;" if os.getuid() == 0 else ""}
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000000; client_body_buffer_size 2m; {folders}
  upstream provider {{ server 127.0.0.1:{provider}; keepalive 1024; keepalive_requests 1000000000; }}
  map $http_authorization $known {{ default 0; "Bearer {CLIENT_KEY}" 1; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /health {{ return 200 "ok"; }}
    location /v1/ {{
      if ($known = 0) {{ return 401; }}
      proxy_pass http://provider; proxy_http_version 1.1; proxy_buffering off;
      proxy_set_header Connection ""; proxy_set_header Authorization "Bearer {PROVIDER_KEY}";
    }}
  }}
}}
""")
    return Target("nginx", [program, "-p", str(folder), "-c", str(folder / "nginx.conf")])


def _svc(folder: Path, port: int, provider: int) -> Target:
    """svc with its defaults: keys, limits, ledger with its journal, metrics, access log, retries."""
    if not SVC.exists():
        raise FileNotFoundError("svc is not installed: make setup")
    env = {
        "SVC_HOME": str(folder / "home"),
        "SVC_API_KEYS": CLIENT_KEY,
        "PROVIDER_A_BASE_URL": f"http://127.0.0.1:{provider}/v1",
        "PROVIDER_A_API_KEY": PROVIDER_KEY,
    }
    return Target("svc", [str(SVC), "gateway", "--port", str(port)], env=env, settle=4)


def _litellm(folder: Path, port: int, provider: int) -> Target:
    """LiteLLM's proxy with a master key and without a database."""
    if not LITELLM.exists():
        raise FileNotFoundError("LiteLLM is not installed: make compare installs it")
    base = f"http://127.0.0.1:{provider}/v1"
    model = {"model": f"openai/{MODEL}", "api_base": base, "api_key": PROVIDER_KEY}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": model}],
        "general_settings": {"master_key": CLIENT_KEY},
        "litellm_settings": {"telemetry": False, "request_timeout": 600},
    }
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    address = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(folder)}
    command = [str(LITELLM), "--config", str(folder / "config.yaml"), *address]
    return Target("litellm", command, health="/health/liveliness", env=env, settle=3)


def _portkey(folder: Path, port: int, provider: int) -> Target:
    """Without client keys: Portkey forwards the client's key to the provider."""
    script = PORTKEY / "build" / "start-server.js"
    if not script.exists() or shutil.which("node") is None:
        raise FileNotFoundError("Portkey is not installed: make compare installs it, and needs node and npm")
    headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": f"http://127.0.0.1:{provider}/v1"}
    env = {"TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost", "HOME": str(folder)}
    command = ["node", str(script), f"--port={port}", "--headless"]
    return Target("portkey", command, health="/", env=env, headers=headers, settle=3)


def version(name: str) -> str:
    """Return name and version of the installed target."""
    if name == "svc":
        said = subprocess.run([str(SVC), "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=10, check=False
        ).stdout.strip()
        kind = "compiled" if any((ROOT / "src" / "svc").rglob("*.so")) else "from source"
        return f"{said.partition(' (')[0].strip() or 'svc'}, {kind}, at {commit}"
    if name == "nginx":
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or "nginx"
        said = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=10, check=False).stderr
        return f"nginx {said.rsplit('/', 1)[-1].strip()}"
    if name == "litellm":
        found = list((PLACE / "litellm").glob("lib/python*/site-packages/litellm-*.dist-info"))
        return f"LiteLLM {re.sub('[.]dist-info$', '', found[0].name.partition('-')[2])}" if found else "LiteLLM"
    server = PORTKEY.parents[1] / "@hono" / "node-server"
    portkey, beneath = [json.loads((place / "package.json").read_text())["version"] for place in (PORTKEY, server)]
    return f"Portkey {portkey} (@hono/node-server {beneath})"

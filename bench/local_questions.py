"""Compares models by the 50 questions of questions.toml, which have fixed answers.

SVC_API_KEY=… python bench/local_questions.py --gateway http://127.0.0.1:3000/v1 smollm2-135m another-model

Each question is asked alone, with temperature 0 and at most 40 tokens. `--show` prints the answers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import tomllib
import urllib.request
from pathlib import Path

QUESTIONS = Path(__file__).with_name("questions.toml")
SYSTEM_PROMPT = "Answer briefly."
MAX_TOKENS = 40


def read_questions() -> dict[str, list[list[str]]]:
    """Return the questions of each group: the question, then the accepted answers."""
    return tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))


def is_right(answer: str, accepted: list[str]) -> bool:
    """Return whether an answer has one of the texts as whole words."""
    return any(
        re.search(rf"(?<![\w]){re.escape(text)}(?![\w])", answer, 0 if text.isupper() and len(text) > 3 else re.I)
        for text in accepted
    )


def ask(gateway: str, key: str, model: str, question: str) -> str:
    """Return the model's answer."""
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}
    request = urllib.request.Request(
        f"{gateway}/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", default="http://127.0.0.1:3000/v1")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    groups = read_questions()
    print("model", *groups, "all", "seconds", sep="\t")
    for model in args.models:
        began, right = time.monotonic(), dict.fromkeys(groups, 0)
        for group, rows in groups.items():
            for question, *accepted in rows:
                answer = ask(args.gateway, os.environ["SVC_API_KEY"], model, question)
                right[group] += is_right(answer, accepted)
                if args.show:
                    print("+" if is_right(answer, accepted) else "-", question, "->", " ".join(answer.split()))
        seconds = round(time.monotonic() - began)
        print(model, *right.values(), f"{sum(right.values())} of {sum(map(len, groups.values()))}", seconds, sep="\t")


if __name__ == "__main__":
    main()

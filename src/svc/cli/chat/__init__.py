"""Talks with a model through a gateway, in a terminal or in a pipe.

The gateway is --gateway, else $SVC_GATEWAY_URL, else $SVC_PLATFORM_URL, else the one that `svc up` runs here. The key
is --key, else $SVC_API_KEY, else the one of `svc up`, which goes nowhere but there. Without a prompt it reads
standard input, or converses if that is a terminal: Ctrl-C stops an answer, Ctrl-D ends.

Examples:
  svc chat
  svc chat "Why is the sky blue?"
  git diff | svc chat --system "Write a commit message." --model gpt-4o-mini
"""

from __future__ import annotations

import argparse
import readline
import sys
from typing import Any

from svc.cli import _addresses
from svc.cli.chat.answer import ENDINGS, Gateway, ask, models
from svc.errors import CommandFailed, SvcError, UsageError

HERE = "http://127.0.0.1:3000/v1"
HISTORY = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to ask, whom, and how."""
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the question; without it, standard input")
    parser.add_argument("--model", help="default: the embedded one, else the first that the gateway offers")
    _addresses.add_gateway(parser)
    parser.add_argument("--key", help="API key; in the environment (SVC_API_KEY) it is not seen in the process list")
    parser.add_argument("--system", help="instructions that come before the conversation")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="length limit of an answer")
    parser.add_argument("--no-stream", action="store_true", help="show the answer when it is whole")


def run(args: argparse.Namespace) -> int:
    """Answers once, or converses."""
    if args.max_tokens is not None and args.max_tokens < 1:
        raise UsageError("--max-tokens is at least 1. See: svc chat --help")
    converse = not args.prompt and sys.stdin.isatty()
    prompt = "" if converse else _prompt(args.prompt)
    talk = Talk(Gateway(*_addresses.gateway_of(args.gateway, args.key, HERE)), args)
    return talk.converse() if converse else talk.once(prompt)


class Talk:
    """A conversation: what was said so far, and how to go on."""

    def __init__(self, gateway: Gateway, args: argparse.Namespace) -> None:
        self._gateway = gateway
        self._model = args.model or _first_model(gateway)
        self._messages = [{"role": "system", "content": args.system}] if args.system else []
        self._options: dict[str, Any] = {"stream": not args.no_stream}
        if args.max_tokens is not None:
            self._options["max_tokens"] = args.max_tokens

    def once(self, prompt: str) -> int:
        """One answer."""
        self._say(prompt)
        return 0

    def converse(self) -> int:
        """Question and answer, until Ctrl-D."""
        readline.set_history_length(HISTORY)
        print(f"{self._model} at {self._gateway.url}. Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
        while True:
            try:
                prompt = input("> ")
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                print()
                continue
            if prompt.strip():
                self._turn(prompt)

    def _turn(self, prompt: str) -> None:
        try:
            self._say(prompt)
        except KeyboardInterrupt:
            print("\nsvc: stopped", file=sys.stderr)
        except SvcError as error:
            print(f"svc: {error.message}", file=sys.stderr)

    def _say(self, prompt: str) -> None:
        """Asks and prints; what was shown of the answer is remembered, however it ended."""
        self._messages.append({"role": "user", "content": prompt})
        shown: list[str] = []
        finish = ""
        pieces = ask(self._gateway, {"model": self._model, "messages": self._messages, **self._options})
        try:
            for piece in pieces:
                shown.append(piece.text)
                finish = piece.finish or ""
                sys.stdout.write(_clean(piece.text))
                sys.stdout.flush()
        finally:
            pieces.close()
            text = "".join(shown)
            if text:
                self._messages.append({"role": "assistant", "content": text})
            else:
                self._messages.pop()
            if text and not text.endswith("\n"):
                print(flush=True)
        if finish in ENDINGS:
            print(f"svc: {ENDINGS[finish]}", file=sys.stderr)


def _prompt(words: list[str]) -> str:
    text = " ".join(words) if words else sys.stdin.buffer.read().decode("utf-8", "replace")
    if not text.strip():
        raise UsageError("There is no question. See: svc chat --help")
    return text


def _first_model(gateway: Gateway) -> str:
    offered = models(gateway)
    if not offered:
        raise CommandFailed(f"The gateway at {gateway.url} offers no model. See: svc doctor")
    own = [each for each in offered if each.get("owned_by") == "local"]
    return str((own or offered)[0]["id"])


def _clean(text: str) -> str:
    """On a terminal no control characters: a model must not move the cursor or set the title."""
    if not sys.stdout.isatty():
        return text
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")

"""Chat with a model through a gateway, on a terminal or in a pipe.

The gateway is --gateway, else $SVC_GATEWAY_URL, else $SVC_PLATFORM_URL, else the running `svc up`.
The key is --key, else $SVC_API_KEY, else the key of `svc up`, which is sent only to that gateway.
Without a prompt the command reads standard input. On a terminal it starts a conversation:
Ctrl-C stops a response, Ctrl-D ends the conversation.

Examples:
  svc chat
  svc chat "Why is the sky blue?"
  git diff | svc chat --system "Write a commit message." --model gpt-4o-mini
"""

from __future__ import annotations

import argparse
import readline
import sys

from svc.cli import _gateway_address
from svc.cli.chat.gateway_client import FINISH_REASON_MESSAGES, ChatOptions, GatewayAddress, list_models, request_chat
from svc.errors import CommandFailed, SvcError, UsageError

LOCAL_GATEWAY_URL = "http://127.0.0.1:3000/v1"
MAX_HISTORY_LINES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the prompt, model and gateway options."""
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the question; without it, standard input")
    parser.add_argument("--model", help="default: the embedded model, else the first model of the gateway")
    _gateway_address.add_gateway_option(parser)
    parser.add_argument("--key", help="API key; SVC_API_KEY keeps it out of the process list")
    parser.add_argument("--system", help="system prompt")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="maximum output tokens of a response")
    parser.add_argument("--no-stream", action="store_true", help="print the response when it is complete")


def run(args: argparse.Namespace) -> int:
    """Send one prompt, or run a conversation."""
    if args.max_tokens is not None and args.max_tokens < 1:
        raise UsageError("--max-tokens must be at least 1. See: svc chat --help")
    if not args.prompt and sys.stdin is None:
        raise UsageError("There is nothing to ask: give a prompt, since standard input is closed. See: svc chat --help")
    interactive = not args.prompt and sys.stdin.isatty()
    prompt = "" if interactive else _read_prompt(args.prompt)
    conversation = Conversation(
        GatewayAddress(*_gateway_address.resolve_gateway(args.gateway, args.key, LOCAL_GATEWAY_URL)), args
    )
    return conversation.run_interactive() if interactive else conversation.ask_once(prompt)


class Conversation:
    """A conversation: its messages so far, and the request options."""

    def __init__(self, gateway: GatewayAddress, args: argparse.Namespace) -> None:
        self._gateway = gateway
        self._options = ChatOptions(args.model or _first_model(gateway), not args.no_stream, args.max_tokens)
        self._messages = [{"role": "system", "content": args.system}] if args.system else []

    def ask_once(self, prompt: str) -> int:
        """Print one response."""
        self._send_prompt(prompt)
        return 0

    def run_interactive(self) -> int:
        """Alternate prompts and responses until Ctrl-D."""
        readline.set_history_length(MAX_HISTORY_LINES)
        print(f"{self._options.model} at {self._gateway.url}. Ctrl-C stops a response, Ctrl-D ends.", file=sys.stderr)
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
                self._run_turn(prompt)

    def _run_turn(self, prompt: str) -> None:
        try:
            self._send_prompt(prompt)
        except KeyboardInterrupt:
            print("\nsvc: stopped", file=sys.stderr)
        except SvcError as error:
            print(f"svc: {error.message}", file=sys.stderr)

    def _send_prompt(self, prompt: str) -> None:
        """Send the conversation and print the response. The printed text is kept, even after an error."""
        self._messages.append({"role": "user", "content": prompt})
        shown_chunks: list[str] = []
        finish_reason = ""
        chunks = request_chat(self._gateway, self._options, self._messages)
        try:
            for chunk in chunks:
                shown_chunks.append(chunk.text)
                finish_reason = chunk.finish_reason or ""
                sys.stdout.write(_strip_control_characters(chunk.text))
                sys.stdout.flush()
        finally:
            chunks.close()
            text = "".join(shown_chunks)
            if text:
                self._messages.append({"role": "assistant", "content": text})
            else:
                self._messages.pop()
            if text and not text.endswith("\n"):
                print(flush=True)
        if finish_reason in FINISH_REASON_MESSAGES:
            print(f"svc: {FINISH_REASON_MESSAGES[finish_reason]}", file=sys.stderr)


def _read_prompt(words: list[str]) -> str:
    text = " ".join(words) if words else sys.stdin.buffer.read().decode("utf-8", "replace")
    if not text.strip():
        raise UsageError("There is no prompt. See: svc chat --help")
    return text


def _first_model(gateway: GatewayAddress) -> str:
    available = [model for model in list_models(gateway) if model.kind is None]
    if not available:
        raise CommandFailed(f"The gateway at {gateway.url} has no chat models. See: svc doctor")
    local = [model for model in available if model.owned_by == "local"]
    return (local or available)[0].id


def _strip_control_characters(text: str) -> str:
    """Remove control characters on a terminal: a model must not move the cursor or set the title."""
    if not sys.stdout.isatty():
        return text
    return "".join(character for character in text if character.isprintable() or character in "\n\t")

"""Print a script that completes commands, options, files, keys and models in bash, zsh or fish.

The script is static: a Tab starts a process only for keys, recipes and the models of the gateway.
Print it again after an upgrade.

Examples:
  svc completion bash > ~/.local/share/bash-completion/completions/svc
  svc completion zsh > ~/.zfunc/_svc        with fpath+=~/.zfunc before compinit
  svc completion fish > ~/.config/fish/completions/svc.fish
"""

from __future__ import annotations

import argparse
import re
import signal
from collections.abc import Iterator
from itertools import islice
from typing import Any

import shtab

from svc import plugins
from svc.cli import _admin_client, _gateway_address
from svc.cli._folders import find_home
from svc.cli.chat import LOCAL_GATEWAY_URL
from svc.cli.chat.gateway_client import GatewayAddress, list_models
from svc.errors import UsageError
from svc.recipes.recipe import list_recipes

SHELLS = ("bash", "zsh", "fish")
MAX_LISTED_VALUES = 1000
LIST_TIMEOUT_SECONDS = 2
SAFE_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
"""Other values are not completed: bash executes a `$(…)` in the list, and a gateway chooses the names of its models."""


def _values_of(kind: str) -> dict[str, Any]:
    """Return a completion of shtab whose values `svc completion --list KIND` prints at each Tab."""
    command, function = f"svc completion --list {kind} 2>/dev/null", f"_svc_list_{kind}"
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({command})",
        "preamble": {
            "bash": f'{function}() {{ compgen -W "$({command})" -- "$1"; }}',
            "zsh": f'{function}() {{ compadd -- ${{(f)"$({command})"}}; }}',
        },
    }


COMPLETION_BY_METAVAR: dict[str, Any] = {
    "FILE": shtab.FILE,
    "TEXT_OR_FILE": shtab.FILE,
    "PIPELINE.yaml": shtab.glob("*.yaml", "*.yml"),
    "DIR": shtab.DIRECTORY,
    "KEY": _values_of("keys"),
}
COMPLETION_BY_ARGUMENT: dict[tuple[str, str], Any] = {
    ("models", "name"): _values_of("recipes"),
    ("chat", "model"): _values_of("models"),
    ("transcribe", "model"): _values_of("recipes"),
    ("transcribe", "file"): shtab.glob("*.wav"),
    ("config", "config"): shtab.glob("*.toml"),
    ("doctor", "config"): shtab.glob("*.toml"),
    ("gateway", "config"): shtab.glob("*.toml"),
    ("up", "config"): shtab.glob("*.toml"),
}
"""Command and name of the argument -> completion. It precedes that of the metavar."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell, and the list that the scripts use."""
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help=f"the shell: {', '.join(SHELLS)}")
    parser.add_argument("--list", choices=("keys", "recipes", "models"), help="print values, one per line")


def run(args: argparse.Namespace) -> int:
    """Print the script, or values."""
    if args.list is not None:
        signal.alarm(LIST_TIMEOUT_SECONDS)  # its default action ends the process: a Tab must not wait for a network
        for value in islice(filter(SAFE_VALUE.fullmatch, _list_values(args.list)), MAX_LISTED_VALUES):
            print(value)
        return 0
    if args.shell is None:
        raise UsageError(f"Name a shell: {', '.join(SHELLS)}. See: svc completion --help")
    print(shtab.complete(_create_root_parser(), args.shell))
    return 0


def _create_root_parser() -> argparse.ArgumentParser:
    """Return one parser for all commands, with a completion in each argument that has one."""
    root = argparse.ArgumentParser(prog="svc")
    root.add_argument("-V", "--version", action="store_true", help="print the version")
    verbs = root.add_subparsers()
    for verb in plugins.names("cli"):
        try:
            module = plugins.load("cli", verb)
        except ImportError:  # a command of another package, whose dependency is missing
            continue
        parser = verbs.add_parser(verb, help=plugins.summary("cli", verb))
        module.add_arguments(parser)
        _set_completions(verb, parser)
    return root


def _set_completions(verb: str, parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _set_completions(verb, subparser)
        by_metavar = COMPLETION_BY_METAVAR.get(action.metavar) if isinstance(action.metavar, str) else None
        if completion := COMPLETION_BY_ARGUMENT.get((verb, action.dest), by_metavar):
            action.complete = completion  # type: ignore[attr-defined]


def _list_values(kind: str) -> Iterator[str]:
    if kind == "recipes":
        yield from list_recipes(find_home() / "recipes")
    elif kind == "models":
        url, key = _gateway_address.resolve_gateway(None, None, LOCAL_GATEWAY_URL)
        yield from (model.id for model in list_models(GatewayAddress(url, key)) if model.kind is None)
    elif find_home().exists():  # otherwise, a Tab would create the folder
        with _admin_client.open_admin_client(argparse.Namespace(gateway=None)) as admin:
            for api_key in admin.list_keys():
                if api_key.revoked is None:
                    yield from (api_key.id, api_key.name)

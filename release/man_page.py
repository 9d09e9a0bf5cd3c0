"""Writes the manual page svc(1) from the parsers of the commands."""

from __future__ import annotations

import argparse
import time

import svc
from svc import plugins
from svc.cli import create_parser


def format_man_page(epoch: int) -> str:
    """Return the page in the man macros of roff. Its date is `epoch`, in seconds since 1970."""
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    summary = (svc.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    lines = [
        f'.TH SVC 1 {date} "svc {svc.__version__}" "User Commands"',
        ".SH NAME",
        f"svc \\- {_escape(summary.removeprefix('svc is '))}",
        ".SH SYNOPSIS",
        ".B svc",
        ".I COMMAND",
        "[OPTION...]",
        ".SH COMMANDS",
    ]
    for verb in plugins.names("cli"):
        module = plugins.load("cli", verb)
        parser = create_parser(f"svc {verb}", module.__doc__ or "")
        module.add_arguments(parser)
        lines += _format_command(f"svc {verb}", parser)
    lines += [
        ".SH EXIT STATUS",
        *_item("0", "Success."),
        *_item("1", "Failure. Standard error has one line with what to do next."),
        *_item("2", "Wrong use, or a wrong configuration."),
        *_item("130", "Interrupted."),
        *_item("143", "Ended by SIGTERM."),
        ".SH FILES",
        *_item("./svc.toml, $SVC_HOME/svc.toml", "The configuration file, unless --config names another."),
        *_item("~/.svc", "State: keys, ledger and models. SVC_HOME names another folder."),
    ]
    return "\n".join(lines) + "\n"


def _format_command(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the section of a command, and those of its actions."""
    lines = [f'.SS "{_escape(name)}"']
    actions = list(_subparsers(parser))
    if not actions:
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        lines += [f".B {_escape(usage)}", ".PP"]
    lines += _paragraphs(parser.description or "")
    for action in parser._actions:
        if isinstance(action, (argparse._SubParsersAction, argparse._HelpAction)) or action.help == argparse.SUPPRESS:
            continue
        labels = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        if action.option_strings and action.nargs != 0:
            labels += f" {action.metavar or action.dest.upper()}"
        lines += _item(labels, _expand(action, parser))
    if epilog := (parser.epilog or "").removeprefix("Examples:").strip("\n"):
        lines += [".PP", "Examples:", ".PP", ".nf", *map(_line, epilog.splitlines()), ".fi"]
    for action_name, subparser in actions:
        lines += _format_command(f"{name} {action_name}", subparser)
    return lines


def _subparsers(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    """Return the subcommands with their parsers. An alias has the parser of its command, which comes first."""
    found: dict[int, tuple[str, argparse.ArgumentParser]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, subparser in action.choices.items():
                found.setdefault(id(subparser), (name, subparser))
    return list(found.values())


def _expand(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    values = {**vars(action), "prog": parser.prog}
    return (action.help or "") % values


def _item(label: str, text: str) -> list[str]:
    return [".TP", f".B {_escape(label)}", _line(text)]


def _paragraphs(text: str) -> list[str]:
    return [_line(line) if line.strip() else ".PP" for line in text.strip().splitlines()]


def _line(text: str) -> str:
    escaped = _escape(text)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _escape(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")

"""The commands, from their argument parsers."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterator

from svc import cli, plugins
from tests.documentation.reference.markdown import paragraph, table

COLUMNS = 100


def overview() -> str:
    """One line for each command."""
    rows = []
    for verb in plugins.names("cli"):
        rows.append((f"[`svc {verb}`](#svc-{verb})", plugins.summary("cli", verb)))
    return table(("Command", "Meaning"), rows)


def commands() -> str:
    """A section for each command, and below it one for each action."""
    return "\n".join(_command(verb) for verb in plugins.names("cli"))


def _command(verb: str) -> str:
    module = plugins.load("cli", verb)
    parser = cli.create_parser(f"svc {verb}", module.__doc__ or "")
    module.add_arguments(parser)
    parts = [f"## `svc {verb}`", *_paragraphs(parser.description or "")]
    actions = list(_actions(parser))
    if actions:
        parts.append(table(("Action", "Meaning"), ((f"`{name}`", meaning) for name, meaning, _ in actions)))
    else:
        parts += _arguments(parser)
    if parser.epilog:
        examples = parser.epilog.partition("\n")[2]
        lines = "\n".join(line.removeprefix("  ") for line in examples.rstrip().split("\n"))
        parts.append(f"Examples:\n\n{_excerpt('examples of the help text', lines)}")
    for name, _, action in actions:
        parts += [f"### `svc {verb} {name}`", *_paragraphs(action.description or ""), *_arguments(action)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Name, help and parser of each action."""
    for group in parser._actions:
        if isinstance(group, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in group._choices_actions}
            for name, action in group.choices.items():
                yield name, helps.get(name, ""), action


def _paragraphs(text: str) -> list[str]:
    return [paragraph(_escape(part)) for part in text.split("\n\n") if part.strip()]


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    """Usage, and a table of positional arguments and options."""
    parser.formatter_class = lambda prog: argparse.HelpFormatter(
        prog, width=10_000
    )  # versions of Python wrap differently
    line = parser.format_usage().strip().removeprefix("usage: ")
    usage = _excerpt("usage", "\n".join(textwrap.wrap(line, COLUMNS, subsequent_indent="    ", break_on_hyphens=False)))
    rows = [row for argument in parser._actions if (row := _row(parser, argument))]
    return [usage, table(("Argument", "Meaning"), rows)] if rows else [usage]


def _row(parser: argparse.ArgumentParser, argument: argparse.Action) -> tuple[str, str] | None:
    if isinstance(argument, argparse._HelpAction):
        return None
    value = parser._get_formatter()._format_args(argument, str(argument.dest).upper())
    names = ", ".join(f"`{option}{f' {value}' if value else ''}`" for option in argument.option_strings) or f"`{value}`"
    text = (argument.help or "") % {"default": argument.default, "prog": parser.prog}
    choices = "" if not argument.choices else "One of " + ", ".join(f"`{each}`" for each in argument.choices)
    return names, ". ".join(part for part in (_escape(text.strip().rstrip(".")), choices) if part)


def _escape(text: str) -> str:
    """`<name>` would be an HTML element, and is left alone only in a code span."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", text)


def _excerpt(reason: str, text: str) -> str:
    return f"<!-- excerpt: {reason} -->\n```text\n{text}\n```\n"


REGIONS: dict[str, Callable[[], str]] = {"commands.overview": overview, "commands": commands}

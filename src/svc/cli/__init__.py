"""The command `svc`: find the command's module, run it, and print an error as one line.

Each command is a module of this package. Its docstring is its help text, and the first line is its summary in
`svc --help`. It defines:

    def add_arguments(parser: argparse.ArgumentParser) -> None
    def run(args: argparse.Namespace) -> int                        # the exit status
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

import svc
from svc import distribution, plugins
from svc.cli._standard_streams import accept_any_text, open_closed_streams
from svc.errors import SvcError, UsageError

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
RELOADABLE_COMMANDS = ("gateway", "up")
"""Commands that reload on SIGHUP. SIGHUP must not end them, even before their modules are loaded."""


ACTION_ALIASES: Final = {"list": "ls", "remove": "rm", "delete": "rm"}
"""Names that users try -> the action."""
_UNKNOWN_ACTION: Final = re.compile(r"argument ACTION: invalid choice: '([^']*)'.*\(choose from (.*)\)")
_INVALID_NUMBER: Final = re.compile(r"invalid (?:int|float) value:")


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises UsageError with a one-line message and a hint."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{_describe_usage_error(message).rstrip('.')}. See: {self.prog} --help")

    def parse_command(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments, and name the help of the action in the error for an unknown one."""
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            action = getattr(namespace, "action", None)
            command = f"{self.prog} {action}" if action else self.prog
            raise UsageError(f"unrecognized arguments: {' '.join(unknown)}. See: {command} --help")
        return namespace


def _describe_usage_error(message: str) -> str:
    """Rewrite a message of argparse without the names of its parameters and of Python's types."""
    if unknown := _UNKNOWN_ACTION.match(message):
        action, actions = unknown[1], re.findall(r"[\w-]+", unknown[2])
        return _describe_unknown("action", action, actions)
    return _INVALID_NUMBER.sub("expected a number, not", message)


def _describe_unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """Return the error for an unknown command or action, with the most similar name."""
    alias = ACTION_ALIASES.get(name)
    matches = [alias] if alias in known else difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean '{matches[0]}'?" if matches else ""
    return f"There is no {kind} {name[:64]!r}.{hint} Available: {', '.join(known)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status.

    0 is success, 1 a failure, 2 wrong usage, 130 an interrupt (Ctrl-C), 143 SIGTERM.
    """
    open_closed_streams()
    accept_any_text()
    arguments = sys.argv[1:] if argv is None else argv
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and _is_reloadable(arguments):
        signal.signal(signal.SIGHUP, _ignore_signal)
    if _is_reloadable(arguments) or list(arguments[:2]) == ["registry", "serve"]:
        signal.signal(signal.SIGUSR1, _ignore_signal)  # it reopens log files once the server runs
        signal.signal(signal.SIGUSR2, _ignore_signal)  # for other servers it means reload or upgrade
    sys.unraisablehook = partial(_handle_unraisable, sys.unraisablehook)
    with warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        return _run_reporting_errors(argv)


def _run_reporting_errors(argv: Sequence[str] | None) -> int:
    try:
        return _run_command(list(sys.argv[1:] if argv is None else argv))
    except UsageError as error:
        return _print_error(error.message, 2)
    except SvcError as error:
        return _print_error(f"{error.message} ({error.reason})" if error.reason else error.message, 1)
    except BrokenPipeError:
        # The reader closed the pipe (`svc models ls | head`). Without this, Python reports the error again at exit.
        _discard_output()
        return 1
    except OSError as error:
        if not _flush_output():
            return _print_error(f"Standard output cannot be written: {error.strerror or error}.", 1)
        return _print_error(_describe_os_error(error), 1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "svc") or not _is_imported_by_svc(error):
            raise
        # The installation left out the dependencies, or another one removed a package.
        hint = f"The Python package {package!r} is missing, which svc needs: {distribution.INSTALL_COMMAND}"
        return _print_error(hint, 1)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _describe_os_error(error: OSError) -> str:
    text = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    if isinstance(error, PermissionError) and error.filename:
        return f"{text}. Check the owner and the permissions of the file and of its folders."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}. Free space on the disk, or write to another one."
    return text


def _flush_output() -> bool:
    """Return whether standard output accepts what was printed. If not, discard it."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
        return False
    return True


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_imported_by_svc(error: ModuleNotFoundError) -> bool:
    """Return whether a module of svc has imported the missing one, and not a plug-in or another package."""
    importer, entry = "", error.__traceback__
    while entry is not None:
        importer, entry = str(entry.tb_frame.f_globals.get("__name__", "")), entry.tb_next
    return importer.partition(".")[0] in ("svc", "importlib")


def _run_command(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_format_overview(), flush=True)
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        return _print_version(argv[1:])
    verb, module = argv[0], _load_command(argv[0])
    parser = create_parser(f"svc {verb}", module.__doc__ or "")
    module.add_arguments(parser)
    try:
        arguments = parser.parse_command(argv[1:])
    except SystemExit:  # after the help
        sys.stdout.flush()
        raise
    signal.signal(signal.SIGTERM, _on_sigterm)  # not earlier: an import may swallow an exception
    status: int = module.run(arguments)
    sys.stdout.flush()
    return status


def _print_version(options: Sequence[str]) -> int:
    """Print version and build facts, with `--json` as an object. Raises UsageError for other options."""
    if unknown := [option for option in options if option != "--json"]:
        raise UsageError(f"svc --version has no option {unknown[0][:64]!r}, only --json.")
    version = importlib.import_module("svc.cli._version")
    version.print_version(as_json=bool(options))
    return 0


def _load_command(verb: str) -> ModuleType:
    try:
        module: ModuleType = plugins.load("cli", verb)
    except UsageError:
        raise UsageError(f"{_describe_unknown('command', verb, plugins.names('cli'))}. See: svc --help") from None
    return module


def create_parser(prog: str, doc: str) -> CommandParser:
    """Create a parser. The docstring from `Examples` on becomes the epilog, unchanged."""
    text, _, examples = doc.partition("\nExamples")
    epilog = f"Examples{examples}" if examples else None
    formatter = argparse.RawDescriptionHelpFormatter
    return CommandParser(
        prog=prog, description=text.strip(), epilog=epilog, formatter_class=formatter, allow_abbrev=False
    )


def _format_overview() -> str:
    verbs = plugins.names("cli")
    width = max(map(len, verbs), default=0)
    lines = [f"  {verb:<{width}}  {plugins.summary('cli', verb)}" for verb in verbs]
    summary = (svc.__doc__ or "").strip().partition("\n")[0]
    return "\n".join(
        [
            summary,
            "",
            "usage: svc COMMAND [OPTION…]",
            "",
            *lines,
            "",
            "svc COMMAND --help has examples; start with: svc up",
        ]
    )


def _show_warning(
    default_hook: Callable[..., None], message: Warning | str, kind: type[Warning], *location: Any
) -> None:
    """Print warnings of svc without their source location. Warnings of other packages are unchanged."""
    if kind is UserWarning:
        print(f"svc: {' '.join(str(message).split())}", file=sys.stderr)
    else:
        default_hook(message, kind, *location)


def _print_error(message: str, status: int) -> int:
    print(f"svc: {' '.join(message.split())}", file=sys.stderr)
    return status


def _is_reloadable(argv: Sequence[str]) -> bool:
    """Return whether the command reloads on SIGHUP once it runs."""
    return bool(argv) and argv[0] in RELOADABLE_COMMANDS


def _ignore_signal(_signal: int, _frame: FrameType | None) -> None:
    """Ignore a signal until the server handles it. Unlike SIG_IGN, a handler does not look like nohup."""


def _on_sigterm(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)  # unwinds the stack, so that cleanup runs


def _handle_unraisable(default_hook: Callable[..., None], error: sys.UnraisableHookArgs) -> None:
    """Exit when SIGTERM arrives inside a finalizer or weak reference callback, where Python drops the exception.

    Imports run such callbacks, so this happens while a command starts.
    """
    if isinstance(error.exc_value, SystemExit) and error.exc_value.code == EXIT_TERMINATED:
        os._exit(EXIT_TERMINATED)
    default_hook(error)

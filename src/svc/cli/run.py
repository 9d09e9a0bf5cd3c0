"""Run a pipeline on a text or a file, or only check it.

Examples:
  svc run ask.yaml --input "What is the capital of France?"
  svc run voice-assistant.yaml --input question.wav -o answer.wav
  svc run ask.yaml --check
  svc run transcribe.yaml --input-list files.txt -o results.jsonl --resume
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from svc.cli.base import Progress, print_json, print_table
from svc.errors import CommandFailed, UsageError
from svc.pipeline.batch import run_many
from svc.pipeline.definition import Pipeline
from svc.pipeline.orchestrator import Orchestrator, Result, load
from svc.pipeline.plan import look
from svc.pipeline.stages.base import Item

MAX_LIST = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run, on what."""
    parser.add_argument("pipeline", metavar="PIPELINE.yaml")
    parser.add_argument("--input", metavar="TEXT_OR_FILE", action="append", default=[], help="may be given many times")
    parser.add_argument("--input-list", metavar="FILE", help="one input a line; - for standard input")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="a text or WAV file; JSON lines for many inputs"
    )
    parser.add_argument("--json", action="store_true", help="each stage's output, time, route and usage")
    parser.add_argument("--check", action="store_true", help="say what would run where, and run nothing")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="write each stage's output there")
    parser.add_argument("--watch", action="store_true", help="show the stages at work on standard error")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="inputs at a time, of many (default 2)")
    parser.add_argument("--resume", action="store_true", help="leave out the inputs that are done in the output file")


def run(args: argparse.Namespace) -> int:
    """0, or 1 when a stage failed."""
    pipeline = load(args.pipeline)
    if args.check:
        return _check(pipeline, as_json=args.json)
    inputs = [*args.input, *(_listed(args.input_list) if args.input_list else [])]
    if not inputs:
        raise UsageError("There is nothing to run on: use --input TEXT_OR_FILE.")
    if not 1 <= args.jobs <= 64:
        raise UsageError("--jobs is a number from 1 to 64.")
    with Progress() as progress:
        orchestrator = Orchestrator(pipeline, os.environ, lambda done, total: progress("getting bundles", done, total))
    with orchestrator:
        if len(inputs) > 1 or args.input_list:
            return _many(orchestrator, inputs, args)
        return _one(orchestrator, inputs[0], args)


def _one(orchestrator: Orchestrator, given: str, args: argparse.Namespace) -> int:
    if args.resume:
        raise UsageError("--resume is for many inputs.")
    if orchestrator.gives == "audio" and args.output is None:
        raise UsageError("This pipeline gives audio: name a file for it with -o FILE.wav")
    live = not args.json and args.output is None
    last = orchestrator.last

    def listen(stage: str, event: str, piece: Item | None) -> None:
        if args.watch and event != "piece":
            print(f"{stage}: {event}", file=sys.stderr, flush=True)
        if live and stage == last and isinstance(piece, str):
            print(piece, end="", flush=True)

    result = orchestrator.run(given, out=args.output, keep=args.keep, listen=listen)
    if args.json:
        print_json(msgspec.to_builtins(result))
        return 1 if result.error else 0
    if live and result.stages and (result.output is not None or result.error):
        print()
    if result.error:
        raise CommandFailed(f"Stage {result.error.stage!r} failed ({result.error.code}): {result.error.message}")
    return 0


def _many(orchestrator: Orchestrator, inputs: list[str], args: argparse.Namespace) -> int:
    if args.resume and args.output is None:
        raise UsageError("--resume needs the output file of the run before: -o FILE.jsonl")
    if orchestrator.gives == "audio" and args.keep is None:
        raise UsageError("This pipeline gives audio: name a folder for it with --keep DIR")

    def watch(done: int, result: Result) -> None:
        if args.watch:
            state = f"failed: {result.error.message}" if result.error else "done"
            print(f"{done} of {len(inputs)}: {result.input[:60]}: {state}", file=sys.stderr, flush=True)

    failed = run_many(
        orchestrator, inputs, out=args.output, keep=args.keep, jobs=args.jobs, resume=args.resume, watch=watch
    )
    if failed:
        print(f"svc: {failed} of {len(inputs)} inputs failed; the lines with an error say why", file=sys.stderr)
    return 1 if failed else 0


def _listed(name: str) -> list[str]:
    try:
        text = sys.stdin.read(MAX_LIST) if name == "-" else Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"There is no file {name}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not text in UTF-8.") from None
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found:
        raise UsageError(f"{name} lists no inputs.")
    return found


def _check(pipeline: Pipeline, *, as_json: bool) -> int:
    seen = look(pipeline, os.environ)
    if as_json:
        print_json({"pipeline": pipeline.name, "stages": msgspec.to_builtins(seen)})
        return 0
    rows = [("STAGE", "ROUTE", "MODEL", "PROVIDER", "WHERE")]
    print_table([*rows, *((one.id, one.route, one.model, one.provider or "-", one.where) for one in seen)])
    return 0

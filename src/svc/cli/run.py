"""Run a pipeline on a text or a file, or check it without running it.

Without a gateway URL in the pipeline or the environment, the pipeline uses the running `svc up`.

Examples:
  svc run ask.yaml --input "What is the capital of France?"
  svc run voice-assistant.yaml --input question.wav -o answer.wav
  svc run ask.yaml --check
  svc run voice-assistant.yaml --input questions/ --keep answers
  svc run transcribe.yaml --input-list files.txt -o results.jsonl --resume
  svc run transcribe.yaml --input-list files.txt -o results.jsonl --ray auto
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec

from svc import plugins
from svc.cli import EXIT_INTERRUPTED, EXIT_TERMINATED
from svc.cli._output import load_terminal, print_json, print_table
from svc.cli._progress import CUT_OUTPUTS, BatchProgress, StageProgress
from svc.cli._progress_bar import ProgressBar
from svc.distribution import install_command
from svc.errors import CommandFailed, PipelineFailed, UsageError
from svc.pipeline.batch import PipelineRunner, run_batch
from svc.pipeline.definition import Pipeline, parse_pipeline
from svc.pipeline.files import (
    check_output_paths,
    read_definition,
    read_input,
    read_standard_input,
    save_outputs,
    stage_output_paths,
)
from svc.pipeline.inputs import RunInputs, check_inputs_not_overwritten, expand_inputs
from svc.pipeline.orchestrator import Orchestrator, RunResult
from svc.pipeline.plan import StageError, plan_stages
from svc.pipeline.stages.base import StageChunk

MAX_INPUT_LIST_BYTES = 64 << 20
DEFAULT_JOBS = 2
STANDARD_STREAM = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the input, output and execution options."""
    parser.add_argument("pipeline", metavar="PIPELINE.yaml", help="the file of the pipeline")
    parser.add_argument(
        "--input",
        metavar="TEXT_OR_FILE",
        action="append",
        default=[],
        help="a text, a file, a folder, a glob such as 'talks/*.wav', or - for standard input; repeatable",
    )
    parser.add_argument("--input-list", metavar="FILE", help="one input per line; - for standard input")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="a text or WAV file; JSON Lines for several inputs"
    )
    parser.add_argument(
        "--json", action="store_true", help="print each stage's output, duration, route and usage as JSON"
    )
    parser.add_argument("--check", action="store_true", help="print the plan, and run nothing")
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="write each output to this folder, under the input's name"
    )
    parser.add_argument("--watch", action="store_true", help="show the progress of the stages on standard error")
    parser.add_argument(
        "--jobs", metavar="N", type=int, help="inputs that run at the same time (default 2; with --ray: all)"
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="run on a Ray cluster: auto, or HOST:PORT; needs the extra ray"
    )
    parser.add_argument("--resume", action="store_true", help="skip inputs whose results are in the output file")


def run(args: argparse.Namespace) -> int:
    """Run the pipeline. The exit status is 1 if a stage failed."""
    text = read_definition(args.pipeline)
    pipeline = parse_pipeline(text, args.pipeline)
    try:
        return _run(pipeline, text, args)
    except StageError as error:
        location = error.find_location(pipeline)
        raise PipelineFailed(f"{location}: {error.message}" if location else error.message) from error


def _run(pipeline: Pipeline, text: str, args: argparse.Namespace) -> int:
    if args.check:
        return _print_plan(pipeline, as_json=args.json)
    inputs = expand_inputs([*args.input, *(_read_input_list(args.input_list) if args.input_list else [])])
    if not inputs.items:
        raise UsageError("There is no input: use --input TEXT_OR_FILE.")
    if args.jobs is not None and not 1 <= args.jobs <= 1024:
        raise UsageError("--jobs must be from 1 to 1024.")
    many = inputs.are_many or bool(args.input_list or args.ray)
    if many and STANDARD_STREAM in args.input:
        raise UsageError("--input - must be the only input.")
    if args.output is not None:
        if str(args.output) == STANDARD_STREAM:
            raise UsageError("-o needs a file. Without -o, a text is written to standard output.")
        sources = [args.pipeline, *([args.input_list] if args.input_list else []), *(i.text for i in inputs.items)]
        check_inputs_not_overwritten([args.output], sources)
    if args.resume and not (many and args.output):
        raise UsageError("--resume needs several inputs, and the output file of the earlier run: -o FILE.jsonl")
    if args.ray:
        with _exit_on_interrupt(args), _open_cluster(args, text) as cluster:
            return _run_many(cluster, pipeline.name, inputs, args, cluster.jobs)
    with ProgressBar() as progress:
        orchestrator = Orchestrator(pipeline, os.environ, lambda done, total: progress("getting bundles", done, total))
    if many:
        with _exit_on_interrupt(args), orchestrator:
            return _run_many(orchestrator, pipeline.name, inputs, args, args.jobs or DEFAULT_JOBS)
    with orchestrator:
        return _run_one(orchestrator, pipeline, inputs.items[0].text, args)


@contextmanager
def _exit_on_interrupt(args: argparse.Namespace) -> Iterator[None]:
    """Exit after an interrupt. The interpreter itself would wait for the threads that still run inputs."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as interrupt:
        if args.output is not None:
            print(f"svc: interrupted; to continue, add --resume with -o {args.output}", file=sys.stderr, flush=True)
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(EXIT_INTERRUPTED if isinstance(interrupt, KeyboardInterrupt) else EXIT_TERMINATED)


def _open_cluster(args: argparse.Namespace, text: str) -> Any:
    try:
        cluster = plugins.load("pipeline", "cluster")
    except ImportError as error:
        raise CommandFailed(f"Running on a cluster needs the package ray: {install_command('ray')}") from error
    return cluster.RayCluster(args.ray, text, args.pipeline, os.environ, args.jobs)


def _run_one(orchestrator: Orchestrator, pipeline: Pipeline, input_name: str, args: argparse.Namespace) -> int:
    if orchestrator.output_kind == "audio" and args.output is None:
        raise UsageError("This pipeline outputs audio: set a file with -o FILE.wav")
    check_output_paths(orchestrator.output_kind, output_path=args.output, keep_folder=args.keep)
    if args.keep is not None:
        check_inputs_not_overwritten(stage_output_paths(orchestrator.stages, args.keep), [args.pipeline, input_name])
    kind = orchestrator.input_kind
    item = read_standard_input(kind) if input_name == STANDARD_STREAM else read_input(input_name, kind)
    is_drawn = args.watch and sys.stderr.isatty()
    print_chunks = not args.json and args.output is None and not is_drawn
    stages = orchestrator.stages
    progress = StageProgress(stages) if args.watch else None
    printed = False

    def on_stage_event(stage: str, event: str, chunk: StageChunk | None) -> None:
        if progress is not None:
            progress.on_stage_event(stage, event, chunk)
        nonlocal printed
        if print_chunks and stage == stages[-1] and isinstance(chunk, str):
            print(chunk, end="", flush=True)
            printed = True

    with load_terminal().LiveDisplay(progress.format_lines) if progress is not None and is_drawn else nullcontext():
        run_output = orchestrator.run(input_name, item, on_stage_event)
    result = save_outputs(run_output, output_path=args.output, keep_folder=args.keep)
    if args.json:
        _warn_of_other_providers(pipeline, result)
        _warn_of_cut_outputs(result)
        print_json(msgspec.to_builtins(result))
        return 1 if result.error else 0
    if is_drawn and args.output is None and result.output is not None:
        print(result.output.text)
    elif print_chunks and (printed or result.output is not None):
        print()
    _warn_of_other_providers(pipeline, result)
    _warn_of_cut_outputs(result)
    if result.error:
        raise CommandFailed(f"Stage {result.error.stage!r} failed ({result.error.code}): {result.error.message}")
    return 0


def _warn_of_other_providers(pipeline: Pipeline, result: RunResult) -> None:
    requested = {stage.id: stage.provider for stage in pipeline.stages}
    for stage in result.stages:
        provider = requested.get(stage.id)
        if stage.route == "gateway" and provider and stage.provider and stage.provider.lower() != provider.lower():
            text = f"the gateway sent stage {stage.id!r} to the provider {stage.provider}, not to {provider}"
            print(f"svc: {text}", file=sys.stderr)


def _warn_of_cut_outputs(result: RunResult) -> None:
    for stage in result.stages:
        if (reason := CUT_OUTPUTS.get(stage.finish_reason or "")) is not None:
            print(f"svc: the output of stage {stage.id!r} was cut off {reason}", file=sys.stderr)


def _run_many(runs: PipelineRunner, name: str, input_set: RunInputs, args: argparse.Namespace, jobs: int) -> int:
    if runs.output_kind == "audio" and args.keep is None:
        raise UsageError("This pipeline outputs audio: set a folder with --keep DIR")
    check_output_paths("text", output_path=args.output, keep_folder=args.keep)
    inputs = input_set.filter_by_kind(runs.input_kind)
    progress = BatchProgress(inputs, print_lines=args.watch)
    with load_terminal().LiveDisplay(progress.format_lines) if args.watch and sys.stderr.isatty() else nullcontext():
        failed = run_batch(
            runs,
            name,
            inputs,
            output_path=args.output,
            keep_folder=args.keep,
            jobs=jobs,
            resume=args.resume,
            observer=progress,
        )
    if progress.cut_count:
        cut_text = f"{progress.cut_count} of {len(inputs)} inputs have an output that was cut off"
        print(f"svc: {cut_text}; the `finish_reason` of the stage says why", file=sys.stderr)
    if failed:
        print(f"svc: {failed} of {len(inputs)} inputs failed; the lines with an error say why", file=sys.stderr)
    return 1 if failed else 0


def _read_input_list(name: str) -> list[str]:
    if name == "-" and sys.stdin is None:
        raise UsageError("Standard input is closed.")
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as file:
            data = file.read(MAX_INPUT_LIST_BYTES + 1)
        text = data.decode("utf-8-sig")  # editors on Windows begin a file with a byte order mark
    except FileNotFoundError:
        raise UsageError(f"There is no file {name}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_INPUT_LIST_BYTES:
        raise UsageError(f"{name} is larger than {MAX_INPUT_LIST_BYTES >> 20} MiB.")
    inputs = [line.strip() for line in text.split("\n") if line.strip()]
    if not inputs:
        raise UsageError(f"{name} lists no inputs.")
    return inputs


def _print_plan(pipeline: Pipeline, *, as_json: bool) -> int:
    planned_stages = plan_stages(pipeline, os.environ)
    if as_json:
        print_json({"pipeline": pipeline.name, "stages": msgspec.to_builtins(planned_stages)})
        return 0
    rows = [("STAGE", "ROUTE", "MODEL", "PROVIDER", "WHERE")]
    rows += [(stage.id, stage.route, stage.model, stage.provider or "-", stage.where) for stage in planned_stages]
    print_table(rows)
    return 0

"""The command line: one thin function per verb. Everything heavy is imported by the verb that needs it."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from seatrial.errors import InputError, SeatrialError

app = typer.Typer(
    name="seatrial",
    help="Runs an LLM training configuration as it is and answers with evidence: complete? sound? fast enough?",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Format(StrEnum):
    text = "text"
    json = "json"


class Target(StrEnum):
    local = "local"


Config = Annotated[Path, typer.Argument(help="The configuration file, in any dialect.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Overrides, in the spelling of the file; any unique suffix of a key's path will do.",
        show_default=False,
    ),
]
Model = Annotated[str | None, typer.Option(help="Which model's cell of the file (CVS); also model=… as an override.")]
Gpu = Annotated[str | None, typer.Option(help="Which GPU's cell of the file (CVS); also gpu=… as an override.")]


def _directory(text: str) -> Path:
    """The path, except that nothing is not the current folder."""
    if not text:
        raise InputError.single("run-directory", "--out", "it names no folder", "name one, or leave --out away")
    return Path(text)


Out = Annotated[
    Path | None,
    typer.Option(help="The run directory; by default runs/<name>-<time>.", metavar="DIRECTORY", parser=_directory),
]
Keep = Annotated[
    Path | None,
    typer.Option(help="Keep it as a run directory, with report.html.", metavar="DIRECTORY", parser=_directory),
]
Rehearse = Annotated[bool, typer.Option("--rehearse", help="Shrink model and batch to fit this machine.")]
Collapse = Annotated[bool, typer.Option("--collapse", help="Shrink only the mesh: same training, fewer devices.")]
FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for scripts.")]


def _load(config: Path, overrides: list[str] | None, *, action: str, model: str | None, gpu: str | None) -> Any:
    """The configuration, read and linted; its problems are all in it. Raises InputError where nothing can be read."""
    from seatrial.check import lint
    from seatrial.dialects import load

    return lint(load(config, overrides or (), action=action, model=model, gpu=gpu), action=action)


def _load_bars(config: Path, overrides: list[str], *, model: str | None, gpu: str | None) -> Any:
    """What a log is held against: every word of it has to be understood, but it need not be able to run here."""
    from seatrial.check import lint
    from seatrial.dialects import load

    read = load(config, overrides, action="judge", model=model, gpu=gpu)
    _refuse(read)
    found = (
        replace(problem, severity="warning") if problem.severity == "error" else problem
        for problem in lint(read, action="judge").problems
    )
    return replace(read, problems=tuple(found))


def _refuse(resolved: Any) -> None:
    """Stops here if the configuration has errors."""
    if resolved.spec is None or any(problem.severity == "error" for problem in resolved.problems):
        raise InputError(resolved.problems)


@app.command()
def init(
    name: Annotated[str | None, typer.Argument(help="An example's name; without it, the examples are listed.")] = None,
) -> None:
    """Write an example configuration into this folder, or list the examples."""
    from seatrial.dialects.examples import copy_example, list_examples

    typer.echo(copy_example(name, Path.cwd()) if name else list_examples())


@app.command()
def check(
    config: Config,
    overrides: Overrides = None,
    model: Model = None,
    gpu: Gpu = None,
    rehearse: Rehearse = False,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for errors.")] = False,
    output: FormatOption = Format.text,
) -> None:
    """Find every problem of a configuration or cluster file at once; touch nothing. Exit code 0, or 2 for errors.

    Several files may be given; the same overrides hold for all.
    """
    from seatrial.checking import check as look

    told, has_errors = look(
        config, overrides or (), rehearse=rehearse, strict=strict, model=model, gpu=gpu, as_json=output is Format.json
    )
    typer.echo(told)
    if has_errors:
        raise typer.Exit(2)


@app.command()
def plan(
    config: Config,
    overrides: Overrides = None,
    model: Model = None,
    gpu: Gpu = None,
    rehearse: Rehearse = False,
    collapse: Collapse = False,
    explain: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Only say where this value came from, and what each dialect calls it."),
    ] = None,
    output: FormatOption = Format.text,
) -> None:
    """Show what would be run: the resolved spec with each value's origin, and the command of every process."""
    from seatrial.report.problems import warn
    from seatrial.run import describe, explained

    resolved = _load(config, overrides, action="rehearse" if rehearse else "plan", model=model, gpu=gpu)
    if explain is not None:
        typer.echo(explained(resolved, explain, as_json=output is Format.json))
        return
    _refuse(resolved)
    warn(resolved.problems)
    typer.echo(describe(resolved, rehearse=rehearse, collapse=collapse, as_json=output is Format.json))


@app.command()
def convert(
    config: Config,
    to: Annotated[str, typer.Option(help="native, cvs, cvs-megatron, maxtext, megatron, megatron-env or nxdt.")],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="A new file for it; by default it is printed.", metavar="FILE")
    ] = None,
    model: Model = None,
    gpu: Gpu = None,
) -> None:
    """Write a configuration in another dialect; each value that it has no words for is a note on stderr."""
    from seatrial.dialects import load
    from seatrial.dialects.convert import convert as translate
    from seatrial.dialects.convert import save
    from seatrial.report.problems import inert, warn

    resolved = load(config, overrides or (), action="convert", model=model, gpu=gpu)
    converted = translate(resolved, to)
    if out is not None:
        save(converted, out)
    warn(resolved.problems)
    for note in converted.notes:
        typer.echo(f"note: {inert(note)}", err=True)
    if out is None:
        typer.echo(converted.text, nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a native configuration, for editors."""
    import json

    from seatrial.dialects.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def run(
    config: Config,
    overrides: Overrides = None,
    on: Annotated[Target, typer.Option(help="Where to run.")] = Target.local,
    engine: Annotated[str, typer.Option(help="What trains: native is Seatrial's own trainer.")] = "native",
    model: Model = None,
    gpu: Gpu = None,
    rehearse: Rehearse = False,
    collapse: Collapse = False,
    out: Out = None,
) -> None:
    """Run the configuration, live, and exit with the verdict."""
    from seatrial.report.problems import warn
    from seatrial.run import run as start

    resolved = _load(config, overrides, action="rehearse" if rehearse else "run", model=model, gpu=gpu)
    _refuse(resolved)
    warn(resolved.problems)
    verdict = start(resolved, config=config, on=on.value, engine=engine, rehearse=rehearse, collapse=collapse, out=out)
    raise typer.Exit(verdict.exit_code)


@app.command()
def train(config: Config, overrides: Overrides = None, model: Model = None, gpu: Gpu = None, out: Out = None) -> None:
    """Be one trainer process for the configuration, here and now, without launcher or verdict."""
    from seatrial.report.problems import warn
    from seatrial.run import train_here

    resolved = _load(config, overrides, action="train", model=model, gpu=gpu)
    _refuse(resolved)
    warn(resolved.problems)
    train_here(resolved, config=config, out=out)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def data(context: typer.Context) -> None:
    """Tokenise text once, into Megatron's files: seatrial data TEXT... --tokenizer T --out PREFIX."""
    from seatrial.run import tokenise_here

    tokenise_here(context.args)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def export(context: typer.Context) -> None:
    """Write a checkpoint's weights for Hugging Face: seatrial export RUN_DIR|CHECKPOINT --to FOLDER."""
    from seatrial.run import export_here

    export_here(context.args)


Logs = Annotated[
    list[Path],
    typer.Argument(metavar="LOG...", help="Log files, folders of them, or - for standard input.", show_default=False),
]
Family = Annotated[str, typer.Option(help="Whose logs these are; auto takes every line for what it is.")]


@app.command()
def parse(paths: Logs, family: Family = "auto") -> None:
    """Turn foreign logs into events, one JSON object per line; a single log is read as it comes."""
    from seatrial.judging import parse_logs

    for line in parse_logs(paths, family):
        typer.echo(line)


@app.command()
def judge(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...|RUN_DIR [KEY=VALUE]...",
            help="The logs of one run (files, folders of them, or -), or a run directory; then overrides of --against.",
            show_default=False,
        ),
    ],
    against: Annotated[
        Path | None, typer.Option(help="The configuration that was run; it is held to its expectations.")
    ] = None,
    family: Family = "auto",
    policy: Annotated[
        str | None, typer.Option(help="Which steps count for the speed: steady (default), cvs-jax, last-10, …")
    ] = None,
    convention: Annotated[
        str | None, typer.Option(help="How FLOPs are counted: causal, non_causal, palm; by default as the log does.")
    ] = None,
    published: Annotated[
        str | None, typer.Option(help="Hold it to the nearest published result, within so much: 10%.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Also say how long so many tokens would take: 15T.")] = None,
    cvs_compat: Annotated[bool, typer.Option("--cvs-compat", help="Also show what ROCm CVS would have said.")] = False,
    model: Model = None,
    gpu: Gpu = None,
    out: Keep = None,
    output: FormatOption = Format.text,
) -> None:
    """Judge what is there: foreign logs, or a run once more; needs no cluster and no jax. Exits with the verdict."""
    from seatrial.judging import Options, judge_logs, judge_run, options_of, run_directory_in, sort_arguments
    from seatrial.report.problems import warn

    paths, overrides = sort_arguments(what, against)
    options: Options = options_of(policy=policy, convention=convention, published=published, tokens=tokens)
    as_json = output is Format.json
    if run_dir := run_directory_in(paths):
        if against:
            why, fix = f"{run_dir} holds the configuration that it is judged by", "leave it away, or judge the log"
            raise InputError.single("run-directory", "--against", why, fix)
        text, verdict = judge_run(run_dir, options, as_json=as_json)
    else:
        resolved = _load_bars(against, overrides, model=model, gpu=gpu) if against else None
        if resolved:
            warn(resolved.problems)
        text, verdict = judge_logs(
            paths, options, resolved=resolved, config=against, family=family, cvs_compat=cvs_compat,
            out=out, as_json=as_json,
        )  # fmt: skip
    typer.echo(text)
    raise typer.Exit(verdict.exit_code)


class ReportFormat(StrEnum):
    html = "html"
    text = "text"
    markdown = "markdown"
    junit = "junit"
    csv = "csv"
    json = "json"


@app.command()
def report(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="A run directory; of several, how they scale.", show_default=False),
    ],
    output: Annotated[ReportFormat, typer.Option("--format", help="html writes a file, the others print.")] = (
        ReportFormat.html
    ),
) -> None:
    """Write the report of a run again; of several runs of one workload, the table of how it scales."""
    from seatrial.judging import report_run, report_scaling

    text = report_run(run_dirs[0], output.value) if len(run_dirs) == 1 else report_scaling(run_dirs, output.value)
    typer.echo(text)


@app.command()
def history(
    root: Annotated[Path, typer.Option(help="The folder that holds the run directories.", metavar="DIRECTORY")] = (
        Path("runs")
    ),
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read every run directory again.")] = False,
    model: Annotated[str | None, typer.Option(help="Only models whose name contains this.")] = None,
    device: Annotated[str | None, typer.Option(help="Only devices whose name contains this.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only runs that ended so: pass, fail, died, running …")] = None,
    limit: Annotated[int, typer.Option(help="How many of the newest to show; 0 for all.")] = 30,
    output: FormatOption = Format.text,
) -> None:
    """List the runs below a folder, the newest first."""
    from seatrial.history import list_runs

    js = output is Format.json
    typer.echo(list_runs(root, as_json=js, rebuild=rebuild, model=model, device=device, outcome=outcome, limit=limit))


class CompareFormat(StrEnum):
    text = "text"
    json = "json"
    markdown = "markdown"


@app.command()
def compare(
    a: Annotated[
        str, typer.Argument(help="The run to compare with: a run directory, or its name or id in the history.")
    ],
    b: Annotated[str, typer.Argument(help="The run to look at.")],
    fail_if_slower: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Exit with 1 if B is slower by more than this: 3% or 0.03.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare what can be compared of runs that do different work.")
    ] = False,
    output: Annotated[CompareFormat, typer.Option("--format", help="markdown is for comments on pull requests.")] = (
        CompareFormat.text
    ),
) -> None:
    """Compare two runs: speed with its interval, losses, and what differs. Exits with 0, or with the gate's answer."""
    from seatrial.history import compare_runs

    text, exit_code = compare_runs(a, b, fail_if_slower=fail_if_slower, anyway=anyway, output=output.value)
    typer.echo(text)
    raise typer.Exit(exit_code)


@app.command()
def version() -> None:
    """Print Seatrial's version."""
    from seatrial import __version__

    typer.echo(__version__)


def main() -> None:
    """Runs the command line; whatever goes wrong is told without a traceback, and ends in its exit code."""
    gc.set_threshold(100_000)  # what is imported stays: looking through it for garbage is an eighth of a short command
    try:
        app()
    except InputError as error:
        from seatrial.report.problems import render_json, render_text

        as_json = "--format=json" in sys.argv or ("--format", "json") in pairwise(sys.argv)
        typer.echo(render_json(error.problems) if as_json else render_text(error.problems), err=not as_json)
        sys.exit(error.exit_code)
    except SeatrialError as error:
        typer.echo(f"seatrial: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # a full disk behind a redirection, a terminal that went away
        with suppress(OSError):
            typer.echo(f"seatrial: {error}", err=True)
        sys.exit(3)

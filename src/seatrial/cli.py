"""The command line: one thin function per verb. Everything heavy is imported by the verb that needs it."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click import argument, option
from click.exceptions import Exit

from seatrial import __version__, contracts
from seatrial.commands import options, trainer_programs
from seatrial.commands.options import FILE, FOLDER, InOrder, WithSeveral, offered
from seatrial.contracts import NAMES
from seatrial.errors import InputError, SeatrialError

if TYPE_CHECKING:
    from seatrial.commands.check import ConfigArguments
    from seatrial.commands.judge import JudgeOptions
    from seatrial.launch.where import Where


@click.group(
    cls=InOrder,
    no_args_is_help=True,
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="seatrial %(version)s", help="Print Seatrial's version.")
def app() -> None:
    """Runs an LLM training configuration and answers with evidence: complete, sound, fast enough?

    Completion of verbs, options, values and files: eval "$(seatrial completion bash)"; also zsh, fish.
    """


@app.command()
@argument(
    "name",
    required=False,
    shell_complete=offered("examples"),
    help="An example's name; without it, the examples are listed.",
)
def init(name: str | None) -> None:
    """Write an example configuration, or list the examples."""
    from seatrial.dialects.examples import copy_example, list_examples

    click.echo(copy_example(name, Path.cwd()) if name else list_examples())


_WITH_GITHUB = "text for people, json for scripts, github for annotations in its workflows."


@app.command()
@options.configuration
@options.rehearse
@option("--strict", is_flag=True, help="Treat warnings as errors.")
@option("--compile", "compiles", is_flag=True, help="Compile our trainer's step for the device: its memory is exact.")
@options.format_option("text", "json", "github", meaning=_WITH_GITHUB)
def check(given: ConfigArguments, rehearse: bool, strict: bool, compiles: bool, output: str) -> None:
    """Find every problem of a configuration or cluster file.

    Nothing is run or changed. Several files may be given; the same overrides hold for all. Exit code 0, or 2 for
    errors.
    """
    from seatrial.commands.check import check as find

    text, has_errors = find(given, rehearse=rehearse, strict=strict, compiles=compiles, output=output)
    click.echo(text)
    raise Exit(2 if has_errors else 0)


@app.command(cls=options.WithArguments)
@argument("script", type=FILE, help="The script that starts the training.")
@argument(
    "variables", nargs=-1, metavar="[NAME=VALUE]... [-- ARGUMENT...]", help="Its variables; behind --, its arguments."
)
@option("--folder", type=FOLDER, help="The folder that it may read: else that of its git repository, or its own.")
@option(
    "--exists",
    "existing",
    multiple=True,
    metavar="PATH",
    shell_complete=offered("files"),
    help="A file, or a folder/, that it finds there, empty.",
)
@option("--time-limit", "seconds", type=float, default=8.0, metavar="SECONDS", help="How long it may run.")
@option("--pick", type=int, metavar="N", help="Of several trainings, which.")
@option("--out", type=FILE, metavar="FILE", help="Where the configuration goes: else SCRIPT.captured.json.")
@option("--yes", is_flag=True, help="Do not show the script and ask.")
@options.format_option("text", "json")
def capture(script: Path, variables: tuple[str, ...], output: str, **how: Any) -> None:
    """Find what a launch script starts, in a sandbox.

    bash runs it without network and without your files, and stand-ins take the place of the programs that it starts.
    What would train is written as a configuration, which every other verb reads.
    """
    from seatrial.commands.capture import CaptureRequest
    from seatrial.commands.capture import capture as run_in_sandbox

    how["folder"] = how["folder"] and how["folder"].absolute()
    how |= {"arguments": click.get_current_context().meta[options.ARGUMENTS], "as_json": output == "json"}
    click.echo(run_in_sandbox(CaptureRequest(script=script, variables=variables, **how)))


@app.command()
@options.of_a_run
@option(
    "--explain",
    metavar="KEY",
    shell_complete=offered("explained"),
    help="Only show where this value came from, and its name in each dialect.",
)
@options.compiling
@option("--all", "shows_all", is_flag=True, help="Show every value with its origin, every command and file.")
@option("--sweep", "sweeps", is_flag=True, help="Rank the layouts of the run on its devices by the time of a step.")
@options.format_option("text", "json")
def plan(
    given: ConfigArguments, explain: str | None, compile_for: str | None, shows_all: bool, sweeps: bool, output: str,
    **how: Any,
) -> None:  # fmt: skip
    """Show what would run: on one screen, or all of it.

    Model, mesh, batch, memory and step time to expect, and what would be started; with --all also every value of the
    resolved run with its origin, and each process's command; with --compile, memory, collectives and kernels of the
    step as XLA compiles it for the run's device, which need not be here; with --sweep, only the layouts that fit, the
    fastest first.
    """
    from seatrial.commands import plan as plans
    from seatrial.commands.run import RunRequest

    explains, compiles = explain is not None, compile_for is not None
    shown = {"--sweep": sweeps, "--explain": explains, "--all": shows_all, "--compile": compiles}
    if (sweeps or explains) and sum(shown.values()) > 1:
        both = " and ".join(name for name, is_given in shown.items() if is_given)
        raise click.UsageError(f"{both} show different things: give one of them")
    request, as_json = RunRequest(config=given, **how), output == "json"
    if sweeps:
        from seatrial.commands import sweep

        found = sweep.sweep(request)
        click.echo(sweep.as_json(found) if as_json else sweep.as_text(found))
    elif explain is not None:
        click.echo(plans.explain(request, explain, as_json=as_json))
    else:
        click.echo(plans.describe(request, as_json=as_json, compile_for=compile_for, shows_all=shows_all))


@app.command()
@option("--cpu", is_flag=True, help="Measure the processor and its virtual devices.")
@options.format_option("text", "json")
def calibrate(cpu: bool, output: str) -> None:
    """Measure this machine's devices for plan's times.

    Takes about two minutes on a quiet machine: matrix products, attention, memory, optimizer, collectives and small
    steps. The profile is kept in the user's data, and `plan` uses it for runs on this device from then on.
    """
    import json

    from seatrial.commands.calibrate import calibrate as measure
    from seatrial.commands.calibrate import render
    from seatrial.estimate.time_profile import as_dict

    profile, path = measure(cpu=cpu, say=lambda text: click.echo(text, err=True))
    click.echo(json.dumps(as_dict(profile), indent=1) if output == "json" else render(profile, path))


@app.command()
@options.configuration
@option(
    "--to",
    required=True,
    shell_complete=offered("dialects"),
    help="native, cvs, cvs-megatron, maxtext, megatron, megatron-env or nxdt.",
)
@option("--out", type=FILE, metavar="FILE", help="A new file for it (default: print it).")
def convert(given: ConfigArguments, to: str, out: Path | None) -> None:
    """Write a configuration in another dialect.

    Each value that the other dialect cannot express is a note on stderr.
    """
    from seatrial.console import note, warn
    from seatrial.dialects.convert import convert as translate
    from seatrial.dialects.convert import save

    resolved = given.load("convert")
    converted = translate(resolved, to)
    if out is not None:
        save(converted, out)
    warn(resolved.problems)
    note(converted.notes, to=sys.stderr)
    if out is None:
        click.echo(converted.text, nl=False)


@app.command()
@argument("name", type=click.Choice(NAMES), default=NAMES[0], help="What the schema is of.")
def schema(name: str) -> None:
    """Print the JSON Schema of a file for other programs.

    Of a native configuration, a cluster file, or what a run writes: plan.json, a line of events-*.jsonl, metrics.json,
    verdict.json.
    """
    import json

    click.echo(json.dumps(contracts.schema(name), indent=2))


@app.command()
@options.of_a_run
@option("--preflight/--no-preflight", default=True, help="Check the hosts first, if they are reached by SSH.")
@option("--retries", type=click.IntRange(0, 100), default=0, help="Retries after infrastructure failures.")
@option(
    "--metrics-port", metavar="[HOST:]PORT", help="Serve live figures to Prometheus; HOST: not only to this machine."
)
@options.out
def run(given: ConfigArguments, where: Where, preflight: bool, **how: Any) -> None:
    """Run a configuration, live, and exit with its verdict."""
    from dataclasses import replace

    from seatrial.commands.run import RunRequest
    from seatrial.commands.run import run as start

    raise Exit(start(RunRequest(config=given, where=replace(where, preflight=preflight), **how)).exit_code)


@app.command()
@options.optional_configuration
@options.where
@options.engine
@options.rehearse
@options.format_option("text", "json")
def preflight(given: ConfigArguments | None, output: str, **how: Any) -> None:
    """Check that the hosts can run the configuration.

    Nothing is changed on them. Exit code 0, or 3 for errors.
    """
    from seatrial.commands.preflight import preflight as ask

    text, ready = ask(given, as_json=output == "json", **how)
    click.echo(text)
    raise Exit(0 if ready else 3)


_RUNS = offered("run-directories")
_RUN_DIR = argument("run_dir", type=FILE, shell_complete=_RUNS, help="The directory that the run printed.")


@app.command()
@_RUN_DIR
def attach(run_dir: Path) -> None:
    """Follow a run on a cluster again, to its verdict."""
    from seatrial.commands.attach import attach as follow

    raise Exit(follow(run_dir).exit_code)


@app.command()
@_RUN_DIR
@option("--now", is_flag=True, help="Leave the processes no time to checkpoint.")
def stop(run_dir: Path, now: bool) -> None:
    """End a run, from anywhere."""
    from seatrial.commands.stop import stop as end

    click.echo(end(run_dir, now=now))


@app.command()
@_RUN_DIR
@option("--rank", type=int, shell_complete=offered("ranks"), help="Only of this process.")
@option("--follow", "-f", is_flag=True, help="Go on until the run is over.")
def logs(run_dir: Path, rank: int | None, follow: bool) -> None:
    """Print what the processes of a run have printed."""
    from seatrial.commands.logs import logs as read
    from seatrial.console import inert

    for chunk in read(run_dir, rank=rank, follow=follow):  # as they are for a file, harmless for a terminal
        lines = chunk.decode("utf-8", "replace").split("\n") if sys.stdout.isatty() else ()
        click.echo("\n".join(map(inert, lines)) if lines else chunk, nl=False)


@app.command()
@options.configuration
@options.out
def train(given: ConfigArguments, out: Path | None) -> None:
    """Run a single trainer process in the foreground.

    Without launcher and verdict: for launchers of your own.
    """
    from seatrial.commands.run import RunRequest
    from seatrial.commands.train import train_here

    train_here(RunRequest(config=given, out=out))


app.add_command(trainer_programs.data)
app.add_command(trainer_programs.export)


_LOGS_HELP = "Log files, folders of them, or - for standard input."


@app.command()
@argument("paths", type=FILE, nargs=-1, required=True, metavar="LOG...", help=_LOGS_HELP)
@options.family
def parse(paths: tuple[Path, ...], family: str, pattern: Path | None) -> None:
    """Turn logs from other trainers into events.

    One JSON object per line; a single log is read as it comes.
    """
    from seatrial.commands.parse import parse_logs

    for line in parse_logs(paths, family, pattern):
        click.echo(line)


@app.command()
@argument(
    "what",
    nargs=-1,
    required=True,
    metavar="LOG...|RUN_DIR [KEY=VALUE]...",
    shell_complete=offered("logs-or-overrides"),
    help="The logs of one run (files, folders of them, or -), or a run directory; then overrides of --against.",
)
@option("--against", type=FILE, help="The configuration that was run; its targets are checked.")
@options.family
@options.judging
@option("--cvs-compat", is_flag=True, help="Also show ROCm CVS's own answer.")
@options.cell
@option("--out", type=FOLDER, metavar="DIRECTORY", help="Keep it as a run directory, with report.html.")
@options.format_option("text", "json", "github", meaning=_WITH_GITHUB)
def judge(
    what: tuple[str, ...],
    against: Path | None,
    options: JudgeOptions,
    model: str | None,
    gpu: str | None,
    output: str,
    **how: Any,
) -> None:
    """Judge existing logs, or re-judge a run.

    Of a folder, every run in it, and how they scale. Needs no cluster and no jax. Exits with the (worst) verdict.
    """
    from seatrial.commands.check import ConfigArguments
    from seatrial.commands.judge import sort_arguments
    from seatrial.commands.judge_named import judge_named
    from seatrial.report import folder, formats

    paths, overrides = sort_arguments(what, against)
    given = ConfigArguments(config=against, overrides=tuple(overrides), model=model, gpu=gpu) if against else None
    found = judge_named(paths, options, against=given, **how)
    if isinstance(found, folder.FolderReport):
        click.echo(folder.FORMATS[output](found))
        raise Exit(found.exit_code)
    report, verdict = found
    click.echo(formats.FORMATS[output](report))
    raise Exit(verdict.exit_code)


@app.command()
@argument(
    "run_dirs",
    type=FILE,
    nargs=-1,
    required=True,
    metavar="RUN_DIR...",
    shell_complete=_RUNS,
    help="A run directory; several give a scaling table.",
)
@options.shown
@options.format_option(
    "html", "text", "markdown", "junit", "csv", "json", "github", meaning="html writes a file, the others print."
)
def report(run_dirs: tuple[Path, ...], output: str, **shown: float | None) -> None:
    """Regenerate a report; several runs: a scaling table."""
    from seatrial.commands.report import report_run, report_scaling
    from seatrial.console import warn
    from seatrial.runs.status import require_over

    if len(run_dirs) > 1 and any(shown.values()):
        name = next(name for name, value in shown.items() if value)
        why, fix = "it is for the report of one run, and several are named", "omit it, or name one run directory"
        raise InputError.single("one-run", f"--{name.replace('_', '-')}", why, fix)
    for run_dir in run_dirs:
        warn(require_over(run_dir))
    click.echo(report_run(run_dirs[0], output, **shown) if len(run_dirs) == 1 else report_scaling(run_dirs, output))


@app.command()
@argument(
    "run_dirs",
    type=FILE,
    nargs=-1,
    metavar="RUN_DIR...",
    shell_complete=_RUNS,
    help="The directories that runs printed.",
)
@option(
    "--to",
    "target",
    metavar="TARGET",
    shell_complete=offered("publish-targets"),
    help="mlflow, wandb, tensorboard, prometheus, junit, csv or parquet.",
)
@option("--out", type=FILE, metavar="PATH", help="The file or folder; without it, a single file is printed.")
@option("--url", metavar="URL", help="MLflow's tracking server (default: MLFLOW_TRACKING_URI).")
@option("--project", metavar="NAME", help="Project of W&B, experiment of MLflow (default: seatrial).")
@option("--grafana", is_flag=True, help="Print a Grafana dashboard over what prometheus and --metrics-port give.")
def publish(run_dirs: tuple[Path, ...], target: str | None, grafana: bool, **to: Any) -> None:
    """Publish judged runs to trackers, dashboards, CI servers.

    Parameters with secrets masked, figures of each step, checks, report, outcome. A run that is published again is
    there once.
    """
    from seatrial.commands.publish import publish_runs
    from seatrial.publish import GRAFANA, TARGETS, Destination

    if grafana:
        click.echo(GRAFANA.read_text(encoding="utf-8"), nl=False)
        return
    if not run_dirs:
        raise InputError.single("missing", "RUN_DIR", "nothing says what to publish", "name the directory of a run")
    if target is None:
        raise InputError.single("missing", "--to", "nothing says where to", f"one of: {', '.join(TARGETS)}")
    click.echo(publish_runs(run_dirs, target, Destination(**to)))


@app.command()
@option("--root", type=FOLDER, default="runs", metavar="DIRECTORY", help="The folder that holds the run directories.")
@option("--rebuild", is_flag=True, help="Read every run directory again.")
@option("--model", shell_complete=offered("presets"), help="Only models whose name contains this.")
@option("--device", shell_complete=offered("devices"), help="Only devices whose name contains this.")
@option(
    "--outcome", shell_complete=offered("outcomes"), help="Only runs with this outcome: pass, fail, died, running …"
)
@option("--limit", default=30, help="How many of the newest to show; 0 for all.")
@options.format_option("text", "json", "html", meaning="html writes a file, the others print.")
def history(root: Path, output: str, **wanted: Any) -> None:
    """List the runs below a folder, the newest first."""
    from seatrial.history import list_runs
    from seatrial.report import html

    text = list_runs(root, output=output, **wanted)
    click.echo(html.saved("history.html", text) if output == "html" else text)


@app.command(cls=WithSeveral)
@argument(
    "runs",
    nargs=-1,
    required=True,
    metavar="RUN...",
    shell_complete=_RUNS,
    help="The baseline and the run to compare with it: directories, or names or ids in the history.",
)
@option(
    "--with",
    "others",
    multiple=True,
    metavar="RUN...",
    shell_complete=_RUNS,
    help="Compare these runs with those named before.",
)
@option("--history", is_flag=True, help="Compare with all earlier runs of the same configuration.")
@options.fail_if_slower
@option("--anyway", is_flag=True, help="Compare what can be compared of runs that do different work.")
@options.format_option(
    "text", "json", "markdown", "html", meaning="markdown is for comments on pull requests; html writes a file."
)
def compare(
    runs: tuple[str, ...],
    others: tuple[str, ...],
    history: bool,
    fail_if_slower: float | None,
    anyway: bool,
    output: str,
) -> None:
    """Compare runs: speed, losses, and settings.

    Two runs, or several a side: A1 A2 A3 --with B1 B2 B3. Speed has its confidence interval. Exits with 0, or with
    the answer of --fail-if-slower.
    """
    from seatrial.history import compare_runs, sides

    a, b = sides(runs, others, history=history)
    text, exit_code = compare_runs(a, b, limit=fail_if_slower, anyway=anyway, output=output)
    click.echo(text)
    raise Exit(exit_code)


@app.command()
@argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="The shell that reads it.")
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell.

    Its first lines say where it goes. Verbs, options and their values, examples, run directories, keys of the given
    configuration, and files are completed.
    """
    from seatrial.commands.completion.shells import script

    click.echo(script(shell), nl=False)


@app.command()
@argument(
    "folders",
    type=FOLDER,
    nargs=-1,
    metavar="[FOLDER]...",
    help="The folders that hold run directories (default: runs).",
)
@option("--host", default="127.0.0.1", help="The address to serve at; other machines need a token, which is printed.")
@option("--port", type=click.IntRange(0, 65535), default=8765, help="0 takes any that is free.")
@option("--token-file", type=FILE, metavar="FILE", help="A token of your own, for this machine as well.")
def serve(folders: tuple[Path, ...], **how: Any) -> None:
    """Serve a page over all runs of folders.

    Those that go on, live; the history of each configuration with its changes; reports and comparisons. Nothing is
    written into the folders. Ctrl-C ends it, with exit code 0.
    """
    from seatrial.commands.serve import serve as start

    start(folders or (Path("runs"),), say=click.echo, **how)


@app.command()
def version() -> None:
    """Print Seatrial's version."""
    click.echo(__version__)


def main() -> None:
    """Runs the command line; every error is one message without a traceback, and ends in its exit code."""
    if "_SEATRIAL_COMPLETE" in os.environ:  # a shell asks
        _complete()
    for stream in (sys.stdout, sys.stderr):
        # Of Latin-1 or ASCII, in which there is no ✓; in UTF-8, a name that is none keeps its bytes.
        if isinstance(stream, TextIOWrapper) and (stream.errors == "strict" or stream.encoding.lower() != "utf-8"):
            stream.reconfigure(errors="replace")
    gc.set_threshold(100_000)  # what is imported stays: looking through it for garbage is an eighth of a short command
    try:
        sys.exit(app.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.UsageError):
            from seatrial.commands.usage import fix_of

            fix = fix_of(error, app, sys.argv[1:])
            click.echo(f"fix: {fix}\n" if fix else "", err=True, nl=False)
        sys.exit(error.exit_code)
    except InputError as error:
        _refuse(error)
    except SeatrialError as error:
        click.echo(f"seatrial: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except OSError as error:  # a full disk behind a redirection, a terminal that went away
        from seatrial.commands.usage import as_input_error, said_of

        if (wrong := as_input_error(error)) is not None:
            _refuse(wrong)
        with suppress(OSError):
            click.echo(f"seatrial: {said_of(error)}", err=True)
        sys.exit(3)


def _complete() -> NoReturn:
    """Answers a shell that completes a command line, or with nothing: what is wrong is said when the command runs."""
    from seatrial.commands.completion.shells import answer

    with suppress(Exception):
        click.echo(answer(app), nl=False)
    sys.exit(0)


def _refuse(error: InputError) -> NoReturn:
    """Prints all findings of wrong input, and ends with its exit code."""
    from seatrial.report.findings import FORMATS

    asked = (name for name in FORMATS if f"--format={name}" in sys.argv or ("--format", name) in pairwise(sys.argv))
    output = next(asked, "text")
    click.echo(FORMATS[output](error.problems), err=output == "text")
    sys.exit(error.exit_code)

"""The command line: one thin function per verb. Everything heavy is imported by the verb that needs it."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import argument, option
from click.exceptions import Exit

from seatrial.commands import options, trainer_programs
from seatrial.commands.options import FILE, FOLDER, InOrder
from seatrial.errors import InputError, SeatrialError

if TYPE_CHECKING:
    from seatrial.spec import Action


@click.group(cls=InOrder, no_args_is_help=True, context_settings={"show_default": True})
def app() -> None:
    """Runs an LLM training configuration as it is and answers with evidence: complete? sound? fast enough?

    Completion of verbs and options: eval "$(_SEATRIAL_COMPLETE=bash_source seatrial)"; also zsh_source, fish_source.
    """


def _load(config: Path, given: dict[str, Any], *, action: Action, engine: str | None = None) -> Any:
    """The configuration, without errors; its other findings are told. What of `given` is the file's is taken out."""
    from seatrial.commands.check import refuse, resolved
    from seatrial.report.problems import warn

    of_the_file = {name: given.pop(name) for name in ("overrides", "model", "gpu")}
    read = resolved(config, action=action, engine=engine, **of_the_file)
    refuse(read)
    warn(read.problems)
    return read


@app.command()
@argument("name", required=False, help="An example's name; without it, the examples are listed.")
def init(name: str | None) -> None:
    """Write an example configuration into this folder, or list the examples."""
    from seatrial.dialects.examples import copy_example, list_examples

    click.echo(copy_example(name, Path.cwd()) if name else list_examples())


@app.command()
@options.configuration
@options.rehearse
@option("--strict", is_flag=True, help="Take warnings for errors.")
@options.format_option("text", "json")
def check(
    config: Path,
    overrides: tuple[str, ...],
    model: str | None,
    gpu: str | None,
    rehearse: bool,
    strict: bool,
    output: str,
) -> None:
    """Find every problem of a configuration or cluster file at once; touch nothing. Exit code 0, or 2 for errors.

    Several files may be given; the same overrides hold for all.
    """
    from seatrial.commands.check import check as look

    told, has_errors = look(
        config, overrides, rehearse=rehearse, strict=strict, model=model, gpu=gpu, as_json=output == "json"
    )
    click.echo(told)
    if has_errors:
        raise Exit(2)


@app.command()
@options.configuration
@options.where
@options.engine
@options.rehearse
@options.collapse
@option("--explain", metavar="KEY", help="Only say where this value came from, and what each dialect calls it.")
@options.format_option("text", "json")
def plan(
    config: Path, engine: str, rehearse: bool, collapse: bool, explain: str | None, output: str, **given: Any
) -> None:
    """Show what would be run: the resolved spec with each value's origin, and the command of every process."""
    from seatrial.commands.check import resolved as read
    from seatrial.commands.run import describe, explained
    from seatrial.launch.where import Where

    action: Action = "rehearse" if rehearse else "plan"
    if explain is not None:
        found = read(config, given["overrides"], action=action, model=given["model"], gpu=given["gpu"])
        click.echo(explained(found, explain, as_json=output == "json"))
        return
    resolved = _load(config, given, action=action, engine=engine)
    small = {"rehearse": rehearse, "collapse": collapse}
    click.echo(describe(resolved, where=Where(**given), engine=engine, as_json=output == "json", **small))


@app.command()
@options.configuration
@option("--to", required=True, help="native, cvs, cvs-megatron, maxtext, megatron, megatron-env or nxdt.")
@option("--out", type=FILE, metavar="FILE", help="A new file for it; by default it is printed.")
def convert(
    config: Path, overrides: tuple[str, ...], model: str | None, gpu: str | None, to: str, out: Path | None
) -> None:
    """Write a configuration in another dialect; each value that it has no words for is a note on stderr."""
    from seatrial.dialects import load
    from seatrial.dialects.convert import convert as translate
    from seatrial.dialects.convert import save
    from seatrial.report.problems import inert, warn

    resolved = load(config, overrides, action="convert", model=model, gpu=gpu)
    converted = translate(resolved, to)
    if out is not None:
        save(converted, out)
    warn(resolved.problems)
    for note in converted.notes:
        click.echo(f"note: {inert(note)}", err=True)
    if out is None:
        click.echo(converted.text, nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a native configuration, for editors."""
    import json

    from seatrial.dialects.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@app.command()
@options.configuration
@options.where
@options.engine
@options.rehearse
@options.collapse
@option("--preflight/--no-preflight", default=True, help="Look at the hosts first, if they are reached by SSH.")
@option("--retries", type=click.IntRange(0, 100), default=0, help="How often to try again what machines have ended.")
@options.out
def run(
    config: Path, engine: str, rehearse: bool, collapse: bool, retries: int, out: Path | None, **given: Any
) -> None:
    """Run the configuration, live, and exit with the verdict."""
    from seatrial.commands.run import run as start
    from seatrial.launch.where import Where

    resolved = _load(config, given, action="rehearse" if rehearse else "run", engine=engine)
    verdict = start(
        resolved, config=config, where=Where(**given), engine=engine, rehearse=rehearse, collapse=collapse,
        retries=retries, out=out,
    )  # fmt: skip
    raise Exit(verdict.exit_code)


@app.command()
@options.optional_configuration
@options.where
@options.engine
@options.rehearse
@options.format_option("text", "json")
def preflight(config: Path | None, engine: str, rehearse: bool, output: str, **given: Any) -> None:
    """Look whether the hosts of a cluster file can run it; nothing is changed there. Exit code 0, or 3 for errors."""
    from seatrial.commands.run import preflight as look
    from seatrial.launch.where import Where

    resolved = _load(config, given, action="plan", engine=engine) if config else None
    where = Where(**{name: value for name, value in given.items() if name not in ("overrides", "model", "gpu")})
    told, ready = look(resolved, where=where, engine=engine, rehearse=rehearse, as_json=output == "json")
    click.echo(told)
    raise Exit(0 if ready else 3)


_RUN_DIR = argument("run_dir", type=FILE, help="The directory that the run printed.")


@app.command()
@_RUN_DIR
def attach(run_dir: Path) -> None:
    """Follow a run on a cluster again, to its verdict: it goes on when whoever started it has gone."""
    from seatrial.commands.attach import attach as follow

    raise Exit(follow(run_dir).exit_code)


@app.command()
@_RUN_DIR
@option("--now", is_flag=True, help="Leave the processes no time to save.")
def stop(run_dir: Path, now: bool) -> None:
    """End a run, from anywhere."""
    from seatrial.commands.attach import stop as end

    click.echo(end(run_dir, now=now))


@app.command()
@_RUN_DIR
@option("--rank", type=int, help="Only of this process.")
@option("--follow", "-f", is_flag=True, help="Go on until the run is over.")
def logs(run_dir: Path, rank: int | None, follow: bool) -> None:
    """Print what the processes of a run have printed."""
    from seatrial.commands.attach import logs as read
    from seatrial.report.problems import inert

    for chunk in read(run_dir, rank=rank, follow=follow):  # as they are for a file, harmless for a terminal
        lines = chunk.decode("utf-8", "replace").split("\n") if sys.stdout.isatty() else ()
        click.echo("\n".join(map(inert, lines)) if lines else chunk, nl=False)


@app.command()
@options.configuration
@options.out
def train(config: Path, out: Path | None, **given: Any) -> None:
    """Be one trainer process for the configuration, here and now, without launcher or verdict."""
    from seatrial.commands.run import train_here

    train_here(_load(config, given, action="train"), config=config, out=out)


app.add_command(trainer_programs.data)
app.add_command(trainer_programs.export)

_LOGS_HELP = "Log files, folders of them, or - for standard input."


@app.command()
@argument("paths", type=FILE, nargs=-1, required=True, metavar="LOG...", help=_LOGS_HELP)
@options.family
def parse(paths: tuple[Path, ...], family: str) -> None:
    """Turn foreign logs into events, one JSON object per line; a single log is read as it comes."""
    from seatrial.commands.judge import parse_logs

    for line in parse_logs(paths, family):
        click.echo(line)


@app.command()
@argument(
    "what",
    nargs=-1,
    required=True,
    metavar="LOG...|RUN_DIR [KEY=VALUE]...",
    help="The logs of one run (files, folders of them, or -), or a run directory; then overrides of --against.",
)
@option("--against", type=FILE, help="The configuration that was run; it is held to its expectations.")
@options.family
@option("--policy", help="Which steps count for the speed: steady (default), cvs-jax, last-10, …")
@option("--convention", help="How FLOPs are counted: causal, non_causal, palm; by default as the log does.")
@option("--published", help="Hold it to the nearest published result, within so much: 10%.")
@option("--tokens", help="Also say how long so many tokens would take: 15T.")
@option("--cvs-compat", is_flag=True, help="Also show what ROCm CVS would have said.")
@options.cell
@option("--out", type=FOLDER, metavar="DIRECTORY", help="Keep it as a run directory, with report.html.")
@options.format_option("text", "json")
def judge(
    what: tuple[str, ...],
    against: Path | None,
    family: str,
    policy: str | None,
    convention: str | None,
    published: str | None,
    tokens: str | None,
    cvs_compat: bool,
    model: str | None,
    gpu: str | None,
    out: Path | None,
    output: str,
) -> None:
    """Judge what is there: foreign logs, or a run once more; needs no cluster and no jax. Exits with the verdict."""
    from seatrial.commands.judge import judge_logs, judge_run, options_of, run_directory_in, sort_arguments
    from seatrial.report.problems import warn
    from seatrial.runs.status import require_over

    paths, overrides = sort_arguments(what, against)
    how = options_of(policy=policy, convention=convention, published=published, tokens=tokens)
    as_json = output == "json"
    if run_dir := run_directory_in(paths):
        if against:
            why, fix = f"{run_dir} holds the configuration that it is judged by", "leave it away, or judge the log"
            raise InputError.single("run-directory", "--against", why, fix)
        warn(require_over(run_dir))
        text, verdict = judge_run(run_dir, how, as_json=as_json)
    else:
        resolved = None
        if against:
            from seatrial.commands.check import bars

            resolved = bars(against, overrides, model=model, gpu=gpu)
            warn(resolved.problems)
        text, verdict = judge_logs(
            paths, how, resolved=resolved, config=against, family=family, cvs_compat=cvs_compat,
            out=out, as_json=as_json,
        )  # fmt: skip
    click.echo(text)
    raise Exit(verdict.exit_code)


@app.command()
@argument(
    "run_dirs",
    type=FILE,
    nargs=-1,
    required=True,
    metavar="RUN_DIR...",
    help="A run directory; of several, how they scale.",
)
@options.format_option(
    "html", "text", "markdown", "junit", "csv", "json", meaning="html writes a file, the others print."
)
def report(run_dirs: tuple[Path, ...], output: str) -> None:
    """Write the report of a run again; of several runs of one workload, the table of how it scales."""
    from seatrial.commands.judge import report_run, report_scaling
    from seatrial.report.problems import warn
    from seatrial.runs.status import require_over

    for run_dir in run_dirs:
        warn(require_over(run_dir))
    text = report_run(run_dirs[0], output) if len(run_dirs) == 1 else report_scaling(run_dirs, output)
    click.echo(text)


@app.command()
@option("--root", type=FILE, default="runs", metavar="DIRECTORY", help="The folder that holds the run directories.")
@option("--rebuild", is_flag=True, help="Read every run directory again.")
@option("--model", help="Only models whose name contains this.")
@option("--device", help="Only devices whose name contains this.")
@option("--outcome", help="Only runs that ended so: pass, fail, died, running …")
@option("--limit", default=30, help="How many of the newest to show; 0 for all.")
@options.format_option("text", "json")
def history(
    root: Path,
    rebuild: bool,
    model: str | None,
    device: str | None,
    outcome: str | None,
    limit: int,
    output: str,
) -> None:
    """List the runs below a folder, the newest first."""
    from seatrial.history import list_runs

    js = output == "json"
    click.echo(list_runs(root, as_json=js, rebuild=rebuild, model=model, device=device, outcome=outcome, limit=limit))


@app.command()
@argument("a", help="The run to compare with: a run directory, or its name or id in the history.")
@argument("b", help="The run to look at.")
@option("--fail-if-slower", metavar="SHARE", help="Exit with 1 if B is slower by more than this: 3% or 0.03.")
@option("--anyway", is_flag=True, help="Compare what can be compared of runs that do different work.")
@options.format_option("text", "json", "markdown", meaning="markdown is for comments on pull requests.")
def compare(a: str, b: str, fail_if_slower: str | None, anyway: bool, output: str) -> None:
    """Compare two runs: speed with its interval, losses, and what differs. Exits with 0, or with the gate's answer."""
    from seatrial.history import compare_runs

    text, exit_code = compare_runs(a, b, fail_if_slower=fail_if_slower, anyway=anyway, output=output)
    click.echo(text)
    raise Exit(exit_code)


@app.command()
def version() -> None:
    """Print Seatrial's version."""
    from seatrial import __version__

    click.echo(__version__)


def main() -> None:
    """Runs the command line; whatever goes wrong is told without a traceback, and ends in its exit code."""
    gc.set_threshold(100_000)  # what is imported stays: looking through it for garbage is an eighth of a short command
    try:
        sys.exit(app.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except InputError as error:
        from seatrial.report.problems import render_json, render_text

        as_json = "--format=json" in sys.argv or ("--format", "json") in pairwise(sys.argv)
        click.echo(render_json(error.problems) if as_json else render_text(error.problems), err=not as_json)
        sys.exit(error.exit_code)
    except SeatrialError as error:
        click.echo(f"seatrial: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except OSError as error:  # a full disk behind a redirection, a terminal that went away
        gone = isinstance(error, FileNotFoundError) and error.filename is None  # what os.getcwd says of it
        said = "the current folder has been removed: go to another one" if gone else str(error)
        with suppress(OSError):
            click.echo(f"seatrial: {said}", err=True)
        sys.exit(3)

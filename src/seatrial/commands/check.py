"""`seatrial check`: one configuration or several, each read and linted by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from seatrial.check import lint
from seatrial.dialects import cluster_of, load
from seatrial.errors import InputError, Problem
from seatrial.report.problems import inert, render_json, render_text
from seatrial.spec import Action, Resolved


def resolved(
    config: Path,
    overrides: Sequence[str],
    *,
    action: Action,
    model: str | None,
    gpu: str | None,
    engine: str | None = None,
) -> Resolved:
    """The configuration, read and linted; its problems are all in it. Raises InputError where nothing can be read."""
    return lint(load(config, overrides, action=action, model=model, gpu=gpu), action=action, engine=engine)


def bars(config: Path, overrides: Sequence[str], *, model: str | None, gpu: str | None) -> Resolved:
    """What a log is held against: every word of it has to be understood, but it need not be able to run here."""
    read = load(config, overrides, action="judge", model=model, gpu=gpu)
    refuse(read)
    found = (
        replace(problem, severity="warning") if problem.severity == "error" else problem
        for problem in lint(read, action="judge").problems
    )
    return replace(read, problems=tuple(found))


def refuse(read: Resolved) -> None:
    """Raises InputError if the configuration has errors."""
    if read.spec is None or any(problem.severity == "error" for problem in read.problems):
        raise InputError(read.problems)


def check(
    config: Path,
    arguments: Sequence[str],
    *,
    rehearse: bool,
    strict: bool,
    model: str | None,
    gpu: str | None,
    as_json: bool,
) -> tuple[str, bool]:
    """What there is to say of a configuration, and whether any of it is an error; `strict` takes warnings for errors.

    Among the arguments, what is no key=value and names a file is a further configuration, for which the same overrides
    hold.
    """
    others = [Path(argument) for argument in arguments if "=" not in argument and Path(argument).is_file()]
    if not others or config.suffix == ".py" or not config.is_file():  # the words of a command name files too
        others, overrides = [], list(arguments)
    else:
        overrides = [argument for argument in arguments if Path(argument) not in others]
    action: Action = "rehearse" if rehearse else "check"
    found = {path: _problems(path, overrides, action=action, model=model, gpu=gpu) for path in (config, *others)}
    if strict:
        found = {path: tuple(map(_stricter, problems)) for path, problems in found.items()}
    has_errors = any(problem.severity == "error" for problems in found.values() for problem in problems)
    if len(found) == 1:
        return (render_json if as_json else render_text)(found[config]), has_errors
    if as_json:
        each = [{"config": str(path), **json.loads(render_json(problems))} for path, problems in found.items()]
        return json.dumps({"configurations": each}, indent=2), has_errors
    return "\n\n".join(
        f"# {inert(str(path))}\n\n{render_text(problems)}" for path, problems in found.items()
    ), has_errors


def _problems(
    path: Path, overrides: Sequence[str], *, action: Action, model: str | None, gpu: str | None
) -> tuple[Problem, ...]:
    try:
        return resolved(path, overrides, action=action, model=model, gpu=gpu).problems
    except InputError as error:
        is_cluster = any(problem.code == "cluster-file" for problem in error.problems)
        return cluster_of(path)[1] if is_cluster else error.problems


def _stricter(problem: Problem) -> Problem:
    return replace(problem, severity="error") if problem.severity == "warning" else problem

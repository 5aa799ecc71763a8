"""`seatrial check`, and how every verb reads a configuration: load, lint, refuse what has errors."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from seatrial.check import lint
from seatrial.check.finder import usual_engine
from seatrial.check.mesh import mesh_is_sound
from seatrial.command import MASK, is_secret, masked
from seatrial.console import Say, inert
from seatrial.dialects import cluster_of, load
from seatrial.errors import InputError, Problem, Severity
from seatrial.estimate.compiled import Compiled
from seatrial.estimate.memory import OWN, decided
from seatrial.records import can_be_looked_at
from seatrial.report.findings import FORMATS
from seatrial.report.problems import counted, has_errors, render_json, render_text
from seatrial.runs.files import exists
from seatrial.spec import Action, Resolved, RunSpec


@dataclass(frozen=True, kw_only=True)
class ConfigArguments:
    """A configuration as the command line names it; `model` and `gpu` choose a cell of a CVS file."""

    config: Path
    overrides: tuple[str, ...] = ()
    model: str | None = None
    gpu: str | None = None

    def load(self, action: Action, engine: str | None = None) -> Resolved:
        """The configuration without the checks across fields. Raises InputError where nothing can be read."""
        self._require_order()
        return load(self.config, self.overrides, action=action, model=self.model, gpu=self.gpu, engine=engine or "")

    def _require_order(self) -> None:
        """Raises InputError where an override stands before the configuration."""
        first = str(self.config)
        shown = _shown(first)
        behind = next((text for text in self.overrides if exists(Path(text), as_file=True)), None)
        if "=" in first and behind and not exists(self.config):
            why, fix = "this is an override, and the configuration comes first", f"{behind} {shown}"
            raise InputError.single("wrong-order", shown, why, f"write it behind the file: {fix}")

    def check_command(self, *, rehearse: bool) -> str:
        """The command that shows the findings on it, for a shell."""
        words = ["seatrial", "check", str(self.config), *map(_shown, self.overrides)]
        words += ["--model", self.model] if self.model else []
        words += ["--gpu", self.gpu] if self.gpu else []
        words += ["--rehearse"] if rehearse else []
        return inert(shlex.join(words))


def _shown(override: str) -> str:
    """An override as it may be printed, which a log may keep: without a secret."""
    key, _, value = override.partition("=")
    return f"{key}={MASK}" if value and is_secret(key) else masked(override)


def read(given: ConfigArguments, *, action: Action, engine: str | None = None, compiles: bool = False) -> Resolved:
    """The configuration with all findings, errors too. Raises InputError where nothing can be read.

    `compiles`: the step of our own trainer is compiled, unless it was already; LaunchError where that fails.
    """
    loaded, engine = given.load(action, engine), OWN if compiles else engine
    step, why = _step(loaded, action, engine, compiles)
    resolved = lint(loaded, action=action, engine=engine, compiled=step)
    if why:
        note = Problem(severity="info", code="compiled-memory", path="topology.device", why=why, fix="")
        resolved = replace(resolved, problems=(*resolved.problems, note))
    if engine not in (None, OWN) or not (resolved.spec and can_be_looked_at(resolved.spec)):
        return resolved  # other engines read data their own way
    from seatrial.records.look import data_problems

    return replace(resolved, problems=(*resolved.problems, *data_problems(resolved)))


def _step(resolved: Resolved, action: Action, engine: str | None, compiles: bool) -> tuple[Compiled | None, str]:
    """The step of our own trainer as it was compiled for the run's device, or why it cannot be."""
    from seatrial.commands import compiled_step  # late: a check without an installed compiler pays for nothing

    spec = resolved.spec
    if spec is None or has_errors(resolved.problems) or not mesh_is_sound(spec):
        return None, ""
    if (engine or usual_engine(spec, action)) != OWN:
        return None, ""
    target = compiled_step.target_of(spec)
    if target is None:
        return None, compiled_step.why_not(spec) if compiles else ""
    spec = decided(spec, OWN)
    return (compiled_step.compile_step if compiles else compiled_step.kept_step)(spec, target), ""


def read_valid(
    given: ConfigArguments, *, action: Action, engine: str | None = None, say: Say | None = None
) -> Resolved:
    """The configuration, whose findings are counted in a line on stderr, or given to `say`; notes alone are not.

    Raises InputError if it has errors.
    """
    resolved = read(given, action=action, engine=engine)
    if has_errors(resolved.problems):
        raise InputError(resolved.problems)
    if any(problem.severity == "warning" for problem in resolved.problems):
        line = f"{counted(resolved.problems)}: {given.check_command(rehearse=action == 'rehearse')}"
        print(line, file=sys.stderr, flush=True) if say is None else say(line)
    return resolved


def read_targets(given: ConfigArguments) -> Resolved:
    """The configuration that a log is judged by: errors that would only stop a run are warnings."""
    read = given.load("judge")
    if read.spec is None or has_errors(read.problems):
        raise InputError(read.problems)
    return replace(read, problems=_with_severity(lint(read, action="judge").problems, "error", "warning"))


def spec_of(resolved: Resolved) -> RunSpec:
    """Raises InputError where the configuration is none."""
    if resolved.spec is None:
        raise InputError(resolved.problems)
    return resolved.spec


def check(
    given: ConfigArguments, *, rehearse: bool, strict: bool, output: str = "text", compiles: bool = False
) -> tuple[str, bool]:
    """The findings on one or several configurations, and whether any is an error; `strict` makes errors of warnings.

    `compiles`: the memory is that of the compiled step.
    A further configuration is an argument that names a file; the same overrides hold for all.
    """
    action: Action = "rehearse" if rehearse else "check"
    found = {one.config: findings(one, action=action, compiles=compiles) for one in _files(given)}
    if strict:
        found = {path: _with_severity(problems, "warning", "error") for path, problems in found.items()}
    text = _OF_SEVERAL[output](found) if len(found) > 1 else FORMATS[output](*found.values())
    return text, any(map(has_errors, found.values()))


def _files(given: ConfigArguments) -> list[ConfigArguments]:
    """One configuration, or several with the same overrides."""
    if given.config.suffix == ".py" or not exists(given.config, as_file=True):  # the words of a command name files too
        return [given]
    others = [text for text in given.overrides if "=" not in text and exists(Path(text), as_file=True)]
    overrides = tuple(text for text in given.overrides if text not in others)
    return [replace(given, config=path, overrides=overrides) for path in (given.config, *map(Path, others))]


def findings(given: ConfigArguments, *, action: Action, compiles: bool = False) -> tuple[Problem, ...]:
    """The findings on a configuration or a cluster file; one that cannot be read is one of them."""
    try:
        return read(given, action=action, compiles=compiles).problems
    except InputError as error:
        is_cluster = any(problem.code == "cluster-file" for problem in error.problems)
        return cluster_of(given.config)[1] if is_cluster else error.problems


_Found = dict[Path, tuple[Problem, ...]]  # by configuration


def _with_severity(problems: Iterable[Problem], before: Severity, after: Severity) -> tuple[Problem, ...]:
    return tuple(replace(each, severity=after) if each.severity == before else each for each in problems)


def _as_json(found: _Found) -> str:
    each = [{"config": str(path), **json.loads(render_json(problems))} for path, problems in found.items()]
    return json.dumps({"configurations": each}, indent=2)


def _as_text(found: _Found) -> str:
    return "\n\n".join(f"# {inert(str(path))}\n\n{render_text(problems)}" for path, problems in found.items())


def _as_annotations(found: _Found) -> str:
    return FORMATS["github"](chain.from_iterable(found.values()))


_OF_SEVERAL: dict[str, Callable[[_Found], str]] = {"text": _as_text, "json": _as_json, "github": _as_annotations}

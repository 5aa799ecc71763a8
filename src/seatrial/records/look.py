"""The first records of a run's data, read as its training would, as far as they lie on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from seatrial.errors import Problem, Severity
from seatrial.records import DataError, chat, forms, has_records
from seatrial.records.paths import TABLES, files_named
from seatrial.records.rows import Limits, TooLong, numbered_texts
from seatrial.spec import NEEDS, Action, Resolved, RunSpec

MOST_FILES = 20
MOST_ROWS = 100  # of a file
MOST_BYTES = 64 << 20  # of all rows
LONGEST = 16 << 20  # bytes of a row
LETTERS = 8  # of a token, at most, where text is long: half of it is usual

Finding = tuple[Severity, str, str, str, str]  # severity, code, spec path, why, how to fix it


def data_problems(resolved: Resolved, action: Action) -> Iterator[Problem]:
    """An error for each path whose first records Seatrial's own trainer could not read, and notes about the others.

    Files that are not here may be on the hosts. Records that MaxText's pipelines read are an error only where that
    trainer has to run.
    """
    spec = resolved.spec
    if spec is None or not (has_records(spec) or spec.data.kind == "text"):
        return
    said = {problem.path for problem in resolved.problems if problem.severity == "error"}
    is_own = spec.data.kind in ("records", "text") or NEEDS[action].trainer
    for severity, code, path, why, fix in _findings(spec):
        origin = resolved.origin(path)
        name = origin.key or path
        if name not in said:
            severity = severity if is_own or severity != "error" else "warning"
            yield Problem(severity=severity, code=code, path=name, why=why, fix=fix, mark=origin.mark)


def _findings(spec: RunSpec) -> Iterator[Finding]:
    data, evaluation = spec.data, spec.evaluation
    paths = {f"data.paths.{i}": path for i, path in enumerate(data.paths)}
    if not paths and data.dataset and data.kind not in ("records", "text"):
        paths = {"data.dataset": data.dataset}
    yield from _of_paths(spec, paths, apart=bool(data.weights))
    if evaluation.interval_steps or evaluation.interval_fraction:
        validation = {f"data.validation_paths.{i}": path for i, path in enumerate(data.validation_paths)}
        yield from _of_paths(spec, validation, apart=False)


def _of_paths(spec: RunSpec, paths: dict[str, str], *, apart: bool) -> Iterator[Finding]:
    """The findings about files that are read together, or each by itself."""
    limits = Limits(rows_at_once=MOST_ROWS, longest=LONGEST, left=MOST_BYTES)
    files_left, looks = MOST_FILES, dict[str, _Look]()
    for key, pattern in paths.items():
        looks[key] = look = _Look(spec, key, limits)
        look.at(pattern, files_left)
        files_left -= look.files
        yield from look.findings
    has_rows = any(look.rows for look in looks.values())
    for key, look in looks.items():
        if look.is_empty and (apart or not has_rows):
            yield "error", "data", key, f"{look.name}: there is nothing in it", "give a file with records"


@dataclass
class _Look:
    """A look at the files of one path or glob: what was found, and how many files and rows were read."""

    spec: RunSpec
    key: str
    limits: Limits
    findings: list[Finding] = field(default_factory=list)
    name: str = ""
    files: int = 0
    rows: int = 0
    is_empty: bool = False  # whether all of its files were read, and none has a row

    def at(self, pattern: str, most_files: int) -> None:
        """Reads the first rows of the first files, up to the first that cannot serve."""
        of_text = self.spec.data.kind == "text"
        try:
            found = files_named(pattern, folders=not of_text)
            files = [path for path in found if not of_text or path.name.endswith(TABLES)]
            for self.files, path in enumerate(files[:most_files], 1):
                self.name = str(path)
                self._read(path)
            were_all = self.files == len(files) and self.limits.left > 0
            self.is_empty = bool(files) and were_all and not (self.rows or self.findings)
        except TooLong as error:
            self._add("warning", error)
        except (DataError, OSError) as error:
            self._add("error", error)
        except ImportError as error:
            why = f"{self.name}: not looked at, because {error.name} is not installed"
            self.findings.append(("info", "data-not-read", self.key, why, "install seatrial[train]"))

    def _add(self, severity: Severity, error: DataError | OSError) -> None:
        key, why, fix = self.key, str(error), "correct it, or give other files"
        if isinstance(error, DataError):
            key, why, fix = error.key or self.key, error.why, error.fix
        self.findings.append((severity, "data", key, why, fix))

    def _read(self, path: Path) -> None:
        if not has_records(self.spec):
            self.rows += len(list(islice(numbered_texts(path, ("text",), self.limits), MOST_ROWS)))
        elif self.spec.objective.kind in ("dpo", "orpo"):
            self.rows += len(list(islice(forms.preferences(path, self.limits), MOST_ROWS)))
        else:
            self._read_answers(path)

    def _read_answers(self, path: Path) -> None:
        """Records of prompts and answers; those that are too long are cut, or left out, as training says as well."""
        template = chat.template_of(self.spec.data.tokenizer)
        length, is_bytes = self.spec.batch.sequence_length, self.spec.data.tokenizer == "byte"
        total, long, lost, first = 0, 0, 0, ""
        for where, texts in islice(forms.answers(path, template, self.limits)[1], MOST_ROWS):
            given, learnt = (1 + len(t.encode("utf-8", "replace")) if is_bytes else len(t) // LETTERS for t in texts)
            total += 1
            long, lost = long + (given + learnt > length + 1), lost + (given > length)
            first = first or (where if long else "")
        self.rows += total
        if long:
            by = "" if is_bytes else f", even at {LETTERS} characters a token"
            why = (
                f"{first}: longer than {length} tokens{by}, as {long} of the first {total} records are; training cuts "
                f"{long - lost} at the end, and leaves out {lost}, because nothing of their answers would be left"
            )
            fix = "raise the sequence length, or shorten the records"
            self.findings.append(("info" if lost < total else "warning", "long-records", self.key, why, fix))

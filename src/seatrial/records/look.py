"""The first records of a run's data, read as its training would, as far as they lie on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from seatrial.errors import Problem, Severity
from seatrial.records import TABLES, DataError, chat, forms
from seatrial.records.paths import files_named
from seatrial.records.rows import Limits, TooLong, numbered_texts
from seatrial.spec import Resolved, RunSpec

MOST_FILES = 20
MOST_ROWS = 100  # of a file
MOST_BYTES = 64 << 20  # of all rows
LONGEST = 8 << 20  # bytes of a row
LETTERS = 8  # of a token, at most, where text is long: half of it is usual

_INSTALL = "pip install 'seatrial[train]'"

Finding = tuple[Severity, str, str, str, str]  # severity, code, spec path, why, how to fix it


def data_problems(resolved: Resolved) -> Iterator[Problem]:
    """An error for each path whose first records Seatrial's own trainer could not read, and notes about the others.

    Files that are not here may be on the hosts.
    """
    spec = resolved.spec
    if spec is None:
        return
    said = {problem.path for problem in resolved.problems if problem.severity == "error"}
    for severity, code, path, why, fix in _findings(spec):
        origin = resolved.origin(path)
        if origin.kind == "default":  # nobody wrote it: the tokenizer of conversations
            origin = resolved.origin("data.paths")
        name = origin.key or path
        if name not in said:
            yield Problem(severity=severity, code=code, path=name, why=why, fix=fix, mark=origin.mark)


def _findings(spec: RunSpec) -> Iterator[Finding]:
    data, evaluation = spec.data, spec.evaluation
    paths = {f"data.paths.{i}": path for i, path in enumerate(data.paths)}
    yield from _of_paths(spec, paths, apart=bool(data.weights))
    if evaluation.interval_steps or evaluation.interval_fraction:
        validation = {f"data.validation_paths.{i}": path for i, path in enumerate(data.validation_paths)}
        yield from _of_paths(spec, validation, apart=False)


def _of_paths(spec: RunSpec, paths: dict[str, str], *, apart: bool) -> Iterator[Finding]:
    """The findings about files that are read together, or each by itself."""
    limits = Limits(rows_at_once=10, longest=LONGEST, left=MOST_BYTES)
    files_left, looks = MOST_FILES, dict[str, _Look]()
    for key, pattern in paths.items():
        looks[key] = look = _Look(spec, key, limits)
        look.at(pattern, files_left)
        files_left -= look.files
        yield from look.findings
    may_serve = any(not look.is_useless for look in looks.values())
    for key, look in looks.items():
        if look.is_useless and (apart or not may_serve):
            length = spec.batch.sequence_length
            why = f"no record has an answer within {length} tokens" if look.rows else "there is nothing in it"
            yield "error", "data", key, f"{look.name}: {why}", "give other files"


@dataclass
class _Look:
    """A look at the files of one path or glob: what was found, and what was read.

    Of the rows, `long` are longer than a sequence, and of `lost` among them training would take nothing.
    """

    spec: RunSpec
    key: str
    limits: Limits
    findings: list[Finding] = field(default_factory=list)
    name: str = ""
    files: int = 0
    rows: int = 0
    long: int = 0
    lost: int = 0
    first_long: str = ""  # its file and row
    is_useless: bool = False  # all of its files were read to their ends, and there is nothing for training

    def at(self, pattern: str, most_files: int) -> None:
        """Reads the first rows of the first files, up to the first file that cannot serve."""
        of_text = self.spec.data.kind == "text"
        try:
            found = files_named(pattern, folders=not of_text)
            files = [path for path in found if not of_text or path.name.endswith(TABLES)]
            ended = True
            for self.files, path in enumerate(files[:most_files], 1):
                self.name = str(path)
                rows = self._read(path)
                self.rows += rows
                ended &= rows < MOST_ROWS
            ended &= self.files == len(files) and self.limits.left > 0
            counted = self.lost if self._counts_bytes else 0  # elsewhere, an estimate
            self.is_useless = bool(files) and ended and self.rows == counted
        except TooLong as error:
            self._add("warning", error)
        except (DataError, OSError) as error:
            self._add("error", error)
        except ImportError as error:
            why = f"{self.name}: not looked at, because {error.name or 'pyarrow'} is not installed: {_INSTALL}"
            self.findings.append(("info", "data-not-read", self.key, why, _INSTALL))
        if self.long:
            self._say_what_is_long()

    @property
    def _counts_bytes(self) -> bool:
        """True if each byte is a token, so that all of them are counted without a tokenizer."""
        return self.spec.data.tokenizer == "byte"

    def _add(self, severity: Severity, error: DataError | OSError) -> None:
        key, why, fix = self.key, str(error), "correct it, or give other files"
        if isinstance(error, DataError):
            key, why, fix = error.key or self.key, error.why, error.fix
        self.findings.append((severity, "data", key, why, fix))

    def _read(self, path: Path) -> int:
        """Reads the first rows of a file; their number."""
        if self.spec.data.kind == "text":
            rows = numbered_texts(path, ("text",), self.limits)
        elif self.spec.objective.kind in ("dpo", "orpo"):
            rows = forms.preferences(path, self.limits)
        else:
            return self._read_answers(path)
        return len(list(islice(rows, MOST_ROWS)))

    def _read_answers(self, path: Path) -> int:
        """Reads the first records; their number. Those that training cuts or leaves out are counted as it does."""
        template, length, total = chat.template_of(self.spec.data.tokenizer), self.spec.batch.sequence_length, 0
        for where, texts in islice(forms.answers(path, template, self.limits)[1], MOST_ROWS):
            given, learnt = map(self._tokens, texts)
            total += 1
            if given + learnt > length + 1:
                self.long, self.first_long = self.long + 1, self.first_long or where
                self.lost += given > length
        return total

    def _tokens(self, text: str) -> int:
        """At least how many tokens a text is; where bytes are tokens, with the one that begins or ends it."""
        return 1 + len(text.encode("utf-8", "replace")) if self._counts_bytes else len(text) // LETTERS

    def _say_what_is_long(self) -> None:
        by = "" if self._counts_bytes else f" even at {LETTERS} characters a token"
        cut = f"cuts {self.long - self.lost} at the end" if self.long > self.lost else ""
        left = f"leaves out {self.lost}, of whose answers nothing would be left" if self.lost else ""
        why = (
            f"{self.first_long}: longer than {self.spec.batch.sequence_length} tokens{by} ({self.long} of the first "
            f"{max(self.rows, self.long)} records); training {' and '.join(part for part in (cut, left) if part)}"
        )
        severity: Severity = "info" if self.lost < self.rows else "warning"
        fix = "raise the sequence length, or shorten the records"
        self.findings.append((severity, "long-records", self.key, why, fix))

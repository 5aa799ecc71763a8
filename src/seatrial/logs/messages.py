"""Messages of several lines: how they begin and go on, by who prints them, so that they are classified as a whole.

What names the process that failed often stands on a line of its own, or behind a break in the middle of the sentence.
Tracebacks and JAX's lists of tasks have readers of their own in `faults`, and torchelastic's summary has one as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CHARACTERS = 4000  # of a whole message


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """A kind of message: a line with one of `words` that `begins` finds something in is its first.

    `goes_on` is matched on a line and the next one, with a line feed between them, and says whether the next one is a
    part of it. Lines from one on that `advice` matches are a part of it too, but say nothing of what happened. A
    message has at most `most` lines.
    """

    words: tuple[str, ...]
    begins: re.Pattern[str]
    goes_on: re.Pattern[str]
    advice: re.Pattern[str] = re.compile(r"(?!)")
    most: int = 12


GRAMMARS = (
    # Open MPI and PRRTE, whose boxes are as wide as a terminal of 1980
    Grammar(
        words=("noticed that process", "one or more processes exited", "mpi_abort was invoked",
               "lost communication with", "has exited due to process"),
        begins=re.compile(
            r"^(?:mpirun|mpiexec|orterun|prterun|prun)(?:\.real)? "
            r"(?:noticed that process|detected that one or more|has exited due)"
            r"|^MPI_ABORT was invoked on rank|^[OP]RTE has lost communication with"
        ),
        goes_on=re.compile(r".*\n(?:\s|[a-z]|$)"),
    ),
    # Hydra, the launcher of MPICH and Intel MPI
    Grammar(
        words=("bad termination of one",),
        begins=re.compile(r"^=\s+BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"),
        goes_on=re.compile(r".*\n=\s+\S"),
    ),
    # NCCL and RCCL, as PyTorch prints them
    Grammar(
        words=("nccl error", "rccl error"),
        begins=re.compile(r"\b[NR]CCL error\b.*\b[NR]CCL version [\d.]+\s*$"),
        goes_on=re.compile(r".*\n(?:nccl\w+: |Last error:)|Last error:\s*\n(?!Traceback)\S"),
    ),
    # llm.c, of CUDA, cuDNN, NCCL and MPI: the place first, on the next line what the library says
    Grammar(
        words=("error] at file",),
        begins=re.compile(r"\[\w+ ERROR\] at file \S+:\d+:\s*$"),
        goes_on=re.compile(r".*:\d+:\s*\n\S"),
        most=2,
    ),
    # JAX's coordination, with the words of gRPC behind it, which tell of the connection between them only
    Grammar(
        words=("coordination service",),
        begins=re.compile(r"\b(?:Failed to send RPC to|Polled an error from) coordination service\b"),
        goes_on=re.compile(r".*\n(?:Additional GRPC error information\b|:UNKNOWN:|RPC: )"),
        advice=re.compile(r"Additional GRPC error information\b|:UNKNOWN:|RPC: "),
    ),
    # Ascend: CANN's codes, and torch_npu's line before them
    Grammar(
        words=("hccl", "acl stream", "ops function error", "inner error", "socket times out", "notify register",
               "hccp process", "error from device", "call acl api"),
        begins=re.compile(
            r"^(?:\w+Error: .*(?:\bHCCL\b|\bHccl|\bACL stream|OPS function error|torch_npu)|E[A-Z]\d{4}: "
            r"|\[ERROR\] \d{4}-.*\bERR\d{5}\b)"
        ),
        goes_on=re.compile(r".*\n(?:\s+\S|E[A-Z]\d{4}: |\[ERROR\] \d{4}-)"),
        advice=re.compile(r"\s+(?:Solution|Possible Cause|TraceBack)\b"),
        most=60,
    ),
)  # fmt: skip
WORDS = tuple(word for grammar in GRAMMARS for word in grammar.words)


@dataclass(slots=True)
class Message:
    """A message as far as it has come."""

    grammar: Grammar
    lines: list[str]
    last: str = ""
    count: int = 1
    size: int = 0
    advises: bool = False

    def take(self, line: str) -> bool:
        """Adds the next line, if it is a part of the message."""
        grammar = self.grammar
        is_full = self.count >= grammar.most or self.size > MAX_CHARACTERS
        if is_full or not grammar.goes_on.match(f"{self.last}\n{line[:400]}"):
            return False
        self.count += 1
        self.last = line[-400:]
        # What is not indented says again what happened.
        self.advises = (line[:1].isspace() and self.advises) or grammar.advice.match(line) is not None
        if not self.advises and line.strip():
            self.lines.append(line.strip())
            self.size += len(line)
        return True

    @property
    def text(self) -> str:
        """All that it says, on one line."""
        return " ".join(self.lines)


def begun(line: str) -> Message | None:
    """The message that a line without its prefixes begins, if it does."""
    if len(line) > MAX_CHARACTERS:
        return None
    grammar = next((each for each in GRAMMARS if each.begins.search(line)), None)
    return Message(grammar, [line.strip()], last=line[-400:], size=len(line)) if grammar else None

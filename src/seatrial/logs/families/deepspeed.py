"""DeepSpeed alone: `[Rank 0] step=10, skipped=0, lr=[3e-05], mom=[(0.9, 0.95)]`.

Its engine for pipelines adds `steps: 10 loss: 7.9123 iter time (s): 3.412 samples/sec: 75.030`; the other one has no
loss, and a line with samples/s of the whole job, of the last step. Beside Megatron or Hugging Face, which print the
same steps with more about them, only that rate counts. The skipped steps are counted from the beginning; the line with
`step=0` is printed before the first one, and says only that the engine begins again where there were steps.

DeepSpeed-Chat says how much there is to do, `Beginning of Epoch 1/2, Total Micro Batches 460`, and in its first stage a
perplexity instead of losses; of its other stages, the mean loss of an epoch and that of an evaluation are read, and an
accuracy: these have to be better than before the training. A run is over once as many processes have exited
successfully as its launcher has started.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.logs.grammar import END, EVAL, FACTS, Family, Field, Found, Reading, note, read_values
from seatrial.logs.numbers import NUMBER, quantity

_STEP = re.compile(
    rf"\[Rank 0\] step=(?P<step>\d{{1,12}}), skipped=(?P<skipped>\d{{1,12}}), lr=\[(?:(?P<lr>{NUMBER})(?=[],]))?"
)
_RATE = {"lr": Field(name="learning_rate")}
_WITH_LOSS = re.compile(r"(?:^|[\s\]:])steps: (?P<step>\d+) (?=loss: )")
# How many micro batches a step has: on the command line, or in the list of the engine's settings.
_ACCUMULATION = re.compile(r"\bgradient_accumulation_steps(?: |=| \.{2,40} )(?P<steps>[1-9]\d{0,5})\b(?!\.\d)")
_EPOCH = re.compile(r"Beginning of Epoch \d+/(?P<epochs>\d{1,6}), Total Micro Batches (?P<batches>\d{1,12})\b")
_PERPLEXITY = re.compile(rf"^ppl: (?P<ppl>{NUMBER})(?=\s*$|, loss: )")
_OF_EPOCH = re.compile(rf"^Epoch \d{{1,6}}/\d{{1,6}} with loss (?P<loss>{NUMBER})\s*$", re.IGNORECASE)
_PREFERRED = re.compile(rf"^chosen: {NUMBER}, rejected: {NUMBER}, loss: (?P<loss>{NUMBER})\s*$", re.IGNORECASE)
_CHOSEN = re.compile(
    rf"^chosen_last_scores \(higher is better\) : \S+, acc \(higher is better\) : (?P<accuracy>{NUMBER})"
)
_JUDGED = ((_PREFERRED, False), (_CHOSEN, True))  # and whether more is better
BETTER = 0.01  # of an accuracy, or of a loss that begins at ln 2
# How many processes a node starts, before the launcher said so of each (0.9).
_NODE = re.compile(
    r"\[launch\.py:\d+:main\] nnodes=(?P<nodes>\d{1,6}), num_local_procs=(?P<count>\d{1,4}), "
    r"node_rank=(?P<node>\d{1,6})"
)
_SPAWNED = re.compile(r"\[launch\.py:\d+:main\] process (?P<pid>\d{1,9}) spawned with command")
_EXITED = re.compile(r"\[launch\.py:\d+:main\] Process (?P<pid>\d{1,9}) exits successfully")
_LAUNCHER_WORDS = ("num_local_procs=", "spawned with command", "exits successfully")


class Exits:
    """The processes that the launcher has started: the run is over once as many have exited successfully."""

    def __init__(self) -> None:
        self._running: set[str] = set()  # that were started one by one and have not exited
        self._nodes: dict[str, int] = {}  # where they were not: the processes of each node, all of which have exited
        self._of = self._exited = 0

    def __call__(self, line: str) -> Iterator[Found]:
        if found := _NODE.search(line):
            if found["node"] in self._nodes:  # another launch
                self._nodes, self._exited = {}, 0
            self._nodes[found["node"]], self._of = int(found["count"]), int(found["nodes"])
        elif found := _SPAWNED.search(line):
            self._running.add(found["pid"])
            self._of = 0
        elif found := _EXITED.search(line):
            yield from self._exit(found["pid"])

    def _exit(self, pid: str) -> Iterator[Found]:
        if pid in self._running:
            self._running.remove(pid)
            if not self._running:
                yield END, {}
        elif self._of and len(self._nodes) == self._of:
            self._exited += 1
            if self._exited == sum(self._nodes.values()):
                yield END, {}


class _Log:
    """The steps that were skipped up to the last line, and the micro batches of a step."""

    def __init__(self) -> None:
        self._skipped = 0
        self._has_begun = False
        self._accumulation: int | None = None
        self._evaluates = False
        self._first: dict[str, float] = {}  # of each kind of evaluation
        self._exits = Exits()

    def __call__(self, line: str) -> Iterator[Found]:
        if found := _ACCUMULATION.search(line):
            self._accumulation = int(found["steps"])
        if (found := _EPOCH.search(line)) and self._accumulation:  # which goes on from one epoch to the next
            yield FACTS, {"planned_steps": int(found["epochs"]) * int(found["batches"]) // self._accumulation}
        evaluates, self._evaluates = self._evaluates, "Evaluating perplexity" in line
        if evaluates and (found := _PERPLEXITY.match(line)) and (perplexity := quantity(found["ppl"])):
            yield EVAL, {"loss": str(math.log(perplexity) if perplexity > 0 else math.nan)}
        if found := _OF_EPOCH.match(line):
            yield EVAL, {"loss": found["loss"]}
        for pattern, more_is_better in _JUDGED:
            if found := pattern.match(line):
                yield EVAL, self._judged(found, more_is_better=more_is_better)
        yield from self._step(line)
        yield from self._exits(line)

    def _judged(self, found: re.Match[str], *, more_is_better: bool) -> Mapping[str, Any]:
        """An evaluation that is all that tells of learning: it has to be better than that before the training."""
        ((name, text),) = found.groupdict().items()
        said = {"loss": text} if name == "loss" else {}
        value = quantity(text)
        if value is None or name not in self._first:
            self._first[name] = value or 0.0
            return said
        sign, how = (1, "at least") if more_is_better else (-1, "at most")
        target = self._first[name] + sign * BETTER
        told = f"{name} {value:.4g} ({how} {target:.4g})"
        return {**said, "score": told, "shortfall": sign * (target - value)}

    def _step(self, line: str) -> Iterator[Found]:
        if found := _STEP.search(line):
            skipped = int(found["skipped"])
            values = {"step": int(found["step"]), "skipped_steps": max(0, skipped - self._skipped)}
            self._skipped = skipped
            if not (values["step"] or self._has_begun):
                return
            self._has_begun = True
            rate = read_values([("lr", found["lr"] or "")], _RATE).values
            yield Reading(values={**values, **rate}, spans=((*found.span("step"), "step", None),))


FAMILY = Family(
    name="deepspeed",
    # The step may have no other line than that with the loss.
    anchors=("steps: ", "loss: ", "iter time (s): "),
    head=_WITH_LOSS,
    pair=re.compile(
        rf"\b([A-Za-z][\w/ ]{{0,30}}?(?: \(s\))?)[:=] ?({NUMBER}(?=[ ,]|GB\b)|(?<=samples/sec: )\d+\.\d{{3}}(?=\s*$))",
        re.IGNORECASE,
    ),
    whole=re.compile(r"\biter time \(s\): \S+ "),
    fields={
        "loss": Field(name="loss"),
        "iter time (s)": Field(name="seconds"),
        **dict.fromkeys(("samples/sec", "CurrSamplesPerSec"), Field(name="samples_per_second_total")),
        "MaxMemAllocated": Field(name="memory_bytes", per=2.0**-30),
    },
    counted_from=1,
    fallback=True,
    loss_optional=True,
    continued=re.compile(r".{0,200}?\bglobal_step=\d+, RunningAvgSamplesPerSec="),
    custom_reader=_Log,
    custom_words=(
        "[Rank 0] step=", "Total Micro Batches", "gradient_accumulation_steps", "Evaluating perplexity", "ppl: ",
        " with loss ", "chosen: ", "chosen_last_scores ", *_LAUNCHER_WORDS,
    ),
    launcher_reader=Exits,
    launcher_words=_LAUNCHER_WORDS,
    notes=(
        note("figures", "Attempted loss scale: ",
             rf"Attempted loss scale: (?P<loss_scale>{NUMBER})(?=, (?:but hysteresis|reducing to) )"),
        note("figures", "CurrSamplesPerSec=", rf"CurrSamplesPerSec=(?P<samples_per_second_total>{NUMBER})(?=,)"),
    ),
)  # fmt: skip

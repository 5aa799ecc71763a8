"""llm.c: `step   12/18865 | loss 7.912345 (+0.21z)| norm 1.2345 (-0.30z)| lr 1.20e-05 | 331.20 ms | 55.2% bf16 MFU …`.

Its trainers in C, CUDA and Python since 2024-04, whose older lines are `step 12/74: train loss 4.367857 (80.64 ms,
50849 tok/s)`. Every one has a total. The time of a step has no key, only the mark before it and its unit behind it. The
tokens/s of all devices are a running mean. Its `main.log` has only `s:12 trl:7.9123 lr:1.20e-05 norm:1.23` and
`s:250 tel:6.1710`, and no total; but it evaluates every so many steps, and after the last one of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import END, Family, Field, Found, Reading, note, read_values
from seatrial.logs.numbers import NUMBER

_SECONDS = Field(name="seconds", per=1000)

_TRAINED = re.compile(
    rf"^s:(?P<step>\d{{1,12}}) trl:(?P<loss>{NUMBER})(?: lr:(?P<lr>{NUMBER}) norm:(?P<norm>{NUMBER}))?\s*$",
    re.IGNORECASE,
)
_EVALUATED = note("eval", " tel:", rf"^s:(?P<step>\d{{1,12}}) tel:(?P<loss>{NUMBER})\s*$")
_IN_MAIN_LOG = {"loss": Field(name="loss"), "lr": Field(name="learning_rate"), "norm": Field(name="grad_norm")}


class _MainLog:
    """The steps of llm.c's `main.log`, and its end: an evaluation out of turn, behind the step before it."""

    def __init__(self) -> None:
        self._every: int | None = None  # steps from one evaluation to the next
        self._evaluated: int | None = None
        self._trained = -1

    def __call__(self, line: str) -> Iterator[Found]:
        if found := _EVALUATED.pattern.match(line):
            step = int(found["step"])
            if self._every and step % self._every and step == self._trained + 1:
                yield END, {"planned_steps": step}
            elif self._evaluated is not None and self._every is None and step > self._evaluated:
                self._every = step - self._evaluated
            self._evaluated = step
        if found := _TRAINED.match(line):
            pairs = [(key, found[key]) for key in _IN_MAIN_LOG if found[key]]
            self._trained = int(found["step"])
            yield Reading(values={"step": self._trained, **read_values(pairs, _IN_MAIN_LOG).values})


FAMILY = Family(
    name="llmc",
    anchors=("step ", "loss ", " ms", " tok/s"),
    head=re.compile(r"\bstep +(?P<step>\d+)/(?P<total>\d+)(?=(?: \||:) (?:train )?loss )"),
    pair=re.compile(rf"(\b(?:loss|norm|lr)(?= +\S+ ?[(|nl])|[|(](?= ?\d[\d.]* ms\b)) *({NUMBER})", re.IGNORECASE),
    whole=re.compile(r"[|(] ?\d[\d.]* ms\b"),
    fields={
        "loss": Field(name="loss"),
        "norm": Field(name="grad_norm"),
        "lr": Field(name="learning_rate"),
        "|": _SECONDS,
        "(": _SECONDS,
    },
    counted_from=1,
    custom_reader=_MainLog,
    custom_words=(" trl:", " tel:"),
    notes=(
        _EVALUATED,
        note("start", " and total_batch_size=",
             r"batch_size B=(?P<micro_batch_size>\d+) \* seq_len T=(?P<sequence_length>\d+) \* "
             r"num_processes=(?P<num_devices>\d+) and total_batch_size=(?P<tokens_per_step>\d+)\s*$"),
        note("start", "| train_num_batches ", r"\| train_num_batches +\| (?P<planned_steps>\d+) +\|"),
        note("start", "| device ", r"\| device +\| (?P<device_kind>\S.{0,80}?) +\|\s*$"),
        note("eval", "val loss ", r"(?:^|\s)val loss (?P<loss>\d+\.\d{6,}|-?nan|inf)\s*$"),
        note("checkpoint", "Writing checkpoint at step ", r"Writing checkpoint at step (?P<step>\d+)\s*$"),
        note("end", "total average iteration time: ", r"total average iteration time: -?(?:[\d.]+|nan|inf) ms"),
    ),
)  # fmt: skip

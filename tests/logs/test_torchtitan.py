"""torchtitan's lines: with colours, from one rank or all, whole or cut."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from seatrial import logs
from tests.helpers.log_cases import both, same, steps, values

Line = Mapping[str, float]
COLOURS = [f"\x1b[{code}m" for code in ("31", "32", "38;2;180;60;0", "38;2;54;234;195", "34", "36", "35", "39")]


def write(line: Line, colours: bool, *, norm: bool = True, flops: bool = True, tps: str = "tps") -> str:
    """A line as torchtitan formats it."""
    c = COLOURS if colours else [""] * len(COLOURS)
    parts = [f"{c[0]}step: {int(line['step']):2d}", f"{c[1]}loss: {line['loss']:8.5f}"]
    parts += [f"{c[2]}grad_norm: {line['norm']:7.4f}"] if norm else []
    parts += [f"{c[3]}memory: {line['gib']:5.2f}GiB({line['percent']:.2f}%)", f"{c[4]}{tps}: {round(line['tps']):,}"]
    parts += [f"{c[5]}tflops: {line['tflops']:,.2f}"] if flops else []
    parts += [f"{c[6]}mfu: {line['mfu']:.2f}%{c[7]}"]
    return "[titan] 2026-02-24 19:46:17,508 - root - INFO - " + "  ".join(parts)


def said(line: Line, *, norm: bool = True, flops: bool = True) -> dict[str, float]:
    found = {"step": line["step"], "loss": round(line["loss"], 5)}
    found |= {"grad_norm": round(line["norm"], 4)} if norm else {}
    found |= {"memory_bytes": round(line["gib"], 2) * 2**30, "memory_fraction": round(line["percent"], 2) / 100}
    found |= {"tokens_per_second_per_device": round(line["tps"]), "mfu": round(line["mfu"], 2) / 100}
    return found | ({"tflops_per_second_per_device": round(line["tflops"], 2)} if flops else {})


def _hundredths(most: int) -> st.SearchStrategy[float]:
    return st.integers(0, most * 100).map(lambda n: n / 100)


lines = st.fixed_dictionaries(
    {
        "loss": st.one_of(st.integers(0, 10**7).map(lambda n: n / 10**5), st.sampled_from([math.nan, math.inf])),
        "norm": st.one_of(st.integers(0, 10**7).map(lambda n: n / 10**4), st.sampled_from([math.nan, math.inf])),
        "gib": _hundredths(300), "percent": _hundredths(100), "tps": st.integers(0, 999_999).map(float),
        "tflops": _hundredths(5000), "mfu": _hundredths(100),
    }
)  # fmt: skip


@given(
    st.lists(lines, min_size=1, max_size=8),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["tps", "wps"]),
)
def test_what_it_prints_is_read_back(
    drawn: list[dict[str, float]], colours: bool, norm: bool, flops: bool, tps: str
) -> None:
    written = [{"step": 10 * n or 1, **line} for n, line in enumerate(drawn)]
    found = steps(both([write(line, colours, norm=norm, flops=flops, tps=tps) for line in written]))
    assert len(found) == len(written)
    assert all(same(values(s), said(w, norm=norm, flops=flops)) for s, w in zip(found, written, strict=True))


@given(lines, st.integers(0, 240), st.booleans(), st.booleans())
def test_a_cut_line_says_less_and_nothing_else(line: dict[str, float], cut: int, colours: bool, flops: bool) -> None:
    before, whole, after = (write({"step": n, **line}, colours, flops=flops) for n in (20, 1230, 2000))
    told = values(steps(logs.parse([whole]))[0])
    for found in steps(both([before, whole[:cut], after])):
        if found.step not in (20, 2000):
            assert same(values(found), {name: told[name] for name in values(found)})


def test_every_rank_prints_and_the_run_is_told_once() -> None:
    line = {"loss": 7.5, "norm": 1.5, "gib": 70.25, "percent": 88.75, "tps": 6550.0, "tflops": 360.0, "mfu": 36.25}
    text = [
        write({"step": n, **line, "loss": 7.5 - n / 100, "tflops": 360 - rank / 100, "tps": 6550 - rank % 2}, True)
        for n in (1, 10, 20, 30)
        for rank in range(16)
    ]
    assert [step.step for step in steps(both(text))] == [1, 10, 20, 30]


def test_other_codes_than_those_of_the_line_before_change_nothing() -> None:
    """Codes that differ from line to line, stand within values, or are none; quiet lines and the end between."""
    made = random.Random(3)
    line = {"norm": 0.5, "gib": 66.91, "percent": 84.51, "tps": 9050.0, "tflops": 430.5, "mfu": 43.05}
    log = []
    for n in range(1, 900):
        text = write({"step": n, "loss": 12 - n / 200, **line}, colours=n % 300 < 250)
        if made.random() < 0.02:
            place, code = (
                made.randrange(len(text)),
                made.choice(["\x1b[0m", "\x1b", "\x1b]0;t\x07", "\x1b[0 q", "\x1b]0;"]),
            )
            text = text[:place] + code + text[place:]
        log += [text, *(["\x1b[33mquiet\x1b[0m"] if made.random() < 0.02 else [])]
    both([*log, "[titan] 2026-02-24 20:46:17,508 - root - INFO - Training completed"])

"""Other judgements next to our verdict: published results, and ROCm CVS."""

from __future__ import annotations

from seatrial.estimate import published
from seatrial.report.figures import spelled
from seatrial.report.gather import RunReport
from seatrial.report.section import Section
from seatrial.verdict import cvs_compat, show

MOST_PUBLISHED = 3
_ANSWERS: dict[str, str] = {
    "pass": "PASS", "fail": "FAIL", "crash": "it would have crashed",
    "not_applicable": "nothing: the log is of neither MaxText nor Megatron",
}  # fmt: skip


def published_results(report: RunReport) -> Section | None:
    """The nearest published results, with what differs from them: never a target unless that was asked for."""
    speed = report.performance
    if speed is None or report.spec is None or report.rehearsal:
        return None
    ours = speed.estimates.get("tokens_per_second_per_device")
    if ours is None or speed.num_devices is None:
        return None
    found = published.nearest(
        report.spec,
        num_devices=speed.num_devices,
        device=speed.device,
        convention=speed.convention,
        limit=MOST_PUBLISHED,
    )
    rows = []
    for result in found:
        expected = result.equivalent_tokens_per_second_per_device
        differences = ", ".join(f"{d.aspect} ({d.published}, yours {d.yours})" for d in result.differences)
        of = result.result
        what = f"{of.num_devices:,} {of.device}, {of.precision}, {of.framework}"
        rows.append((show(expected), f"{ours.value / expected:.1%}", what, differences or "nothing that it states"))
    counted = ", ".join(sorted({spelled(result.convention) for result in found if not result.same_work}))
    other_work = f"Where a token is other work, it is the rate of the same FLOP/s here, counted {counted}."
    sources = "; ".join(dict.fromkeys(result.result.source for result in found))
    return Section(
        key="published",
        title="Published tokens/s per device",
        columns=("Published", "Yours", "For", "Differs in"),
        rows=tuple(rows),
        numbers=("Published", "Yours"),
        notes=(*([other_work] if counted else []), *([f"Published by {sources}."] if sources else [])),
    )


def cvs_answer(report: RunReport) -> Section | None:
    """ROCm CVS's own answer, and which of it is right."""
    answer = report.cvs
    if answer is None:
        return None
    rows = []
    for finding in answer.complaints:
        says = finding.says + (f", {finding.count} times" if finding.count > 1 else "")
        right, line = "right" if finding.right else "wrong", f"{finding.line}" if finding.line else ""
        rows.append((says, right, finding.why, line))
    rows += [(f"silent: {finding.says}", "wrong", finding.why, "") for finding in answer.silences]
    unseen = cvs_compat.unseen(answer, report.checks)
    rows += [(f"silent: {check.title}", "wrong", why, "") for check, why in unseen]
    times = f", with {answer.num_complaints} complaints" if answer.num_complaints > 1 else ""
    return Section(
        key="cvs",
        title="CVS's own answer",
        columns=("CVS", "That is", "Because", "Line"),
        rows=tuple(rows),
        numbers=("Line",),
        notes=(f"Its verdict: {_ANSWERS.get(answer.verdict, answer.verdict)}{times}.",),
    )

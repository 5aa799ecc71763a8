"""Does the verdict hold when a log is cut, torn, mixed up, or the run in it went wrong?

    python bench/judge_mutations.py [SEED] [--all] [--show]

Good runs of 25 families and versions of logs are made (`mutants/`), and each of more than a thousand mutations changes
one: 400 are drawn by chance, those that users reported and those that blame somebody are made of every family. By
construction it is known whether the run is still good. Four figures come out, of which the first and the last have to
be 0:

  false PASS    a bad run that is passed
  named         of the bad ones, how many say what is wrong, in the headline, in a sentence or in its evidence
  false alarm   a good run, or one whose log is only decorated, that is not passed
  wrong blame   of the runs of several ranks that one breaks, those for which another one is blamed

`--all` makes every mutation of every family, plain and decorated, instead of 400 of them; `--show` prints the right
answers too. The log of a wrong one is kept. Each goes through a file and `logs.read`, as it does for `seatrial judge`.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import record
from mutants import made_logs as made
from mutants.blame_mutations import BLAME_MUTATIONS
from mutants.log_mutations import DECORATIONS, LOG_MUTATIONS, decorated, unchanged
from mutants.made_logs import Family
from mutants.more_logs import MORE
from mutants.mutation import Mutant, Mutation
from mutants.other_logs import OTHERS
from mutants.reported_mutations import REPORTED_MUTATIONS
from mutants.run_mutations import ROW_MUTATIONS, RUN_MUTATIONS

from seatrial import logs
from seatrial.metrics import Diagnosis, Metrics, measure
from seatrial.spec import RunSpec
from seatrial.verdict import Verdict, judge

MUTATIONS = 400
KEPT = Path(tempfile.gettempdir()) / "judge_mutations"


def _write(mutant: Mutant, folder: Path) -> list[Path]:
    """The log or logs of a mutant as files, named as their nodes."""
    folder.mkdir()
    paths = []
    for node, lines in enumerate(log for log in (mutant.lines, mutant.second) if log is not None):
        path = folder / mutant.names[node]
        tail = mutant.tail or b"" if lines is mutant.lines else b""
        content = "".join(line.text + mutant.glue for line in lines).encode("latin-1", errors="replace") + tail
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        paths.append(path)
    for name, lines in mutant.more.items():
        (folder / name).write_text("".join(f"{line.text}\n" for line in lines), encoding="utf-8")
        paths.append(folder / name)
    return paths


def _judge(paths: Sequence[Path], spec: RunSpec) -> tuple[Metrics, Verdict]:
    metrics = measure(logs.read(paths), spec)
    return metrics, judge(metrics, spec, rehearsal=False)


def _blamed(found: Diagnosis | None) -> set[str]:
    """The ranks and hosts that a diagnosis blames, suspects or excludes."""
    if found is None:
        return set()
    where = "" if found.kind == "collective_timeout" else found.cause.where  # of one that waits, and not said
    return {place for text in (where, *found.suspects, *found.exclude) for place in text.split(" on ") if place}


def _said(verdict: Verdict) -> str:
    """The headline of a verdict, and the sentences and evidence of its failed and inconclusive checks."""
    checks = [
        check for axis in verdict.axes.values() for check in axis.checks if check.status in ("fail", "inconclusive")
    ]
    return "\n".join([verdict.headline, *(text for check in checks for text in (check.sentence, *check.evidence))])


@dataclass
class Tally:
    false_passes: int = 0
    bad: int = 0
    named: int = 0
    good: int = 0
    false_alarms: int = 0
    crashes: int = 0
    blames: int = 0
    wrong_blames: int = 0
    blames_in_unknown_order: int = 0
    nobody_blamed: int = 0


def _count_blame(tally: Tally, culprits: frozenset[str], found: Diagnosis | None) -> str:
    """Counts whoever is blamed for a break of one rank; others are wrong, unless the order is said to be unknown."""
    places = _blamed(found)
    tally.blames += 1
    tally.nobody_blamed += not places
    if places <= culprits:
        return ""
    undecided = found is not None and bool(found.rivals)
    tally.blames_in_unknown_order += undecided
    tally.wrong_blames += not undecided
    return "" if undecided else "WRONG BLAME"


def _count(tally: Tally, mutant: Mutant, metrics: Metrics, verdict: Verdict) -> str:
    """Counts one answer; what is wrong with it, or ""."""
    if mutant.culprits is not None and (wrong := _count_blame(tally, mutant.culprits, metrics.completion.diagnosis)):
        return wrong
    passed = verdict.outcome == "pass"
    if mutant.truth == "bad":
        tally.bad += 1
        named = re.search(mutant.named, _said(verdict)) is not None
        tally.named += named
        tally.false_passes += passed
        return "FALSE PASS" if passed else "" if named else "not named"
    if mutant.truth == "good":
        tally.good += 1
        tally.false_alarms += not passed
        return "" if passed else "false alarm"
    return ""


def main(seed: int, *, everything: bool, show: bool) -> None:
    rng = random.Random(seed)
    tally, results = Tally(), []
    families = [*made.FAMILIES.values(), *OTHERS.values(), *MORE.values()]
    logged = [family for family in families if not family.is_rows]
    single = (*LOG_MUTATIONS, *RUN_MUTATIONS)
    double = [decorated(mutation, rng.choice(DECORATIONS)) for mutation in single]
    every = [(mutation, family) for mutation in (*single, *double) for family in logged]
    chosen = every if everything else rng.sample(every, MUTATIONS)
    always = [
        *((unchanged, family) for family in families),
        *((mutation, family) for mutation in ROW_MUTATIONS for family in families if family.is_rows),
        *((mutation, family) for mutation in (*REPORTED_MUTATIONS, *BLAME_MUTATIONS) for family in logged),
    ]
    plan: list[tuple[Mutation, Family]] = [*always, *chosen]
    with tempfile.TemporaryDirectory() as folder:
        for index, (mutation, family) in enumerate(plan):
            course = made.good_course(family.steps, random.Random(rng.randrange(1 << 30)))
            mutant, name = mutation(family, course, rng), mutation.__name__
            paths = _write(mutant, Path(folder) / f"{index:03d}")
            try:
                metrics, verdict = _judge(paths, made.spec(mutant.steps or family.steps))
            except Exception as error:
                tally.crashes += 1
                wrong, outcome, headline = "crash", "crash", repr(error)
            else:
                wrong, outcome, headline = _count(tally, mutant, metrics, verdict), verdict.outcome, verdict.headline
            results.append(
                {"mutation": name, "family": family.name, "truth": mutant.truth, "outcome": outcome, "wrong": wrong}
            )
            if wrong or show:
                print(f"{wrong or 'right':11} {index:3d} {family.name:14} {name:22} {outcome}: {headline}")
            if wrong:
                kept = KEPT / f"{family.name}-{name.replace(' ', '-').replace(':', '')}"
                shutil.copytree(paths[0].parent, kept, dirs_exist_ok=True)
                print(f"            {kept}")
    share = tally.named / max(1, tally.bad)
    print(f"false PASS   {tally.false_passes} of {tally.bad} bad runs (must be 0)")
    print(f"named        {tally.named} of {tally.bad}: {share:.1%} (at least 98%)")
    print(f"false alarms {tally.false_alarms} of {tally.good} good runs")
    print(f"wrong blame  {tally.wrong_blames} of {tally.blames} runs that one rank broke (must be 0)")
    print(f"             {tally.blames_in_unknown_order} of unknown order, {tally.nobody_blamed} without a name")
    print(f"crashes      {tally.crashes}")
    print(f"written: {record.write('judge_mutations', {'seed': seed, **vars(tally), 'results': results}).name}")
    if tally.false_passes or tally.crashes or tally.wrong_blames:
        sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    main(given.seed, everything=given.all, show=given.show)

"""Wrong configurations, a folder a dialect: which findings `seatrial check` has about each stands in its expected.json.

`<case>.<json|yaml|yml|sh>` is the configuration, and the first line of `<case>.args`, if there is one, what else stands
on the command line. expected.json has each finding's severity, code, path, line and column. Two cases a dialect keep
the full text in `<case>.txt`. SEATRIAL_GOLDEN=1 rewrites both; read the difference.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from seatrial.xla_flags import jaxlib_version
from tests.helpers.command_line import seatrial
from tests.helpers.wrong_cases import EXPECTED, WRONG, Case, cases, immodest, measured

CASES = cases()
SAMPLE = {case.path.parent.name: case for case in CASES}.values()  # one a dialect


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_golden_findings_of_a_wrong_configuration(case: Case) -> None:
    done = seatrial("check", case.path.name, *case.arguments, "--format", "json", cwd=case.path.parent)
    assert (done.returncode, done.stderr) == (2, "")
    problems = json.loads(done.stdout)["problems"]
    assert all(problem["why"].strip() and problem["fix"].strip() for problem in problems)
    found = [[problem[name] for name in ("severity", "code", "path", "line", "column")] for problem in problems]
    if os.environ.get("SEATRIAL_GOLDEN"):
        case.expect(found)
    assert found == case.expected


@pytest.mark.parametrize("case", [case for case in CASES if case.golden.exists()], ids=by_name)
def test_golden_text_about_a_wrong_configuration(case: Case) -> None:
    done = seatrial("check", case.path.name, *case.arguments, cwd=case.path.parent)
    said = done.stdout.replace(f"jaxlib {jaxlib_version()}", "jaxlib VERSION")
    if os.environ.get("SEATRIAL_GOLDEN"):
        case.golden.write_text(said, encoding="utf-8")
    assert (done.returncode, done.stderr, said) == (2, "", case.golden.read_text(encoding="utf-8"))


def test_nothing_else_lies_in_the_folders() -> None:
    known = {path for case in CASES for path in (case.path, case.golden, case.path.with_suffix(".args"))}
    assert set(WRONG.glob("*/*")) - known == {path / EXPECTED for path in WRONG.iterdir()}
    assert len({case.golden for case in CASES}) == len(CASES)
    assert 10 <= sum(case.golden.exists() for case in CASES) <= 20


def test_every_dialect_has_its_cases() -> None:
    number = Counter(case.path.parent.name.partition("-")[0] for case in CASES)
    assert {name for name, cases in number.items() if cases >= 40} == {"cvs", "maxtext", "megatron", "native", "nxdt"}


@pytest.mark.parametrize("case", SAMPLE, ids=by_name)
def test_a_wrong_configuration_costs_little(case: Case, tmp_path: Path) -> None:
    cost = measured("check", case.path.name, *case.arguments, cwd=case.path.parent, scratch=tmp_path)
    assert cost.exit_code == 2
    cost.assert_modest()


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted({case.path.parent.name for case in CASES}))
def test_every_wrong_configuration_costs_little(folder: str, tmp_path: Path) -> None:
    here = [case for case in CASES if case.path.parent.name == folder]
    commands = {case.name: (case.path.parent, ["check", case.path.name, *case.arguments]) for case in here}
    assert immodest(commands, tmp_path) == {}

"""Findings as people and scripts see them; the goldens are the findings of `seatrial check` about the seed files."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from seatrial.cli import app
from seatrial.console import inert, warn
from seatrial.errors import Mark, Problem, Severity
from seatrial.report.problems import render_json, render_text
from seatrial.xla_flags import jaxlib_version
from tests.helpers.seeds import COMPLETE, ROOT, SEEDS

GOLDEN = ROOT / "tests" / "golden" / "check"


def problem(severity: Severity = "error", mark: Mark | None = None, **words: str) -> Problem:
    return Problem(
        severity=severity, mark=mark, **({"code": "c", "path": "a.b", "why": "because", "fix": "do"} | words)
    )


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout


# --- goldens ----------------------------------------------------------------------------------------------------------

CASES = {
    f"{path.stem}{suffix}": (path, overrides, exit_code)
    for path in SEEDS
    for suffix, overrides, exit_code in (("", (), 2), (".complete", COMPLETE[path], 0))
}


@pytest.mark.parametrize("name", CASES)
def test_golden_findings_about_the_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, overrides, exit_code = CASES[name]
    monkeypatch.chdir(ROOT)
    code, said = run(str(path.relative_to(ROOT)), *overrides, "--format", "json")
    problems = json.loads(said)["problems"]
    assert code == exit_code
    assert all(problem["why"].strip() and problem["fix"].strip() for problem in problems)
    found = [[problem[name] for name in ("severity", "code", "path", "line", "column")] for problem in problems]
    golden = GOLDEN / f"{name}.json"
    if os.environ.get("SEATRIAL_GOLDEN"):
        golden.write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n", encoding="utf-8")
    assert found == json.loads(golden.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_golden_text_about_the_seeds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, said = run(str(path.relative_to(ROOT)))
    said = said.replace(f"jaxlib {jaxlib_version()}", "jaxlib VERSION")
    golden = GOLDEN / f"{path.stem}.txt"
    if os.environ.get("SEATRIAL_GOLDEN"):
        golden.write_text(said, encoding="utf-8")
    assert said == golden.read_text(encoding="utf-8")


def test_both_formats_give_the_same_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for path in SEEDS:
        _, text = run(str(path.relative_to(ROOT)))
        _, data = run(str(path.relative_to(ROOT)), "--format", "json")
        in_text = re.findall(r"^(.*?):(\d+):(\d+): (\w+)\[([\w-]+)\] ([^:\n]+)", text, re.MULTILINE)
        together = re.findall(r"([\w-]+) \(line (\d+)\)", " ".join(re.findall(r"\(also .*\)", text)))
        in_data = [
            (p["file"], str(p["line"]), str(p["column"]), p["severity"], p["code"], p["path"])
            for p in json.loads(data)["problems"]
        ]
        left = Counter(in_data) - Counter(in_text)
        assert not Counter(in_text) - Counter(in_data)
        assert Counter((path.rpartition(".")[2], line) for _, line, _, _, _, path in left.elements()) == Counter(
            together
        )
        assert {tuple(p) for p in json.loads(data)["problems"]} == {
            ("severity", "code", "path", "file", "line", "column", "why", "fix")
        }


@pytest.mark.parametrize("arguments", [("missing.json",), (".",), ("pyproject.toml",), ("README.md", "x")])
def test_what_cannot_be_read_is_one_error_and_exit_code_2(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code, said = run(*arguments)
    assert (code, said.count("error["), said.splitlines()[-1]) == (2, 1, "1 error")


def test_a_sound_configuration_is_said_to_be_one() -> None:
    assert run(str(ROOT / "configs" / "native" / "tiny-text.json")) == (0, "OK: no errors\n")
    _, data = run(str(ROOT / "configs" / "native" / "tiny-text.json"), "--format", "json")
    assert json.loads(data) == {"problems": []}


# --- rendering --------------------------------------------------------------------------------------------------------


def test_errors_come_first_then_the_order_of_the_file_and_a_line_counts_them() -> None:
    marks = [Mark(file="missing", line=line, column=1) for line in (3, 1, 2)]
    problems = [
        problem("info", marks[1], path="note"),
        problem("warning", marks[1], path="careful"),
        problem("error", marks[0], path="third", why="it is third"),
        problem("error", marks[2], path="second"),
        problem("error", path="given"),
    ]
    said = render_text(problems)
    paths = re.findall(r"\[c\] (\w+)", said)
    assert paths == ["given", "second", "third", "careful", "note"]
    assert said.splitlines()[-1] == "3 errors, 1 warning, 1 note"
    assert render_text(problems[:2]).splitlines()[-1] == "OK: no errors, 1 warning, 1 note"
    assert render_text([]) == "OK: no errors"


def test_a_caret_stands_under_the_column(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n\t"ключ":\t"値", "x": 3}\n')
    said = render_text([problem(mark=Mark(file=str(path), line=2, column=15))]).splitlines()
    assert said[1] == '  |  "ключ": "値", "x": 3}'
    # 値 is two columns wide
    assert said[2] == "  |  " + " " * (len('"ключ": "値", "x"') + 1 - len('x"') - 1) + "^"


def test_of_a_long_line_the_part_around_the_place_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("x" * 5000 + "HERE" + "y" * 5000)
    lines = render_text([problem(mark=Mark(file=str(path), line=1, column=5001))]).splitlines()
    assert max(map(len, lines)) < 200
    assert lines[1][lines[2].index("^") :].startswith("HERE")


def test_findings_that_say_the_same_are_shown_once_with_every_key() -> None:
    marks = [Mark(file="missing", line=line, column=1) for line in range(1, 21)]
    same = [problem("warning", mark, path=f"key_{mark.line}") for mark in marks]
    other = [problem("warning", Mark(file="missing", line=5, column=9), path="other", why="another reason")]
    said = render_text([*same, *other]).splitlines()
    assert said == [
        "missing:1:1: warning[c] key_1",
        "  why: because (also key_2 (line 2), key_3 (line 3), key_4 (line 4), key_5 (line 5), key_6 (line 6), "
        "key_7 (line 7), key_8 (line 8), key_9 (line 9), key_10 (line 10), key_11 (line 11) and 9 more)",
        "  fix: do",
        "",
        "missing:5:9: warning[c] other",
        "  why: another reason",
        "  fix: do",
        "",
        "OK: no errors, 21 warnings",
    ]
    assert "also" not in render_text(same[:2])
    assert render_text([problem("info", path=f"k{n}") for n in range(3)]).splitlines()[0] == (
        "info[c] k0: because (also k1, k2)"
    )


def test_a_file_that_is_gone_is_no_harm() -> None:
    assert render_text([problem(mark=Mark(file="gone", line=9, column=9))]).startswith("gone:9:9: error[c] a.b\n  why:")


HOSTILE = "a\x1b[31mred\x07\x9b2J\r\n\u202etxt\u2066\ud800\u200b\x7f"


def test_what_a_file_says_stays_inert_in_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "\x1b[2J\x9b\xff\r"}')
    mark = Mark(file=str(path), line=1, column=7)
    said = render_text([problem(mark=mark, path=HOSTILE, why=HOSTILE, fix=HOSTILE), problem("info", why=HOSTILE)])
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e\u2066\ud800]", said) is None
    assert "\\x1b[31mred" in said
    assert said.encode("utf-8")
    assert json.loads(render_json([problem(path=HOSTILE)]))["problems"][0]["path"] == HOSTILE
    assert render_json([problem(path=HOSTILE)]).isascii()


def test_plain_text_stays_as_it_is() -> None:
    assert inert("über 値 – 3 × 4 … ✓") == "über 値 – 3 × 4 … ✓"


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[31merror[c]\x1b[0m" in render_text([problem()], color=True)
    assert "\x1b" not in render_text([problem()])  # a test's stdout is no terminal


def test_a_terminal_gets_colours_unless_it_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    primary, secondary = os.openpty()
    with os.fdopen(secondary, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert "\x1b" in render_text([problem()])
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in render_text([problem()])
    os.close(primary)


def test_warnings_go_to_stderr_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    warn([problem("error"), problem("warning", path="x"), problem("info"), problem("warning", path="y")])
    out, err = capsys.readouterr()
    assert (out, err) == ("", "warning[c] x: because\nwarning[c] y: because\n")

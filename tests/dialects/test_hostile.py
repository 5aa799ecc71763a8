"""Texts made to hurt: whatever they are, they end in one error, within a second of CPU time and 200 MB."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.command_line import seatrial
from tests.helpers.wrong_cases import MAX_CPU_SECONDS, immodest

MANY = 2_900  # values, just within the limit
LONG = 1_900_000  # bytes, just within the limit
SOUND = '"model": "llama3.2-1b", "batch": {"sequence_length": 8, "global_batch_size": 4, "micro_batch_size": 4}'

# The beginning of a file of each kind; what follows is read by the dialect that this shows.
JSON = {
    "native": f"{{{SOUND}, ",
    "cvs": '{"config": {}, "model_params": {"single_node": {"llama3.1-70b": {"mi300x": {"a": 1}}}}, ',
    "cvs-megatron": '{"config": {"training_iterations": "10"}, "model_params": {"single_node": {}}, ',
    "cvs-2026": '{"schema_version": 1, "framework": "jax", ',
    "cvs-2026-megatron": '{"train_params": {"model_size": "8"}, ',
    "nxdt": '{"trainer": {"devices": 32}, ',
    "maxtext": '{"base_config": "base.yml", ',
}
SHELL = {
    "maxtext": "python3 MaxText/train.py MaxText/configs/base.yml ",
    "megatron": "torchrun pretrain_gpt.py ",
}


def inside(make: Callable[[str], str]) -> dict[str, bytes]:
    return {f"{name}.json": make(start).encode() for name, start in JSON.items()}


def laughs(levels: int) -> str:
    lines = [f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]" for level in range(1, levels)]
    return "\n".join(["l0: &l0 [ha]", *lines, f"model: *l{levels - 1}", ""])


def texts() -> Iterator[tuple[str, bytes]]:
    """(name of the file, content)"""
    yield "ten-megabytes.json", b'{"a": "' + b"x" * 10_000_000 + b'"}'
    yield "ten-megabytes.yaml", b"a: 1\n" * 2_000_000
    yield "ten-megabytes.sh", b"export A=1\n" * 1_000_000 + b"python3 MaxText/train.py base.yml\n"
    yield "blanks.json", b" " * LONG + b"{}"
    yield "blanks.yaml", b" " * LONG
    yield "line-breaks.yaml", b"\n" * LONG + b"a: [\n"
    yield "comment.yaml", b"#" * LONG
    yield "words-on-a-line.yaml", b"a: " + b"x " * (LONG // 2)
    yield "quoted-lines.yaml", b"a: '" + b"x\n" * (LONG // 2)
    yield "block.yaml", b"a: |\n" + b"  x\n" * (LONG // 4)
    yield "strings.json", b"[" + b'"",' * (LONG // 3) + b'""]'
    yield "numbers.json", b"[" + b"1," * (LONG // 2) + b"1]"
    yield "quotes.json", b'"' * LONG
    yield "backslashes.json", b'"' + b"\\" * LONG
    yield "open-string.json", b'{"a": "' + b"x" * LONG
    yield "digits.json", b'{"steps": ' + b"9" * LONG + b"}"
    yield "digits.yaml", b"steps: " + b"9" * LONG
    yield "points.yaml", b"model: " + b"." * LONG
    yield "exponent.json", b'{"model": 1e' + b"9" * 900 + b"}"
    for suffix in ("json", "yaml"):
        yield f"lists.{suffix}", b"[" * 100_000
        yield f"closed-lists.{suffix}", b"[" * 100_000 + b"]" * 100_000
        yield f"mappings.{suffix}", b'{"a": ' * 100_000
        yield f"keys.{suffix}", b"{" + b", ".join(b'"k%d": 1' % n for n in range(100_000)) + b"}"
    yield "one-key.json", b"{" + b", ".join([b'"steps": 1'] * MANY) + b"}"
    yield "dashes.yaml", b"- " * 100_000
    yield "questions.yaml", b"? " * 100_000
    yield "indented.yaml", b"".join(b" " * n + b"a:\n" for n in range(1500))
    for levels in (3, 4, 5, 10, 60):
        yield f"laughs-{levels}.yaml", laughs(levels).encode()
    yield "aliases.yaml", b"a: &a 1\nmodel: [" + b"*a, " * (LONG // 4) + b"1]\n"
    yield "mapping-of-aliases.yaml", b"a: &a {b: 1}\nmodel:\n" + b"".join(b"  k%d: *a\n" % n for n in range(90_000))
    yield "anchors.yaml", b"".join(b"a%d: &a%d 1\n" % (n, n) for n in range(90_000))
    yield "cycle.yaml", b"a: &a [*a]\n"
    yield "tags.yaml", b"model: " + b"!!str " * 100_000 + b"x\n"
    yield "directives.yaml", b"%YAML 1.2\n" * 100_000
    yield "documents.yaml", b"--- {}\n" * 100_000
    yield "merge.yaml", b"a: &a {b: 1}\nmodel: {<<: *a}\n"
    yield "utf-16.json", json.dumps({"model": "x"}).encode("utf-16")
    yield "utf-32.yaml", "model: x\n".encode("utf-32")
    yield "latin-1.yaml", "name: Modellgröße\n".encode("latin-1")
    yield "mark.json", b"\xef\xbb\xbf" + b"{" + SOUND.encode() + b', "steps": 1}'
    yield "surrogate.json", b'{"model": "\\ud800"}'
    yield "surrogate-key.json", b'{"\\udfff": 1}'
    yield "raw-surrogate.yaml", b"model: \xed\xa0\x80\n"
    yield "nul.json", b'{"model": "\x00"}'
    yield "nuls.json", b"\x00" * LONG
    yield "nul.yaml", b"model: \x00\n"
    yield "random.json", bytes(range(256)) * 7000
    yield "picture.yaml", b"\x89PNG\r\n\x1a\n" + b"\x00" * 1000
    yield "archive", b"PK\x03\x04" + b"\x00" * 1000
    yield "long-name.json", b'{"' + b"k" * LONG + b'": 1}'
    yield "old-mac.yaml", b"model: llama3.2-1b\rstepz: 10\r"
    many = {
        "unknown keys": lambda start: start + ", ".join(f'"stepz{n}": {n}' for n in range(MANY)) + "}",
        "unknown long keys": lambda start: start + ", ".join(f'"{"tensor_" * 20}{n}": 1' for n in range(MANY)) + "}",
        "unknown keys below": lambda start: start + '"optimizer": {"a": {' + ", ".join(
            f'"learning_rte{n}": {n}' for n in range(MANY)) + "}}}",
        "marks to fill in": lambda start: start + ", ".join(f'"k{n}": "<changeme>"' for n in range(MANY)) + "}",
        "braces": lambda start: start + '"name": "' + "{a}" * 100_000 + '"}',
        "dollars": lambda start: start + '"name": "' + "${a:" * 100_000 + '"}',
        "dots": lambda start: start + ", ".join(f'"{"a." * 400}{n}": 1' for n in range(2000)) + "}",
        "list": lambda start: start + '"data": {"paths": [' + ", ".join("1" for _ in range(MANY)) + "]}}",
    }  # fmt: skip
    for what, make in many.items():
        for name, content in inside(make).items():
            yield f"{what} of {name}".replace(" ", "-"), content
    for name, start in SHELL.items():
        yield f"many-words-of-{name}.sh", (start + " ".join(f"--stepz-{n}={n}" for n in range(MANY))).encode()
        yield f"many-settings-of-{name}.sh", (start + " ".join(f"stepz{n}={n}" for n in range(MANY))).encode()
        yield f"many-lines-of-{name}.sh", ("".join(f"export A{n}=1\n" for n in range(50_000)) + start).encode()
        yield f"open-quote-of-{name}.sh", (start + "'" + "x" * LONG).encode()
        yield f"continued-lines-of-{name}.sh", (start + "\\\n" * (LONG // 2)).encode()
        yield f"nested-of-{name}.sh", (start + "steps=" + "${A:-" * 50_000 + "}" * 50_000).encode()
        yield f"substitutions-of-{name}.sh", (start + "steps=" + "$(" * 50_000).encode()
        yield f"doubling-of-{name}.sh", (
            "A=xxxxxxxxxx\n" + "".join(f'{chr(66 + n)}="${chr(65 + n)}${chr(65 + n)}"\n' for n in range(24))
            + "A=$Y\n" + start + 'run_name="$Y$Y"'
        ).encode()  # fmt: skip
        yield f"growing-of-{name}.sh", ("A=x\n" + 'A="$A$A"\n' * 200 + start + "run_name=$A").encode()


TEXTS = dict(texts())


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_gets_anything_but_an_answer(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(TEXTS[name])
    before = os.times()
    done = seatrial("check", name, cwd=tmp_path)
    after = os.times()
    assert (done.returncode, done.stderr) == (2, "")
    assert "error[" in done.stdout
    assert "Traceback" not in done.stdout
    assert len(done.stdout) < 200_000
    assert after.user + after.system - before.user - before.system <= MAX_CPU_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_no_text_costs_much(part: int, tmp_path: Path) -> None:
    names = sorted(TEXTS)[part::6]
    for name in names:
        (tmp_path / name).write_bytes(TEXTS[name])
    assert immodest({name: (tmp_path, ["check", name]) for name in names}, tmp_path) == {}


# --- what is no text --------------------------------------------------------------------------------------------------


@contextmanager
def writer_of(fifo: Path) -> Iterator[None]:
    """Somebody who waits at the other end of a FIFO until the test is over."""
    os.mkfifo(fifo)
    over = threading.Event()
    end = os.open(fifo, os.O_RDWR)
    try:
        yield
    finally:
        over.set()
        os.close(end)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    with writer_of(tmp_path / "pipe.json"):
        done = seatrial("check", "pipe.json", cwd=tmp_path)
    assert (done.returncode, "not a regular file" in done.stdout) == (2, True)


@pytest.mark.parametrize(
    "name", ["/dev/zero", "/dev/stdin", "/proc/self/mem", ".", "/", "missing.json", "a/b.json", "x" * 300]
)
def test_what_is_no_file_is_told_so(name: str, tmp_path: Path) -> None:
    done = seatrial("check", name, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout.count("error[")) == (2, "", 1)


def test_a_link_to_itself_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json")
    done = seatrial("check", "loop.json", cwd=tmp_path)
    assert (done.returncode, done.stdout.count("error[")) == (2, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "mine.json").chmod(0)
    done = seatrial("check", "mine.json", cwd=tmp_path)
    assert (done.returncode, "Permission denied" in done.stdout) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["=1"], ["steps"], ["steps="], ["steps=" + "9" * 5000], ["x" * 100_000 + "=1"], ["." * 10_000 + "=1"],
        ["data.paths=" + "[" * 10_000], ["data.paths=[1"], ["model={"], ["model={}"], ["model=[1]"], ["a.b.c.d.e=1"],
        [f"stepz{n}={n}" for n in range(500)], ["steps=\ud800"], ["steps=1\n2"], ["stéps=1"], ["=", "=="],
    ],
    ids=lambda arguments: arguments[0][:20],
)  # fmt: skip
def test_no_override_gets_anything_but_an_answer(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "sound.json").write_text(f'{{{SOUND}, "steps": 10}}')
    before = os.times()
    done = seatrial("check", "sound.json", *arguments, cwd=tmp_path)
    after = os.times()
    assert (done.returncode, done.stderr) == (2, "")
    assert "error[" in done.stdout
    assert len(done.stdout) < 400_000
    assert after.user + after.system - before.user - before.system <= MAX_CPU_SECONDS

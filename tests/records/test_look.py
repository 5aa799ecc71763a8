"""The first records of a run, looked at before anything starts: what is found, where, and what it costs."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from seatrial.dialects import load
from seatrial.records import DataError
from seatrial.records.look import MOST_FILES, data_problems
from seatrial.train.data.records import answers, preferences
from seatrial.train.data.tokenizer import BYTES
from tests.helpers.command_line import seatrial
from tests.helpers.permissions import nobody
from tests.helpers.record_files import TEMPLATES, messages_of
from tests.helpers.wrong_cases import measured

ROOT = Path(__file__).parents[2]
SOUND = {"input": "a", "output": "b"}
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
CHAT = {"messages": messages_of(("a", "b"))}

CONFIG = """model: llama3.2-1b
batch: {{sequence_length: 32, global_batch_size: 8, micro_batch_size: 8}}
steps: 4
objective: {{kind: {kind}}}
data:
  kind: records
  paths: {paths}
"""


def written(tmp_path: Path, *paths: str, kind: str = "sft", more: str = "") -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(CONFIG.format(kind=kind, paths=json.dumps(paths)) + more, encoding="utf-8")
    return file


def looked(tmp_path: Path, *paths: str, kind: str = "sft", more: str = "") -> list[dict[str, Any]]:
    """The findings of `check` for a configuration that reads these files."""
    done = seatrial("check", written(tmp_path, *paths, kind=kind, more=more), "--format", "json", cwd=tmp_path)
    assert done.stderr == ""
    found: list[dict[str, Any]] = json.loads(done.stdout)["problems"]
    assert done.returncode == (2 if any(each["severity"] == "error" for each in found) else 0)
    return found


def table(path: Path, columns: dict[str, list[Any]]) -> None:
    content = pa.table(columns)
    if path.suffix == ".parquet":
        pa.parquet.write_table(content, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as writer:
            writer.write_table(content)


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


# --- what does not fit ------------------------------------------------------------------------------------------------

NOISE = b"\xf5" + random.Random(5).randbytes(100_000)
WRONG: list[tuple[str, str, bytes, str]] = [  # objective, name, content, what is said of it
    ("sft", "a.jsonl", lines({"question": "a", "answer": "b"}), "line 1: there are question, answer, and a record "
     "needs input and output, or prompt and completion, or messages"),
    ("sft", "a.jsonl", lines(*[SOUND] * 49, {"input": "a"}), "line 50: has no text in 'output'; there are input"),
    ("sft", "a.jsonl", lines({"input": "a", "output": 3}), "line 1: has '3' instead of text in 'output'"),
    ("sft", "a.jsonl", lines(SOUND, ["a", "b"]), "line 2: \"['a', 'b']\" is not an object"),
    ("sft", "a.json", json.dumps([SOUND, {"input": 1}]).encode(), "row 1: has '1' instead of text in 'input'"),
    ("sft", "a.json", json.dumps([SOUND, SOUND]).encode()[:-9], "row 1: not JSON (Unterminated string starting at)"),
    ("sft", "a.json", json.dumps({"data": [SOUND]}).encode(), "line 1: there are data, and a record needs input and"),
    ("sft", "a.jsonl.gz", gzip.compress(lines(SOUND, {"output": "b"})), "line 2: has no text in 'input'"),
    ("sft", "a.jsonl.gz", lines(SOUND), "cannot be read (Not a gzipped file (b'{\"'))"),
    ("sft", "a.jsonl", b"", "there is nothing in it"),
    ("sft", "a.jsonl", b"\n\n", "there is nothing in it"),
    ("sft", "a.json", b"[]", "there is nothing in it"),
    ("sft", "a.jsonl", NOISE, "line 1: byte 0 is not UTF-8"),
    ("sft", "a.parquet", NOISE, "cannot be read (Parquet magic bytes not found in footer"),
    ("sft", "a.arrow", NOISE, "not an Arrow file, or cut off"),
    ("sft", "a.jsonl", '{"input": "größe"}\n'.encode("latin-1"), "line 1: byte 13 is not UTF-8 (invalid start byte)"),
    ("sft", "a.jsonl", '{"input": "a"}\n'.encode("utf-16"), "line 1: byte 0 is not UTF-8 (invalid start byte)"),
    ("sft", "a.jsonl", b"\x00" * 10_000_000, "line 1: not JSON"),
    ("sft", "a.csv", b"input,output\na,b\n", "line 1: not JSON (Expecting value: line 1 column 1 (char 0))"),
    ("sft", "a.jsonl", lines({"input": "a" * 99, "output": "b"}), "no record has an answer within 32 tokens"),
    ("sft", "a.jsonl", lines({"messages": "hello"}), "conversations need a chat template, and the tokenizer has none"),
    ("dpo", "a.jsonl", lines(SOUND), "line 1: there are input, output, and a record needs prompt and chosen"),
    ("dpo", "a.jsonl", lines(PAIR, {"prompt": "a", "chosen": "b"}), "line 2: has no text in 'rejected'"),
    ("orpo", "a.jsonl", lines({**PAIR, "rejected": ["c"]}), "line 1: has \"['c']\" instead of text in 'rejected'"),
]  # fmt: skip


@pytest.mark.parametrize("folder", ["data", "data/a.*"])
@pytest.mark.parametrize(("kind", "name", "content", "why"), WRONG, ids=range(len(WRONG)))
def test_what_does_not_fit_is_named(
    tmp_path: Path, folder: str, kind: str, name: str, content: bytes, why: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(content)
    named = f"data/{name}" if name.endswith(".csv") else folder
    is_alone = why.startswith(("there is nothing", "no record"))  # others, which are elsewhere, might have some
    paths = [named] if is_alone else ["nowhere/*.jsonl", named]
    found = [each for each in looked(tmp_path, *paths, kind=kind) if each["severity"] == "error"]
    (finding,) = found
    assert why in finding["why"]
    assert finding["fix"]
    is_of_the_tokenizer = "template" in why
    assert (finding["code"], finding["line"]) == ("data", 7)
    assert finding["path"] == ("data.paths" if is_of_the_tokenizer else f"data.paths.{len(paths) - 1}")
    text = (tmp_path / "run.yaml").read_text().splitlines()[finding["line"] - 1][finding["column"] - 1 :]
    assert text.startswith("[" if is_of_the_tokenizer else json.dumps(named))
    # training would not have got any further
    if not is_alone:
        read = answers if kind == "sft" else preferences
        with pytest.raises(DataError) as theirs:
            list(read(Path(tmp_path / "data" / name), BYTES))
        assert why in str(theirs.value)


@pytest.mark.parametrize(("columns", "why"), [
    ({"question": ["a"], "output": ["b"]}, "has no column 'input'; there are question, output"),
    ({"input": [*"a" * 50, None], "output": [*"b" * 51]}, "row 50: has 'None' instead of text in 'input'"),
    ({"input": [1], "output": ["b"]}, "row 0: has '1' instead of text in 'input'"),
    ({"input": pa.array([], pa.string()), "output": pa.array([], pa.string())}, "there is nothing in it"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_that_do_not_fit_are_named(tmp_path: Path, name: str, columns: dict[str, Any], why: str) -> None:
    (tmp_path / "data").mkdir()
    table(tmp_path / "data" / name, columns)
    (finding,) = looked(tmp_path, "data")
    assert (finding["severity"], why in finding["why"]) == ("error", True)


def damaged(content: bytes, chance: random.Random) -> bytes:
    made = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        place = chance.randrange(len(made))
        made[place : place + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
    return bytes(made)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_damage_is_a_finding_or_none(tmp_path: Path, name: str) -> None:
    """Also where pyarrow would follow it out of its memory, and end the process."""
    chance, path = random.Random(7), tmp_path / name
    rows = [{"input": "a" * chance.randrange(50), "output": "bß" * chance.randrange(20)} for _ in range(60)]
    if path.suffix in (".parquet", ".arrow"):
        table(path, {key: [row[key] for row in rows] for key in SOUND})
        whole = path.read_bytes()
    else:
        text = json.dumps(rows, indent=1).encode() if path.suffix == ".json" else lines(*rows)
        whole = gzip.compress(text) if path.suffix == ".gz" else text
    resolved = load(written(tmp_path, str(path)), (), action="check")
    assert [each for each in data_problems(resolved) if each.severity == "error"] == []
    errors = 0
    for _ in range(300):
        path.write_bytes(damaged(whole, chance))
        found = [each.why for each in data_problems(resolved) if each.severity == "error"]
        assert all(name in why for why in found)
        errors += len(found)
    assert errors > 50


@pytest.mark.parametrize("messages", [
    [], "hello", [{"role": "user", "content": 3}], [{"role": "user", "content": "a"}],
    [{"role": "system", "content": "x"}, *messages_of(("a", "b"))],
])  # fmt: skip
def test_conversations_are_rendered_where_their_template_is(
    tmp_path: Path, with_template: Callable[[str], Path], json_lines: Callable[..., Path], messages: object
) -> None:
    more = f"  tokenizer: {with_template(TEMPLATES[2])}\n"
    json_lines("a.jsonl", CHAT)
    assert looked(tmp_path, "a.jsonl", more=more) == []
    json_lines("a.jsonl", CHAT, {"messages": messages})
    (finding,) = looked(tmp_path, "a.jsonl", more=more)
    assert finding["why"].startswith("a.jsonl, line 2: ")
    # a tokenizer of another machine: what its template refuses, nobody can say here
    found = looked(tmp_path, "a.jsonl", more="  tokenizer: /elsewhere/tokenizer.json\n")
    assert len(found) == (0 if isinstance(messages, list) and len(messages) == 3 else 1)


def test_what_a_tokenizer_lacks_is_said_at_its_key(tmp_path: Path, bpe: Path, json_lines: Callable[..., Path]) -> None:
    json_lines("a.jsonl", CHAT)
    (finding,) = looked(tmp_path, "a.jsonl", more=f"  tokenizer: {bpe}\n")
    assert (finding["path"], finding["line"], finding["column"]) == ("data.tokenizer", 8, 14)
    assert finding["why"] == "conversations need a chat template, and the tokenizer has none"


def test_nxdt_names_its_own_keys(tmp_path: Path, json_lines: Callable[..., Path]) -> None:
    json_lines("train.jsonl", SOUND)
    json_lines("pairs.jsonl", PAIR)
    for name, wrong in (("sft", "pairs.jsonl"), ("dpo", "train.jsonl")):
        text = (ROOT / "configs" / "nxdt" / f"llama3-8b-{name}.yaml").read_text()
        for file, has_error in ((wrong, True), ("train.jsonl" if name == "sft" else "pairs.jsonl", False)):
            config = tmp_path / f"{name}.yaml"
            config.write_text(re.sub("train_dir: .*", f"train_dir: {file}", text))
            done = seatrial("check", config, "--format", "json", cwd=tmp_path)
            found = [each for each in json.loads(done.stdout)["problems"] if each["code"] == "data"]
            assert (done.returncode, len(found)) == ((2, 1) if has_error else (0, 0))
            for each in found:
                assert each["path"] == "data.train_dir"
                assert config.read_text().splitlines()[each["line"] - 1][each["column"] - 1 :] == file


def test_validation_records_are_looked_at_where_there_are_evaluations(
    tmp_path: Path, json_lines: Callable[..., Path]
) -> None:
    json_lines("a.jsonl", SOUND)
    json_lines("b.jsonl", PAIR)
    more = "  validation_paths: [a.jsonl, b.jsonl]\n"
    assert [each["code"] for each in looked(tmp_path, "a.jsonl", more=more)] == []
    (finding,) = looked(tmp_path, "a.jsonl", more=more + "evaluation: {interval_steps: 2, batches: 1}\n")
    assert (finding["path"], finding["severity"]) == ("data.validation_paths.1", "error")


def test_texts_of_tables_are_looked_at(tmp_path: Path, json_lines: Callable[..., Path]) -> None:
    json_lines("a.jsonl", {"body": "x"})
    (tmp_path / "b.txt").write_bytes(NOISE)
    config = json.loads((ROOT / "configs" / "native" / "tiny-text.json").read_text())
    for paths, whys in (
        (["*.jsonl"], ["a.jsonl, line 1: has no text in 'text'; there are body"]),
        (["[ab].*"], ["a.jsonl, line 1: has no text in 'text'; there are body"]),
        (["*.txt"], []),
    ):
        config["data"]["paths"] = paths
        (tmp_path / "run.json").write_text(json.dumps(config))
        done = seatrial("check", "run.json", "--format", "json", cwd=tmp_path)
        found = [each["why"] for each in json.loads(done.stdout)["problems"] if each["code"] == "data"]
        assert (done.returncode, found) == (2 if whys else 0, whys)


def test_the_guide_shows_what_check_prints(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "howto" / "fine-tune.md").read_text(encoding="utf-8")
    shown = re.findall(r"```console\n\$ seatrial check run.yaml\n(.*?)```", guide, re.DOTALL)
    data = re.search(r"^data: .*", guide, re.MULTILINE)
    assert data
    text = "model: llama3.2-1b\nbatch: {sequence_length: 4096, global_batch_size: 8, micro_batch_size: 8}\nsteps: 9\n"
    (tmp_path / "run.yaml").write_text(f"{text}objective: {{kind: sft}}\n{data[0]}\n")
    (tmp_path / "data").mkdir()
    row = {"prompt": "a", "completion": "b"}
    (tmp_path / "data" / "a.jsonl").write_bytes(lines(row))
    long = {"prompt": "a", "completion": "word " * 20_000}
    for wrong, printed in zip(([{"question": "a", "answer": "b"}], [row, row, long]), shown, strict=True):
        (tmp_path / "data" / "b.jsonl").write_bytes(lines(*wrong))
        assert seatrial("check", "run.yaml", cwd=tmp_path).stdout == printed


@pytest.mark.parametrize("verb", ["check", "plan", "run", "train"])
def test_every_verb_that_starts_something_refuses_them(
    tmp_path: Path, json_lines: Callable[..., Path], verb: str
) -> None:
    json_lines("a.jsonl", PAIR)
    done = seatrial(verb, written(tmp_path, "a.jsonl"), cwd=tmp_path)
    assert done.returncode == 2
    assert "a.jsonl, line 1: has no text in 'completion'" in done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []


# --- what is not read -------------------------------------------------------------------------------------------------


def test_records_that_fit_and_those_of_other_machines_are_no_finding(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, content in {
        "a.jsonl": lines(SOUND), "b.json": json.dumps([{"prompt": "a", "completion": "b", "x": 1}]).encode(),
        "c.jsonl.gz": gzip.compress(lines(SOUND)), "d.json.gz": gzip.compress(json.dumps([SOUND]).encode()),
        "e.jsonl": b"\xef\xbb\xbf" + lines(SOUND), "f.jsonl": b"", "g.jsonl": lines(*[SOUND] * 100, PAIR),
    }.items():  # fmt: skip
        (tmp_path / "data" / name).write_bytes(content)
    table(tmp_path / "data" / "h.parquet", {"input": ["a"], "output": ["b"], "more": [1]})
    table(tmp_path / "data" / "i.arrow", {"input": ["a"], "output": ["b"]})
    for paths in (["data"], ["data/*"], ["data/**"], ["/elsewhere/*.jsonl"], ["s3://bucket/x.jsonl"], ["data", "no"]):
        assert looked(tmp_path, *paths) == []
    done = seatrial("plan", written(tmp_path, "/elsewhere/x.jsonl"), cwd=tmp_path)
    assert done.returncode == 0


def test_a_directory_of_ten_thousand_files_is_looked_at_in_part(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(10_000):
        (tmp_path / "data" / f"{number:05}.jsonl").write_bytes(lines(SOUND if number < MOST_FILES else PAIR))
    before = os.times()
    for paths in ("data", "data/*.jsonl", "**/*.jsonl"):
        assert looked(tmp_path, paths) == []
    (tmp_path / "data" / f"{MOST_FILES - 1:05}.jsonl").write_bytes(lines(PAIR))
    (finding,) = looked(tmp_path, "data")
    assert finding["why"].startswith("data/00019.jsonl, line 1: has no text in 'completion'")
    after = os.times()
    assert after.user + after.system - before.user - before.system < 8


def test_an_empty_file_counts_only_where_it_is_read_alone(tmp_path: Path, json_lines: Callable[..., Path]) -> None:
    json_lines("a.jsonl", SOUND)
    json_lines("b.jsonl")
    assert looked(tmp_path, "a.jsonl", "b.jsonl") == []
    (finding,) = looked(tmp_path, "a.jsonl", "b.jsonl", more="  weights: [1, 2]\n")
    assert (finding["path"], finding["why"]) == ("data.paths.1", "b.jsonl: there is nothing in it")


def test_without_pyarrow_a_note_says_that_nobody_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path / "a.parquet", {"x": ["a"]})
    (tmp_path / "b.jsonl").write_bytes(lines(PAIR))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    note, error = sorted(looked(tmp_path, "a.parquet", "b.jsonl"), key=lambda each: str(each["path"]))
    assert (note["severity"], note["code"], note["path"]) == ("info", "data-not-read", "data.paths.0")
    assert note["why"] == ("a.parquet: not looked at, because pyarrow is not installed: pip install 'seatrial[train]'")
    assert (error["severity"], error["path"]) == ("error", "data.paths.1")


def test_a_line_that_may_be_sound_and_is_too_long_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"input": "x" * 9_000_000, "output": "b"}))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"input": "' + b"x" * 100_000_000))
    for name in ("a.jsonl", "b.jsonl.gz"):
        (finding,) = looked(tmp_path, name)
        assert (finding["severity"], finding["why"]) == (
            "warning", f"{name}, line 1: longer than 8 MiB, so it was not looked at",
        )  # fmt: skip


def test_records_that_training_cuts_or_leaves_out_are_a_note(tmp_path: Path, json_lines: Callable[..., Path]) -> None:
    """The numbers are those that training itself prints of these records."""
    from seatrial.train.data.indexed import in_memory
    from seatrial.train.data.records import answer_rows

    chance = random.Random(3)
    sizes = [(chance.choice([0, 9, 30, 31, 32, 33, 60]), chance.choice([0, 1, 15, 16, 40])) for _ in range(90)]
    rows = [{"input": "p" * given, "output": "ä" * learnt} for given, learnt in sizes]
    path = json_lines("a.jsonl", *rows)
    (finding,) = looked(tmp_path, "a.jsonl")
    (theirs,) = answer_rows(in_memory(answers(path, BYTES)), None, 32, False).notes
    long, total, cut, lost = map(int, re.findall(r"\b\d+\b", theirs.replace("32 tokens", "")))
    first = next(i for i, row in enumerate(rows, 1) if len(row["input"]) + len(row["output"].encode()) + 2 > 33)
    assert finding["severity"] == "info"
    assert finding["why"] == (
        f"a.jsonl, line {first}: longer than 32 tokens ({long} of the first {total} records); "
        f"training cuts {cut} at the end and leaves out {lost}, of whose answers nothing would be left"
    )


def test_long_records_of_several_files_are_one_note(tmp_path: Path, json_lines: Callable[..., Path]) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        json_lines(name, SOUND, {"input": "a", "output": "b" * 99})
    (finding,) = looked(tmp_path, "*.jsonl")
    assert (
        finding["why"]
        == "a.jsonl, line 2: longer than 32 tokens (2 of the first 4 records); training cuts 2 at the end"
    )


# --- what is no file --------------------------------------------------------------------------------------------------


def test_what_may_not_be_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "data").mkdir()
        file = place / "data" / "a.jsonl"
        file.write_bytes(lines(SOUND))
        place.chmod(0o755)
        for target, mode, paths in ((file, 0, "data/a.jsonl"), (file, 0, "data"), (file.parent, 0, "data/a.jsonl"),
                                    (file.parent, 0, "data"), (file.parent, 0o444, "data")):  # fmt: skip
            config, before = written(place, paths), target.stat().st_mode
            assert looked(place, paths) == []
            target.chmod(mode)
            try:
                with nobody():
                    done = seatrial("check", config, cwd=place)
            finally:
                target.chmod(before)
            assert (done.returncode, done.stderr) == (2, "")
            assert "Permission denied" in done.stdout


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / "a.jsonl")
    for paths in ("data", "data/a.jsonl", "data/*", "**/a.jsonl"):
        (finding,) = looked(tmp_path, paths)
        assert finding["why"] == "data/a.jsonl: is a FIFO"


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_records_of_json_are_looked_at_without_any_library(tmp_path: Path, json_lines: Callable[..., Path]) -> None:
    json_lines("a.jsonl", SOUND)
    program = "import sys; from seatrial.cli import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    argv = [sys.executable, "-c", program, "check", str(written(tmp_path, "a.jsonl"))]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    heavy = {"jax", "numpy", "pyarrow", "tokenizers", "jinja2"}
    assert heavy & {module.partition(".")[0] for module in done.stderr.split()} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "a.parquet", "a.arrow", "a.jsonl.gz", "chat.jsonl", "long.jsonl", "noise.jsonl"]
)
def test_a_look_costs_little(tmp_path: Path, with_template: Callable[[str], Path], name: str) -> None:
    """Within what reading any configuration may take, however much lies there."""
    path, count = tmp_path / name, 400_000
    more = ""
    if path.suffix in (".parquet", ".arrow"):
        table(path, {"input": ["a" * 200] * count, "output": ["b"] * count})
    elif name == "noise.jsonl":
        path.write_bytes(random.Random(1).randbytes(40_000_000).replace(b"\n", b""))
    elif name == "long.jsonl":
        path.write_text(json.dumps({"input": "x" * 8_000_000 + "\U0001f600", "output": "b"}, ensure_ascii=False) * 1)
    elif name == "chat.jsonl":
        more = f"  tokenizer: {with_template(TEMPLATES[0])}\n"
        path.write_bytes(lines({"messages": messages_of(*[("a" * 50, "b" * 50)] * 20)}) * 10_000)
    else:
        row = json.dumps(SOUND | {"input": "a" * 200})
        text = f"[{', '.join([row] * count)}]" if path.suffix == ".json" else f"{row}\n" * count
        path.write_bytes(gzip.compress(text.encode(), 1) if path.suffix == ".gz" else text.encode())
    cost = measured("check", written(tmp_path, name, more=more), cwd=tmp_path, scratch=tmp_path)
    assert cost.exit_code == (2 if name in ("noise.jsonl", "long.jsonl") else 0), cost.out
    cost.assert_modest()
    print(f"{name}: {cost.peak_bytes / 1e6:.0f} MB, {cost.cpu_seconds:.2f} s")

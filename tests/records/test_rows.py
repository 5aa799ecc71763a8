"""Rows of JSON as the standard library reads them, wherever the pieces end that a file is read in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from seatrial.records import DataError, rows
from seatrial.records.rows import Limits, TooLong, names_of, numbered_rows

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
SOME = st.text(max_size=3)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SOME, inner), max_leaves=5)
ROWS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=5)


@pytest.fixture(params=[1, 3, 1 << 20], ids=lambda size: f"pieces-of-{size}")
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(rows, "_PIECE", request.param)
    return int(request.param)


def array(path: Path) -> list[dict[str, object]]:
    return [row for _, row in numbered_rows(path, ("a",))]


@QUICK
@given(ROWS, st.none() | st.integers(0, 2), st.booleans(), st.sampled_from(["", " ", "\ufeff"]))
def test_an_array_is_what_json_reads(
    piece: int, tmp_path: Path, records: list[dict[str, object]], indent: int | None, is_ascii: bool, starts: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes((starts + json.dumps(records, indent=indent, ensure_ascii=is_ascii)).encode() + b"\n ")
    assert array(path) == json.loads(json.dumps(records))


@QUICK
@given(records=ROWS, damage=st.data())
def test_an_array_that_json_refuses_is_refused(
    piece: int, tmp_path: Path, records: list[dict[str, object]], damage: st.DataObject
) -> None:
    text = json.dumps(records, ensure_ascii=False)
    place = damage.draw(st.integers(1, len(text)))
    put = damage.draw(st.sampled_from(["", "]", ",", "}", '"', "1", "\x00", "nul"]))
    cut = damage.draw(st.sampled_from([0, 1, len(text)]))
    text = text[:place] + put + text[place + cut :]
    assume("\n" not in text)
    path = tmp_path / "a.json"
    path.write_bytes(text.encode())
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    if expected is not None and all(isinstance(row, dict) for row in expected):
        assert array(path) == expected
    else:
        with pytest.raises(DataError, match="row"):
            array(path)


def test_a_bad_array_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, more = tmp_path / "a.json", rows._Array._more
    path.write_bytes(b'[{"a": 1},\n{"a": 2 3}, ' + b'{"a": 1},' * 1_000_000)
    pieces = []
    monkeypatch.setattr(rows._Array, "_more", lambda self: pieces.append(1) or more(self))
    with pytest.raises(DataError, match=r"a.json, row 1: not JSON \(Expecting ',' delimiter\)"):
        list(numbered_rows(path, ("a",)))
    assert len(pieces) == 1


@pytest.mark.parametrize("content", [
    b'[{"a": "\xff"}]', b'[{"a": 1},\n{"a": "\xe9"}]', b'[{"a": "' + b"x" * 99 + b"\xe2\x82",
])  # fmt: skip
def test_a_byte_that_is_not_utf_8_is_named(piece: int, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UnicodeDecodeError) as theirs:
        content.decode()
    is_cut = content.endswith(b"\x82")  # a text without an end, before anything
    why = "Unterminated string" if is_cut else f"byte {theirs.value.start} of the file is not UTF-8"
    with pytest.raises(DataError, match=why):
        array(path)


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    lines, one = tmp_path / "a.jsonl", tmp_path / "a.json"
    records = [{"a": "x" * 90} for _ in range(100)]
    lines.write_text("".join(json.dumps(row) + "\n" for row in records))
    one.write_text(json.dumps(records))
    for path in (lines, one):
        some = list(numbered_rows(path, ("a",), Limits(left=1000)))
        assert len(some) in (10, 11)  # commas counted or not
        with pytest.raises(TooLong, match="longer than 0 MiB"):
            list(numbered_rows(path, ("a",), Limits(longest=80)))
    lines.write_bytes(b"\x00" * 1000)
    with pytest.raises(DataError, match="line 1: not JSON"):  # that is certain, however long it is
        list(numbered_rows(lines, ("a",), Limits(longest=80)))


def test_names_are_those_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"b": 1, "a": 2}\n{"c": 1}\n'))
    assert names_of(path) == (f"{path}, line 1", ["b", "a"])
    path.write_bytes(gzip.compress(b"\n\n"))
    assert names_of(path) == (str(path), [])

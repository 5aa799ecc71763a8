"""The pages of docs/reference that are made from the tables are those that the tables make."""

from __future__ import annotations

import json
import os
import re

import pytest
from tools.dialect_pages import MADE, PAGES, pages

from seatrial.dialects.explain import table
from seatrial.dialects.fields import FIELDS
from tests.helpers.seeds import ROOT

FOLDER = ROOT / "docs" / "reference"
MADE_PAGES = dict(pages())


@pytest.mark.parametrize("name", MADE_PAGES)
def test_golden_page(name: str) -> None:
    if os.environ.get("SEATRIAL_GOLDEN"):
        (FOLDER / name).write_text(MADE_PAGES[name], encoding="utf-8")
    assert MADE_PAGES[name] == (FOLDER / name).read_text(encoding="utf-8")


def test_no_other_page_claims_to_be_made() -> None:
    claims = {path.name for path in FOLDER.iterdir() if MADE in path.read_text(encoding="utf-8")}
    assert claims == set(MADE_PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_key_has_one_line_that_says_what_becomes_of_it(name: str) -> None:
    lines = re.findall(r"^\| `(.+?)` \|.* (\S+) \|$", MADE_PAGES[f"{name}.md"], re.MULTILINE)
    listed = {key for key, what in lines if what != "|"}
    assert set(table(PAGES[name].module)) - listed == set()


@pytest.mark.parametrize("name", PAGES)
def test_every_key_means_something(name: str) -> None:
    silent = [key for key, row in table(PAGES[name].module).items() if not (row.to or row.why)]
    assert silent == []


def test_every_field_of_a_run_is_on_the_native_page() -> None:
    text = MADE_PAGES["native.md"]
    assert [path for path in FIELDS if f"`{path}`" not in text and f"## {path}" not in text] == []


@pytest.mark.parametrize("page", ["cvs-megatron", "maxtext"])
def test_a_default_is_shown_as_a_file_has_it(page: str) -> None:
    for name, key in table(PAGES[page].module).items():
        if key.shown:
            assert key.read(json.loads(key.shown) if key.shown.startswith("[") else key.shown) == key.default
            line = next(line for line in MADE_PAGES[f"{page}.md"].splitlines() if line.startswith(f"| `{name}` |"))
            assert f"`{key.shown}`" in line

"""The tables of CVS's and NxDT's keys beside what these systems document, and their code's own defaults.

`documented.yaml` has the facts. What the documentation gets wrong, the deviations of the dialect name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from seatrial.dialects.cvs import jax, megatron
from seatrial.dialects.nxdt import DEVIATIONS, KEYS
from seatrial.dialects.table.keys import OMIT, Key
from tests.helpers.seeds import ROOT

FACTS = yaml.safe_load((ROOT / "tests" / "dialects" / "documented.yaml").read_text(encoding="utf-8"))
CVS = {"cvs-jax": jax, "cvs-megatron": megatron}
FILES = {"cvs-jax": "mi*_llama*3_1_*b.json", "cvs-megatron": "*_megatron_llama_*.json"}
OF_USERS = ("hf_train_files", "tokenizer_path", "config.container_config.device_list")  # folders and devices
DEVIATING = {each.key for each in DEVIATIONS}

Rows = list[tuple[str, str, Any]]


def pairs(*systems: str) -> Rows:
    """(system, key, value) of each value of some systems in the facts."""
    found: Rows = []
    for system in systems:
        for name, values in FACTS[system].items():
            found += [(system, name, value) for value in (values if isinstance(values, list) else [values])]
    return found


def row(system: str, name: str) -> Key:
    """The row of a key; one in a section that is the user's own has that of its section."""
    table = CVS[system]
    return table.KEYS.get(name) or next(key for section, key in table.SECTIONS.items() if name.startswith(section))


@pytest.mark.parametrize(("system", "name", "value"), pairs(*CVS))
def test_a_value_that_cvs_documents_is_read_and_asks_for_nothing_special(system: str, name: str, value: Any) -> None:
    key = row(system, name)
    read = key.read(value)
    assert key.disposition != "rejected"
    if key.quiet:
        assert key.read(value) in key.quiet
    if key.shown:
        assert (read == key.default) == (value == key.shown)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from leaves(value, f"{path}.{name}")
    else:
        yield path, tree


@pytest.mark.parametrize("system", CVS)
def test_a_documented_value_that_no_file_of_cvs_has_is_a_deviation(system: str) -> None:
    files = sorted((ROOT / "configs" / "cvs").glob(FILES[system]))
    assert len(files) >= 3
    given: dict[str, set[str]] = {}
    for path in files:
        for name, value in leaves(json.loads(path.read_text(encoding="utf-8"))):
            given.setdefault(name.rpartition(".")[2], set()).add(str(value).casefold())
    differing = {
        name
        for _, name, value in pairs(system)
        if name not in OF_USERS and str(value).casefold() not in given.get(name.rpartition(".")[2], ())
    }
    known = {each.key for each in CVS[system].DEVIATIONS}
    assert differing - known == set()
    if system == "cvs-jax":  # the check sees the slips that are known
        assert {"vocab_size", "head_dim", "config.container_config.env_dict.JAX_COORDINATOR_PORT"} <= differing


def says(name: str, value: Any, keys: Mapping[str, Key] = KEYS) -> bool:
    """True if a row of NxDT has a value as that of a file without the key: as its default, or in what it says of it."""
    key = keys[name]
    if key.disposition == "rejected":
        return key.read(value) in key.quiet
    words = re.findall(r"(\S+) where (?:it is )?not given", key.meaning)
    if key.default is not OMIT:
        return bool(key.read(value) == key.default)
    if words:
        return bool(yaml.safe_load(words[-1]) == value)
    return key.disposition in ("ignored", "equivalent") or (value == -1 and "-1 keeps" in key.meaning)


_DEFAULTS = [(name, value) for name, value in FACTS["nxdt-documented"].items()]


@pytest.mark.parametrize(("name", "value"), _DEFAULTS)
def test_a_default_that_nxdt_documents_is_the_rows(name: str, value: Any) -> None:
    KEYS[name].read(value)
    assert says(name, value)


@pytest.mark.parametrize(("name", "value"), FACTS["nxdt-code"].items())
def test_a_default_of_nxdts_code_is_the_rows_or_a_deviation(name: str, value: Any) -> None:
    KEYS[name].read(value)
    assert says(name, value) or name in DEVIATING


def test_a_wrong_default_would_be_seen() -> None:
    assert not says("model.hidden_dropout", 0.2)
    assert not says("model_alignment_strategy.dpo.kl_beta", 0.1)
    assert not says("data.fine_tuning", True)
    assert not says("model.num_layers", 12)


@pytest.mark.parametrize(("name", "value"), [each[1:] for each in pairs("nxdt-values")])
def test_a_value_that_nxdt_documents_is_read(name: str, value: Any) -> None:
    KEYS[name].read(value)

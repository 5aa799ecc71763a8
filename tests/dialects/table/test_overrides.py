"""The key that an override means, and the messages where that is not clear."""

from __future__ import annotations

import pytest

from seatrial.dialects.table.overrides import Override, parse, resolve
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError

GIVEN = ("config.nnodes", "config.timeout", "cell.flags.timeout", "cell.a.b")
POSSIBLE = (*GIVEN, "config.nic_type", "cell.nic_type", "cell.dtype")
OPEN = ("cell.flags", "config.env_dict")


def meant(key: str) -> str:
    return resolve(Override(key=key, text="1"), given=GIVEN, possible=POSSIBLE, open_=OPEN)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("config.nnodes", "config.nnodes"),
        ("nnodes", "config.nnodes"),
        ("a.b", "cell.a.b"),
        ("config.timeout", "config.timeout"),  # a full path, though another key ends in its last part
        ("flags.timeout", "cell.flags.timeout"),
        ("dtype", "cell.dtype"),  # not in the file, but it could be
        ("config.nic_type", "config.nic_type"),
        ("flags.xla_gpu_x", "cell.flags.xla_gpu_x"),  # new in a mapping whose keys are the user's own
        ("env_dict.A.B", "config.env_dict.A.B"),
    ],
)
def test_a_key_is_meant_by_any_unique_suffix_of_its_path(key: str, path: str) -> None:
    assert meant(key) == path


@pytest.mark.parametrize(
    ("key", "code", "said"),
    [
        ("timeout", "ambiguous-override", "config.timeout, cell.flags.timeout"),
        ("nic_type", "ambiguous-override", "config.nic_type, cell.nic_type"),
        ("nodes", "unknown-override", "did you mean config.nnodes?"),
        ("config.nnode", "unknown-override", "did you mean config.nnodes"),
        ("odes", "unknown-override", ""),  # part of a name is no suffix of a path
        ("zzz", "unknown-override", "remove it, or correct its name"),
    ],
)
def test_an_unclear_key_is_an_error_that_lists_what_could_be_meant(key: str, code: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        meant(key)
    (finding,) = caught.value.problems
    assert (finding.code, finding.path) == (code, key)
    assert said in f"{finding.why} {finding.fix}"


def test_arguments_are_split_at_the_first_equals_sign() -> None:
    assert parse(["a.b=c=d", "--x=", "y= 1 "]) == [
        Override(key="a.b", text="c=d"),
        Override(key="x", text=""),
        Override(key="y", text=" 1 "),
    ]


def test_every_argument_that_is_no_override_is_named() -> None:
    with pytest.raises(InputError) as caught:
        parse(["a=1", "b", "=2", "--", "c=3"])
    assert [finding.path for finding in caught.value.problems] == ["b", "=2", "--"]


def test_suggestions_compare_whole_paths_and_last_parts() -> None:
    assert did_you_mean("ici_fdsp_parallelism", ["ici_fsdp_parallelism", "dtype"]) == (
        "did you mean ici_fsdp_parallelism?"
    )
    assert did_you_mean("bach.sequence_lenght", ["batch.sequence_length"]) == "did you mean batch.sequence_length?"

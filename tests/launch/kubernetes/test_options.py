"""The options of a JobSet: a closed table, whose values can be nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.errors import InputError
from seatrial.launch.kubernetes.options import OPTIONS, options


def test_options_are_read_and_what_may_be_repeated_all_counts() -> None:
    found = options(["namespace=ml", "node_selector=a=b", "--node-selector=c.d/e=", "pvc=x", "pvc=runs"], "2h")
    assert found.get("namespace") == "ml"
    assert found.get("pvc") == "runs"
    assert found.all("node-selector") == ("a=b", "c.d/e=")
    assert found.all("volume") == ()
    assert (found.queue_seconds, found.seconds("keep"), found.seconds("time")) == (7200, 1800, None)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("name-space=ml", "did you mean.*namespace"),
        ("namespace", "namespace has no value"),
        ("namespace=", "cannot be ''"),
        ("namespace=ML", "lower-case"),
        ("namespace=a\nb", "cannot be"),
        ("image=--privileged", "an image"),
        ("image=a b", "an image"),
        ("node-selector=gpu", "LABEL=VALUE"),
        ("toleration=a=b:Never", "TAINT"),
        ("exclude=a,,b", "NODE,NODE"),
        ("gpu=8", "a resource"),
        ("rdma=rdma/hca:0", "a number"),
        ("host-network=true", "yes or no"),
        ("memory=512GB", "512Gi"),
        ("volume=data:relative", "CLAIM:/PATH"),
        ("volume=data:/a:rw", "CLAIM:/PATH"),
        ("secret=HF_TOKEN=hf", "VARIABLE=SECRET/KEY"),
        ("time=soon", "a duration"),
        ("nodes=0", "number of pods"),
    ],
)
def test_what_is_no_option_is_told_with_its_form(word: str, says: str) -> None:
    with pytest.raises(InputError) as told:
        options([word])
    (problem,) = told.value.problems
    assert problem.path == "--kubernetes"
    assert re.search(says, f"{problem.why}: {problem.fix}", re.IGNORECASE), problem


@given(st.sampled_from(sorted(OPTIONS)), st.text(st.characters(categories=("Cc", "Zl", "Zp", "Zs", "Cf")), min_size=1))
def test_no_value_holds_a_control_character(key: str, text: str) -> None:
    for value in (text, f"a{text}", f"{text}a", f"a{text}b=c"):
        with pytest.raises(InputError):
            options([f"{key}={value}"])

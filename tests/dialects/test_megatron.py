"""Megatron-LM commands: what is stated, what Megatron derives, what it refuses, and back."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings

from seatrial.dialects import megatron
from seatrial.spec import RunSpec
from tests.dialects.specs import assert_round_trip, specs


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(specs())
def test_what_is_written_as_arguments_reads_back_as_it_was(spec: RunSpec) -> None:
    assert_round_trip(megatron.write, megatron.read, spec)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(specs())
def test_what_is_written_as_variables_reads_back_as_it_was(spec: RunSpec) -> None:
    assert_round_trip(partial(megatron.write, style="environment"), megatron.read, spec)

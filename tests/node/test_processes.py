"""The sentence about a process that has ended."""

from __future__ import annotations

import pytest

from seatrial.node.processes import describe_exit


@pytest.mark.parametrize(
    ("exit_code", "signal_number", "sentence"),
    [
        (1, None, "ended with exit code 1"),
        (0, None, "ended with exit code 0"),
        (None, 9, "was ended by SIGKILL (9) (killed from outside, or out of memory)"),
        (None, 6, "was ended by SIGABRT (6) (it aborted itself)"),
        (134, None, "ended as if by SIGABRT (6) (it aborted itself)"),
        (137, None, "ended as if by SIGKILL (9) (killed from outside, or out of memory)"),
        (139, None, "ended as if by SIGSEGV (11) (invalid memory access)"),
        (None, 63, "was ended by signal (63)"),
        (255, None, "ended with exit code 255"),
    ],
)
def test_how_a_process_ended_is_a_sentence(exit_code: int | None, signal_number: int | None, sentence: str) -> None:
    assert describe_exit(exit_code, signal_number) == sentence

"""Lines made to take long."""

from __future__ import annotations

import pytest

from seatrial import logs
from tests.helpers.log_cases import steps

LONG = 1 << 15
STARTS = {
    "maxtext": "completed step: 7, seconds: 1.000, ",
    "maxtext_checkpoint": "Finished save in 1.00 seconds @ ",
    "torchtitan": "step: 7  loss: 1.00000  memory: 1.00GiB(1.00%)  ",
    "nemo2": "Training epoch 0, iteration 7/99 | reduced_train_loss: 1.0 | ",
    "nemo1": "Epoch 0: :  10%|# | 8/99 [00:01<00:02, reduced_train_loss=1.0, global_step=7.000, ",
    "mlperf": ':::MLLOG {"key": ',
    "transformers": "{'loss': ",
}
MORE = ["a", "1", " ", "a ", "1,", "[", "a=", "a: 1.0 | "]


@pytest.mark.parametrize("start", STARTS)
def test_a_hostile_line_is_read_in_bounded_time(start: str) -> None:
    text = [STARTS[start] + more * (LONG // len(more)) + " x" for more in MORE]
    text += [STARTS[start] * (LONG // len(STARTS[start]))]
    assert {step.step for step in steps(logs.parse(text))} <= {7, 0, 1}

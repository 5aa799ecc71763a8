"""Prints what Hugging Face's Trainer prints of a run, by the Trainer's own callbacks, and writes its own state.

    python -m tests.logs.hf_run BAR STEPS EVERY PER_EPOCH SECONDS STATE

The Trainer itself needs `accelerate`; what it prints does not. `BAR` is "bar" or "plain"; each step takes `SECONDS`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerControl, TrainerState
from transformers.trainer_utils import speed_metrics


def main(bar: str, steps: int, every: int, per_epoch: int, seconds: float, path: str) -> None:
    state, control = TrainerState(max_steps=steps), TrainerControl()
    callback: Any = ProgressCallback() if bar == "bar" else PrinterCallback()

    def log(values: dict[str, Any]) -> None:
        values["epoch"] = state.epoch
        state.log_history.append({**values, "step": state.global_step})
        callback.on_log(None, state, control, logs=values)

    began = time.time()
    callback.on_train_begin(None, state, control)
    for step in range(1, steps + 1):
        time.sleep(seconds)
        state.global_step, state.epoch = step, step / per_epoch
        callback.on_step_end(None, state, control)
        if step % every == 0:
            log({"loss": loss_at(step), "grad_norm": 1 + step / 7, "learning_rate": 1e-4 / step})
    log(speed_metrics("train", began, num_samples=4 * steps, num_steps=steps) | {"train_loss": 2.5})
    callback.on_train_end(None, state, control)
    state.save_to_json(path)


def loss_at(step: int) -> float:
    """The loss that is printed at a step."""
    return 2 + 3 / (1 + step / 10)


if __name__ == "__main__":
    _, bar, steps, every, per_epoch, seconds, path = sys.argv
    main(bar, int(steps), int(every), int(per_epoch), float(seconds), path)

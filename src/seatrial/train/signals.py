"""Requests to stop, and how all processes of a run come to stop after the same step."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from seatrial.spec import AXES
from seatrial.train.sharding import named_sharding
from seatrial.train.step import Batch, Metrics, State
from seatrial.train.trainer import Trainer

SIGNALS = (signal.SIGTERM, signal.SIGINT)
VOTES = "votes"


class Requests:
    """SIGTERM and SIGINT from now on: the first asks to stop, a second ends the process at once.

    Python runs a handler only between its own instructions, so a process that waits for a device would not notice. The
    file descriptor is written to by the handler in C, and a thread reads it.
    """

    def __init__(self) -> None:
        self.stop = False
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()

    def _watch(self, reader: int) -> None:
        while received := os.read(reader, 1):
            if received[0] in SIGNALS:
                if self.stop:
                    os._exit(128 + received[0])
                self.stop = True


# What any process wants becomes what all of them do, after the same step: an all-reduce of two numbers. It is a part of
# the step's own program, for one beside it could meet the step's collectives in another order on another process; and
# it is read with the step's numbers, so nothing waits for it.


def vote(mesh: Mesh, *, stop: bool, save: bool) -> jax.Array:
    """The requests of this process, as the program of a step takes them."""
    wanted = np.array([[stop, save]], np.int32)
    return jax.make_array_from_callback((mesh.size, 2), named_sharding(mesh, (AXES, ())), lambda _: wanted)


def compile_step(trainer: Trainer, state: State, batch: Batch) -> Any:
    """(state, batch, vote) → (state, numbers), for states and batches like these.

    Among the numbers, under VOTES, is what at least one process wants: (stop, save).
    """

    def step(state: State, batch: Batch, votes: jax.Array) -> tuple[State, Metrics]:
        state, numbers = trainer.bare_step(state, batch)
        return state, numbers | {VOTES: jnp.max(votes, axis=0)}

    votes = vote(trainer.mesh, stop=False, save=False)
    program = jax.jit(step, donate_argnums=0, compiler_options=dict(trainer.options))
    return program.lower(state, batch, votes).compile()

"""Requests to stop, and how all processes of a run come to stop after the same step."""

from __future__ import annotations

import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from seatrial.spec import AXES
from seatrial.train.sharding import named_sharding

SIGNALS = (signal.SIGTERM, signal.SIGINT)


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


class Votes:
    """What any process wants becomes what all of them do, after the same step: an all-reduce of two numbers.

    It is dispatched behind the step, and read when the step's own numbers are, so nothing waits for it.
    """

    def __init__(self, mesh: Mesh, num_processes: int) -> None:
        self._alone = num_processes == 1
        self._shape = (mesh.size, 2)
        self._sharding = named_sharding(mesh, (AXES, ()))
        self._any = jax.jit(lambda votes: jnp.max(votes, axis=0), out_shardings=named_sharding(mesh, ((),)))

    def cast(self, *, stop: bool, save: bool) -> np.ndarray | jax.Array:
        """Votes of this process; the result, once it is read, is what at least one process voted for."""
        votes = np.array([[stop, save]], np.int32)
        if self._alone:
            return votes[0]
        return self._any(jax.make_array_from_callback(self._shape, self._sharding, lambda _: votes))

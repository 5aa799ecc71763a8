"""The speed of XLA's matrix product on this machine with the trainer's flags, in GFLOP/s; prints one JSON object."""

from __future__ import annotations

import json
import statistics
import time

import jax
import jax.numpy as jnp
from jax import lax

from seatrial import xla_flags

SIZE, REPEATS = 2048, 15


def measure(dtype: jnp.dtype) -> float:
    a, b = (jax.random.normal(jax.random.key(i), (SIZE, SIZE), jnp.float32).astype(dtype) for i in (0, 1))
    dims = (((1,), (0,)), ((), ()))
    product = jax.jit(lambda a, b: lax.dot_general(a, b, dims, preferred_element_type=jnp.float32))
    jax.block_until_ready(product(a, b))
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(product(a, b))
        seconds.append(time.perf_counter() - start)
    return 2 * SIZE**3 / statistics.median(seconds) / 1e9


if __name__ == "__main__":
    xla_flags.settle(cpu_devices=1)  # before the first computation, at which XLA reads them
    print(json.dumps({"bfloat16": measure(jnp.bfloat16), "float32": measure(jnp.float32)}))

"""Eight virtual CPU devices for every test of the trainer, and a tiny spec to vary."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest

from tests.helpers.compiling import COMPILED, quick_flags

_FLAGS = (f"--{name}={value}" for name, value in quick_flags().items())
os.environ["XLA_FLAGS"] = " ".join((*os.environ.get("XLA_FLAGS", "").split(), *_FLAGS))
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session", autouse=True)
def compiled_once_here(compiled_once: str) -> None:
    """The tests' own process keeps its programs there too."""
    jax.config.update("jax_compilation_cache_dir", compiled_once)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", COMPILED)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)

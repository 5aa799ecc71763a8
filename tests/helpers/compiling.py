"""Settings for compiling in tests: quickly, and slow programs only once a session."""

from __future__ import annotations

from seatrial import xla_flags

COMPILED = 0.2  # programs that took so many seconds are compiled once a session
# Tests compile far more than they compute. LLVM's optimisations, XLA's newer way to make loops and what it takes to
# spread one program over threads are four fifths of the time that a compilation takes.
_QUICK = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}


def quick_flags() -> dict[str, str]:
    """Those of XLA's flags for it that the installed jaxlib knows; newer ones do not know all."""
    known = xla_flags.known(_QUICK)
    return {name: value for name, value in _QUICK.items() if name in known}


def quick_variables() -> dict[str, str]:
    """The same for a process that is started, as its environment says it."""
    flags = " ".join(f"--{name}={value}" for name, value in quick_flags().items())
    return {"XLA_FLAGS": flags, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(COMPILED)}

"""Prints, as JSON, the seconds of a step of the run whose spec is in a file, on virtual devices of this processor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from seatrial.spec import from_dict
from seatrial.xla_flags import settle


def main() -> None:
    spec = from_dict(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    devices = spec.topology.num_devices
    settle(cpu_devices=devices)
    import jax  # late: it reads the flags when it is loaded

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    from seatrial.train.calibrate import step_seconds

    print(json.dumps({"seconds": step_seconds(spec, runs=7)}))


if __name__ == "__main__":
    main()

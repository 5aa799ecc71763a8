"""Prints, as JSON, the seconds of a step of the run whose spec is in a file, on virtual devices of this processor.

step_seconds.py SPEC RUNS COORDINATOR NUMBER      (of several processes: where they meet, and which this is)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from seatrial.spec import from_dict
from seatrial.xla_flags import settle


def main() -> None:
    path, runs, coordinator, number = sys.argv[1:5]
    spec = from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    devices = spec.topology.devices_per_node
    settle(cpu_devices=devices)
    import jax  # late: it reads the flags when it is loaded

    from seatrial.train.startup import use_cpu

    use_cpu(devices, spec.topology.num_nodes)
    if spec.topology.num_nodes > 1:
        jax.distributed.initialize(
            coordinator_address=coordinator, num_processes=spec.topology.num_nodes, process_id=int(number)
        )
    from seatrial.train.calibrate import step_seconds

    print(json.dumps({"seconds": step_seconds(spec, runs=int(runs))}))


if __name__ == "__main__":
    main()

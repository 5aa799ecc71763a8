"""`python -m seatrial.train SPEC.json --out DIR`: one trainer process. Started by name; nothing imports this."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from seatrial.errors import InputError
from seatrial.spec import from_dict
from seatrial.xla_flags import settle, settle_share


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m seatrial.train", description="One process of a training run.")
    parser.add_argument("spec", type=Path, help="the run's spec, as `spec.to_dict` gives it, in JSON")
    parser.add_argument("--out", type=Path, required=True, help="where events go")
    parser.add_argument("--process-id", type=int, default=0)
    parser.add_argument("--num-processes", type=int, default=1)
    parser.add_argument("--coordinator", help="host:port of process 0")
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--cpu-devices", type=int, help="compute on this many virtual CPU devices")
    arguments = parser.parse_args()
    spec = from_dict(json.loads(arguments.spec.read_text(encoding="utf-8")))
    settle(cpu_devices=arguments.cpu_devices, configured=spec.execution.xla_flags)
    settle_share()
    from seatrial.train.loop import train  # late: a wrong command line must not pay for jax
    from seatrial.train.startup import Place

    place = Place(
        process=arguments.process_id, num_processes=arguments.num_processes, coordinator=arguments.coordinator,
        cpu_devices=arguments.cpu_devices, attempt=arguments.attempt,
    )  # fmt: skip
    try:
        return train(spec, place, arguments.out)
    except InputError as error:
        print(f"seatrial train: {error}", file=sys.stderr, flush=True)
        if place.num_processes > 1:
            os._exit(error.exit_code)  # an orderly exit would wait for the others, and they for this one
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

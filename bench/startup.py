"""The time that a person waits for `seatrial --help`, and for `seatrial check` of each shipped configuration.

    python bench/startup.py

Each command is run once to warm the caches and then ten times, the commands taking turns, so that whatever else the
machine does falls on all of them alike. The wall time is that of a fresh process, from start to exit.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import record

ROOT = Path(__file__).parents[1]
RUNS = 10
SEATRIAL = str(Path(sys.executable).with_name("seatrial"))

# What the design asks for, in seconds; reported beside the measurement, asserted nowhere.
GOALS = {"--help": 0.15, "check": 0.5}


def _commands() -> dict[str, list[str]]:
    """The command as shown → its argument vector."""
    verbs = [["--help"], *(["check", str(path.relative_to(ROOT))] for path in sorted(ROOT.glob("configs/*/*")))]
    return {" ".join(["seatrial", *verb]): [SEATRIAL, *verb] for verb in verbs}


def _seconds(argv: list[str]) -> float:
    """Wall time of one run. A check of a file with open placeholders exits 2, which is its answer, not a failure."""
    start = time.perf_counter()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    elapsed = time.perf_counter() - start
    if done.returncode not in (0, 2) or not done.stdout:
        sys.exit(f"{' '.join(argv[1:])} ended with {done.returncode}:\n{done.stderr}")
    return elapsed


def main() -> None:
    commands = _commands()
    for argv in commands.values():
        _seconds(argv)
    seconds: dict[str, list[float]] = {shown: [] for shown in commands}
    for _ in range(RUNS):
        for shown, argv in commands.items():
            seconds[shown].append(_seconds(argv))

    print(f"   median  fastest  slowest     goal   of {RUNS} runs each")
    results = []
    for shown, times in seconds.items():
        goal = next(limit for part, limit in GOALS.items() if part in shown)
        median = statistics.median(times)
        print(*(f"{value * 1000:6.0f} ms" for value in (median, min(times), max(times), goal)), f"  {shown}", sep="")
        results.append({"command": shown, "median_seconds": median, "goal_seconds": goal, "seconds": times})

    facts = record.machine()
    print(
        f"on {facts['cpu']}, {facts['cores']} cores, load {facts['load_average']}, Python {record.versions()['python']}"
    )
    print(f"written: {record.write('startup', {'results': results}).relative_to(ROOT)}")


if __name__ == "__main__":
    main()

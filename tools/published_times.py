"""The model of time beside published training speeds: half of the rows chose its constants, the others test them.

    python -m tools.published_times estimate    writes bench/results/published_times.csv, prints how far off it is
    python -m tools.published_times fit         the constants of `estimate.time_profile` from the first half

The rows are those of dense models whose shape is known, on the devices that a data sheet describes, in bfloat16 or fp8.
What a publisher does not state is assumed: no recomputation where the run fits without, else as much as it takes; the
sequence parallelism and the distributed optimizer of Megatron; interleaved stages.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.estimate import hardware, time_profile
from seatrial.estimate.memory import decided
from seatrial.estimate.published import PublishedResult, results
from seatrial.estimate.time_model import predict
from seatrial.spec import Batch, Execution, MeshShape, Parallelism, Precision, RunSpec, Topology
from seatrial.spec.presets import MODELS

TABLE = Path(__file__).parents[1] / "bench" / "results" / "published_times.csv"
DEVICES_PER_NODE = {"gb200": 4, "gb300": 4}
CHUNK = 4  # layers of a virtual stage
TUNED = "minimal_with_context"  # Megatron-LM recomputes norms and activations, and nothing that takes long
MOST = 0.95  # of a peak
FOLDS = 4


def spec_of(row: PublishedResult) -> RunSpec | None:
    """A published run as a spec; None where its mesh does not fit its devices."""
    model = MODELS[row.model]
    tensor, stages, context = row.tensor or 1, row.pipeline or 1, row.context or 1
    maxtext = row.framework.startswith("maxtext") or row.framework == "torchtitan"
    left, rest = divmod(row.num_devices, tensor * stages * context)
    fsdp = min(row.fsdp or 1, left)
    if rest or left % fsdp or not row.global_batch_size:
        return None
    per_node = min(DEVICES_PER_NODE.get(row.device, 8), row.num_devices)
    within, across, room = {}, {}, per_node
    for axis, size in (("tensor", tensor), ("context", context), ("fsdp", fsdp), ("data", left // fsdp),
                       ("pipeline", stages)):  # fmt: skip
        within[axis] = math.gcd(size, room)
        across[axis], room = size // within[axis], room // within[axis]
    if room != 1:
        return None
    replicas = left
    micro = row.micro_batch_size or (row.global_batch_size // replicas if maxtext else 1)
    layers = model.num_layers // stages
    return RunSpec(
        name="published", dialect="megatron", model=model,
        batch=Batch(sequence_length=row.sequence_length, global_batch_size=row.global_batch_size,
                    micro_batch_size=max(1, micro)),
        steps=10,
        topology=Topology(num_nodes=row.num_devices // per_node, devices_per_node=per_node, device=row.device),
        parallelism=Parallelism(
            within_node=MeshShape(**within), across_nodes=MeshShape(**across),
            virtual_pipeline=max(1, layers // CHUNK) if stages > 1 else 1,
            sequence_parallel=tensor > 1, zero1=fsdp == 1 and not maxtext,
        ),
        precision=Precision(quantization="fp8" if row.precision == "fp8" else None, reduce_dtype="bfloat16"),
        execution=Execution(remat="auto"),
    )  # fmt: skip


def seconds_of(row: PublishedResult) -> float:
    """The step time that the published rate means."""
    tokens = (row.global_batch_size or 0) * row.sequence_length / row.num_devices
    return tokens / row.tokens_per_second_per_device


def engine_of(row: PublishedResult) -> str:
    return "maxtext" if "maxtext" in row.framework else "megatron"


@dataclass(frozen=True)
class Case:
    row: PublishedResult
    spec: RunSpec
    measured: float

    @property
    def _digest(self) -> bytes:
        """Of what was run, not of its result: rows of the same run fall on the same side."""
        r = self.row
        batch = f"{r.sequence_length} {r.global_batch_size}"
        run = f"{r.model} {r.device} {r.num_devices} {r.precision} {r.recipe} {batch} {r.framework}"
        return hashlib.sha256(run.encode()).digest()

    @property
    def held_back(self) -> bool:
        return bool(self._digest[0] & 1)

    @property
    def fold(self) -> int:
        """One of `FOLDS` parts, of which each is left out in turn."""
        return self._digest[1] % FOLDS

    @property
    def group(self) -> str:
        r = self.row
        return f"{r.model} {r.device} {r.precision} {r.framework}"


def cases() -> list[Case]:
    """Every row that the model can be compared with."""
    found: list[Case] = []
    for row in results():
        device = hardware.find(row.device)
        peak = device.peak("bfloat16", row.precision) if device else None
        known = row.model in MODELS and not row.proxy and not row.variant and row.device in time_profile.LINKS
        if known and peak and row.precision == peak[1] and (spec := spec_of(row)):
            found.append(Case(row, spec, seconds_of(row)))
    smallest: dict[tuple[str, int], str] = {}  # a publisher recomputes as much at every scale
    for case in sorted(found, key=lambda case: case.row.num_devices):
        if engine_of(case.row) == "maxtext":
            remat = decided(case.spec, "maxtext").execution.remat
        else:
            remat = TUNED
        smallest.setdefault((case.group, case.row.sequence_length), remat)
    return [
        replace(
            case, spec=replace(case.spec, execution=Execution(remat=smallest[case.group, case.row.sequence_length]))
        )
        for case in found
    ]


def measured_over_estimated(case: Case, profile: time_profile.Profile | None = None) -> float:
    """The ratio of the published step time to the model's."""
    profile = profile or time_profile.published(hardware.find(case.row.device))
    found = predict(case.spec, engine_of(case.row), profile)
    assert found is not None
    return case.measured / found.step_seconds


# --- constants --------------------------------------------------------------------------------------------------------

FAMILIES = {"hopper": time_profile.HOPPER, "blackwell": time_profile.BLACKWELL, "ultra": time_profile.ULTRA}
FITTED = ("bfloat16", "fp8", "attention")


def _family(device: str) -> str:
    shares = time_profile.SHARES.get(device, time_profile.OTHERS)
    return next((name for name, each in FAMILIES.items() if each is shares), "others")


def fit(calibration: Sequence[Case]) -> dict[str, time_profile.Shares]:
    """The shares by family of devices that bring the estimates nearest to the published times, by coordinate search.

    Each group of alike runs counts as much as the root of its number. `felt` is one for all.
    """
    weights = Counter(case.group for case in calibration)
    shares = dict(FAMILIES)

    def loss(tried: Mapping[str, time_profile.Shares]) -> float:
        total = 0.0
        for case in calibration:
            own = tried.get(_family(case.row.device))
            if own is None:
                continue
            profile = time_profile.published(hardware.find(case.row.device), own)
            total += abs(math.log(measured_over_estimated(case, profile))) / weights[case.group] ** 0.5
        return total

    best, step = loss(shares), 0.05
    while step > 0.003:
        moved = False
        moves = [((name,), field) for name in shares for field in FITTED] + [(tuple(shares), "felt")]
        for (names, field), factor in itertools.product(moves, (1 + step, 1 / (1 + step))):
            new = {name: replace(shares[name], **{field: getattr(shares[name], field) * factor}) for name in names}
            if any(getattr(each, field) > MOST for each in new.values()):
                continue
            if (found := loss(shares | new)) < best - 1e-6:
                best, shares, moved = found, shares | new, True
        step /= 1 if moved else 2
    return shares


def quantiles(ratios: Sequence[float], share: float = 0.8) -> tuple[float, float]:
    """Between which `share` of the ratios lie."""
    cut = statistics.quantiles(ratios, n=100, method="inclusive")
    return cut[round(50 * (1 - share)) - 1], cut[round(100 - 50 * (1 - share)) - 1]


def left_out(calibration: Sequence[Case]) -> list[float]:
    """Published over estimated, each run by constants from other parts than its own: as of the half that tests."""
    ratios = []
    for fold in range(FOLDS):
        shares = fit([case for case in calibration if case.fold != fold])
        for case in (case for case in calibration if case.fold == fold):
            profile = time_profile.published(hardware.find(case.row.device), shares.get(_family(case.row.device)))
            ratios.append(measured_over_estimated(case, profile))
    return ratios


def _print_fit() -> None:
    calibration = [case for case in cases() if not case.held_back]
    for name, found in fit(calibration).items():
        print(name, ", ".join(f"{field}={getattr(found, field):.3f}" for field in (*FITTED, "felt")))
    low, high = quantiles(left_out(calibration))
    print(f"low={low:.3f}, high={high:.3f} of {len(calibration)} rows, each of {FOLDS} parts left out in turn")


# --- the table --------------------------------------------------------------------------------------------------------


def rows() -> Iterator[dict[str, object]]:
    """The table: what was run and assumed of it, its published and its estimated step time."""
    for case in cases():
        row, profile = case.row, time_profile.published(hardware.find(case.row.device))
        estimate = predict(case.spec, engine_of(row), profile)
        assert estimate is not None
        low, high = estimate.interval
        yield {
            "half": "held back" if case.held_back else "calibration", "model": row.model, "device": row.device,
            "num_devices": row.num_devices, "precision": row.precision, "recipe": row.recipe,
            "sequence_length": row.sequence_length, "global_batch_size": row.global_batch_size,
            "mesh": " ".join(f"{axis} {size}" for axis, size in case.spec.mesh.items() if size > 1),
            "remat": case.spec.execution.remat, "framework": row.framework, "published": row.published,
            "published_seconds": f"{case.measured:.4g}", "estimated_seconds": f"{estimate.step_seconds:.4g}",
            "low_seconds": f"{low:.4g}", "high_seconds": f"{high:.4g}",
            "published_over_estimated": f"{case.measured / estimate.step_seconds:.3f}",
            "source": row.source,
        }  # fmt: skip


def read() -> list[dict[str, str]]:
    """The table as it was written."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True, kw_only=True)
class Result:
    """Of some rows: how many lie within the stated interval, half its width, and how far off the estimates are."""

    rows: int
    inside: float
    median_half_width: float
    median_error: float
    within_10_percent: float


def result_of(found: Sequence[Case]) -> Result:
    """The accuracy of the model on some rows."""
    ratios, widths, inside = [], [], 0
    for case in found:
        profile = time_profile.published(hardware.find(case.row.device))
        assert profile is not None
        ratios.append(measured_over_estimated(case, profile))
        widths.append((profile.high - profile.low) / 2)
        inside += profile.low <= ratios[-1] <= profile.high
    errors = [abs(ratio - 1) for ratio in ratios]
    return Result(
        rows=len(found), inside=inside / len(found), median_half_width=statistics.median(widths),
        median_error=statistics.median(errors), within_10_percent=sum(e <= 0.1 for e in errors) / len(errors),
    )  # fmt: skip


def recipe() -> list[tuple[str, int, float, float]]:
    """The weak-scaling table of llama2-70b with MaxText: precision, devices, seconds, and estimated ones, times what
    makes it right on 64 devices."""
    found = []
    for precision in ("bfloat16", "fp8"):
        own = [c for c in cases() if c.row.model == "llama2-70b" and c.row.precision == precision]
        own.sort(key=lambda case: case.row.num_devices)
        first = measured_over_estimated(own[0])
        found += [
            (precision, c.row.num_devices, c.measured, c.measured / measured_over_estimated(c) * first) for c in own
        ]
    return found


def _print_estimate() -> None:
    found = cases()
    table = list(rows())
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, table[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    halves = {"calibration": [c for c in found if not c.held_back], "held back": [c for c in found if c.held_back]}
    print("rows          number  in the interval  half-width  median error  within 10%")
    for name, half in halves.items():
        r = result_of(half)
        print(f"{name:12} {r.rows:6} {r.inside:16.1%} {r.median_half_width:11.1%} {r.median_error:13.1%} "
              f"{r.within_10_percent:11.1%}")  # fmt: skip
    print("\nllama2-70b, MaxText, right on 64 devices:  devices  published  estimated")
    for precision, devices, seconds, estimated in recipe():
        print(f"{precision:43}{devices:7} {seconds:8.3f} s {estimated:8.3f} s {estimated / seconds - 1:+7.1%}")
    print("written:", TABLE.name)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.published_times", description="See the module's text.")
    parser.add_argument("what", choices=("estimate", "fit"))
    {"estimate": _print_estimate, "fit": _print_fit}[parser.parse_args().what]()


if __name__ == "__main__":
    main()

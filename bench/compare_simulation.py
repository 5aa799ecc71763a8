"""The share of right answers of `seatrial compare`: on simulated runs of the same speed, and where one is 3% slower.

    python bench/compare_simulation.py [PAIRS]

Each case draws PAIRS (20000) pairs of runs of equal speed, of 30, 100 or 1000 steady steps (of 1000, a quarter as
many; of several runs a side, whose rate is close to what is allowed, five times as many), and a fifth as many where one
is slower. Step times are around half a second with
noise of 1%, skewed, 2% of them spikes up to three times as long, printed in milliseconds. The steps are independent,
resemble their neighbours (AR(1) of 0.5 or 0.9), or are a slow wave below independent noise (half each). Between runs
there is none, or 0.5%.

  former     blocks of five steps, as `compare` judged before, at 95%
  automatic  blocks whose length comes from the series (Politis & White 2004, 2009)
  window     Sokal's correlation time alone, with Student's quantile
  whitened   the order statistics' variance by a pre-whitened kernel (Andrews & Monahan 1992)
  alone      each run's own correlation time and degrees of freedom, which `compare` did before
  ours       what the product does: `history.within` for one run a side, `history.between` for several

All but the first use the product's level. `false` is the share of pairs of equal speed that are called different,
either way, and `false_interval` its 95% interval (Wilson 1927). Where one is slower by 3%, `found` is the share of
pairs that are called slower, `inconclusive` that of those whose interval has both 0 and 3% in it, and `missed` the
rest: they are said to be as fast. The same for level shifts: `shift_false` of steady runs have one, and it is
found (alone, within a step) in `shift_found` of the runs that get 5% slower after two fifths of their steps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import record
from numpy.typing import NDArray

from seatrial.history.between import ratio_between, spread_of
from seatrial.history.compare import FOUND, LEVEL
from seatrial.history.within import ratio_within
from seatrial.metrics import dependence
from seatrial.metrics.drift import find_drift
from seatrial.metrics.interval import Ratio, median_interval, ratio_of_intervals, relative_rounding
from seatrial.metrics.shifts import find_shifts

Values = NDArray[np.float64]
Interval = Callable[[Values, float], tuple[float, float]]

SEED = 20261125
NOISE, SLOWER, SHIFT = 0.01, 0.03, 0.05
SKEW, SPIKES, SECONDS = 0.2, 0.02, 0.5
LENGTHS = (30, 100, 1000)
BETWEEN, RUNS = 0.005, 3
RESAMPLES = 200  # of the bootstraps: enough for rates
FORMER_LEVEL = 0.95
WORKERS = 2
AT_ONCE = 1000  # pairs that are drawn together
COMPARED = 100  # pairs, for the methods that were not chosen
KINDS: dict[str, float | None] = {"independent": 0.0, "AR 0.5": 0.5, "AR 0.9": 0.9, "wave and noise": None}


def latent(rng: np.random.Generator, count: int, n: int, likeness: float) -> Values:
    """An AR(1) of unit variance, one a row."""
    values = rng.standard_normal((count, n))
    for step in range(1, n):
        values[:, step] = likeness * values[:, step - 1] + math.sqrt(1 - likeness**2) * values[:, step]
    return values


def runs(
    rng: np.random.Generator, kind: str, count: int, n: int, *, slower: float = 0.0, between: float = 0.0
) -> Values:
    """The step times of so many runs in seconds, as a log prints them."""
    likeness = KINDS[kind]
    if likeness is None:
        normal = math.sqrt(0.5) * (latent(rng, count, n, 0.9) + rng.standard_normal((count, n)))
    else:
        normal = latent(rng, count, n, likeness)
    skewed = normal + SKEW * (normal**2 - 1)
    own = between * rng.standard_normal((count, 1))
    seconds = SECONDS * (1 + slower) * np.exp(NOISE * skewed + own)
    spikes = rng.random((count, n)) < SPIKES
    return np.round(np.where(spikes, seconds * rng.uniform(1.2, 3, (count, n)), seconds), 3)


def resampled(values: Values, block: int, level: float) -> tuple[float, float]:
    """The percentiles of the medians of series made of blocks of neighbours; the two ends are neighbours."""
    n = len(values)
    rng = np.random.default_rng(SEED)
    starts = rng.integers(0, n, size=(RESAMPLES, -(-n // block)))
    places = ((starts[:, :, None] + np.arange(block)) % n).reshape(RESAMPLES, -1)[:, :n]
    medians = np.median(values[places], axis=1)
    low, high = np.percentile(medians, [50 * (1 - level), 50 * (1 + level)])
    middle = float(np.median(values))
    return min(float(low), middle), max(float(high), middle)


def former(values: Values, _: float) -> tuple[float, float]:
    """The wider of the independent order statistics' and of blocks of five."""
    n, ordered = len(values), np.sort(values)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = resampled(values, 5, FORMER_LEVEL)
    first, last = math.floor(n / 2 - reach), math.ceil(n / 2 + 1 + reach)
    return min(low, float(ordered[first - 1])), max(high, float(ordered[last - 1]))


def correlations(values: Values) -> Values:
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * len(values))
    found: Values = np.fft.irfft(spectrum * np.conj(spectrum))[: len(values)]
    return found / found[0] if found[0] else np.eye(1, len(values))[0]


def block_length(values: Values) -> int:
    """The circular bootstrap's (Politis & White 2004, with the correction of 2009)."""
    n, found = len(values), correlations(dependence.midranks(values))
    limit, wanted = 2 * math.sqrt(math.log10(n) / n), max(5, round(math.sqrt(math.log10(n))))
    longest = math.ceil(math.sqrt(n)) + wanted
    small = np.abs(found[1 : longest + 1]) < limit
    lag = next((k for k in range(len(small) - wanted + 1) if small[k : k + wanted].all()), len(small))
    width = min(2 * max(lag, 1), longest, n - 1)
    k = np.arange(1, width + 1)
    weights = np.clip(2 * (1 - k / width), 0, 1) * found[1 : width + 1]
    g, d = 2 * float((weights * k).sum()), 4 / 3 * (1 + 2 * float(weights.sum())) ** 2
    length = (2 * g * g / max(d, 1e-12)) ** (1 / 3) * n ** (1 / 3)
    return int(np.clip(math.ceil(length), 1, math.ceil(min(3 * math.sqrt(n), n / 3))))


def automatic(values: Values, level: float) -> tuple[float, float]:
    return resampled(values, block_length(values), level)


def at_time(values: Values, level: float, found: float) -> tuple[float, float]:
    """The product's interval with another correlation time."""
    size = len(values) / min(max(found, 1.0), len(values) / 3)
    reach = dependence.student_quantile(level, size - 1) / math.sqrt(size) / 2
    middle, inner = float(np.median(values)), min(reach, 1 / 3)
    low, high = np.quantile(values, [0.5 - inner, 0.5 + inner])
    return middle * (low / middle) ** (reach / inner), middle * (high / middle) ** (reach / inner)


def window(values: Values, level: float) -> tuple[float, float]:
    n = len(values)
    sums = 2 * np.cumsum(correlations(dependence.midranks(values))) - 1
    enough = np.flatnonzero(np.arange(n) >= 5 * sums)
    return at_time(values, level, float(sums[enough[0] if len(enough) else n - 1]))


def whitened(values: Values, level: float) -> tuple[float, float]:
    """The long-run variance of whether a step is above the median: an AR(1) is removed, the rest summed (Bartlett)."""
    above = np.where(values > np.median(values), 1.0, -1.0)
    above -= above.mean()
    rho = min(0.97, float(correlations(above)[1]))
    rest = above[1:] - rho * above[:-1]
    lags = math.floor(4 * (len(rest) / 100) ** (2 / 9))
    found = correlations(rest)
    long_run = float(rest.var()) * (1 + 2 * sum((1 - k / (lags + 1)) * found[k] for k in range(1, lags + 1)))
    return at_time(values, level, long_run / (1 - rho) ** 2 / float(above.var()))


METHODS: dict[str, Interval] = {
    "former": former, "automatic": automatic, "window": window, "whitened": whitened, "alone": median_interval,
}  # fmt: skip


def ours(a: Values, b: Values) -> Ratio:
    """As `compare` does it for one run a side."""
    return ratio_within([a], [b], LEVEL).rounded(relative_rounding(a) + relative_rounding(b))


def ratio(a: Values, b: Values, interval: Interval) -> Ratio:
    """Median of b over that of a, with what rounding may have done, by another interval for each."""
    one, other = ((float(np.median(values)), *interval(values, LEVEL)) for values in (a, b))
    return ratio_of_intervals(one, other).rounded(relative_rounding(a) + relative_rounding(b))


def several(a: Values, b: Values) -> Ratio:
    """As `compare` does it for several runs a side; a run is a row."""
    one, other = (np.median(side, axis=1).tolist() for side in (a, b))
    spread = spread_of([one, other])
    assert spread is not None
    rounding = sum(max(relative_rounding(run) for run in side) for side in (a, b))
    return ratio_between(one, other, spread, LEVEL).no_surer_than(rounding)


def beside_history(a: Values, b: Values) -> Ratio:
    """One run a side, and as many others in the history: of `a` the first row is compared, the others are these."""
    spread = spread_of([np.median(a[1:], axis=1).tolist()])
    assert spread is not None
    one, other = (float(np.median(side[0])) for side in (a, b))
    rounding = relative_rounding(a[0]) + relative_rounding(b[0])
    between = ratio_between([one], [other], spread, LEVEL)
    return ratio_within([a[0]], [b[0]], LEVEL).widened(between).rounded(rounding)


def rates(ratios_same: list[Ratio], ratios_slower: list[Ratio]) -> dict[str, Any]:
    n, wrong = len(ratios_same), [not r.low <= 1 <= r.high for r in ratios_same]
    found = [r.low > 1 for r in ratios_slower]
    wide = [r.low <= 1 < 1 + FOUND <= r.high for r in ratios_slower]
    return {
        "pairs": n,
        "false": float(np.mean(wrong)),
        "false_interval": wilson(sum(wrong), n),
        "false_slower": float(np.mean([r.low > 1 for r in ratios_same])),
        "slower_pairs": len(ratios_slower),
        "found": float(np.mean(found)),
        "inconclusive": float(np.mean(wide)),
        "missed": float(np.mean([not f and not w for f, w in zip(found, wide, strict=True)])),
    }


def pairs_case(kind: str, n: int, pairs: int, between: float) -> dict[str, Any]:
    def by(interval: Interval) -> Callable[[Values, Values], Ratio]:
        return lambda x, y: ratio(x[0], y[0], interval)

    case: dict[str, Any] = {"kind": kind, "steps": n, "between_runs": between, "runs_a_side": 1}
    for name, interval in METHODS.items():
        case[name] = judged(by(interval), kind, n, min(pairs, COMPARED), between)
    case["ours"] = judged(lambda x, y: ours(x[0], y[0]), kind, n, pairs, between)
    return case


def several_case(kind: str, n: int, pairs: int, between: float) -> dict[str, Any]:
    case = {"kind": kind, "steps": n, "between_runs": between, "runs_a_side": RUNS}
    return case | {"ours": judged(several, kind, n, pairs, between, RUNS, RUNS)}


def history_case(kind: str, n: int, pairs: int, between: float, others: int) -> dict[str, Any]:
    case = {"kind": kind, "steps": n, "between_runs": between, "runs_a_side": 1, "others": others}
    return case | {"ours": judged(beside_history, kind, n, pairs, between, others + 1)}


def judged(
    compare: Callable[[Values, Values], Ratio],
    kind: str, n: int, pairs: int, between: float, in_a: int = 1, in_b: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """The rates of a comparison over so many pairs of sides, each of so many runs, drawn some at a time."""
    rng = np.random.default_rng(SEED + n)
    same, slower = list[Ratio](), list[Ratio]()
    for _ in range(-(-pairs // AT_ONCE)):
        count = min(pairs, AT_ONCE)
        a = runs(rng, kind, count * in_a, n, between=between).reshape(count, in_a, n)
        b = runs(rng, kind, count * in_b, n, between=between).reshape(count, in_b, n)
        some = count // 5
        slow = runs(rng, kind, some * in_b, n, slower=SLOWER, between=between).reshape(some, in_b, n)
        same += [compare(x, y) for x, y in zip(a, b, strict=True)]
        slower += [compare(x, y) for x, y in zip(a[:some], slow, strict=True)]
    return rates(same, slower)


def wilson(hits: int, n: int) -> list[float]:
    """The 95% interval of a share."""
    z, share = 1.96, hits / n
    middle, reach = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return [max(0.0, (middle - reach) / (1 + z * z / n)), (middle + reach) / (1 + z * z / n)]


def course_case(kind: str, n: int, count: int) -> dict[str, Any]:
    """Level shifts and drifts of runs that have none, and of runs that have one."""
    rng = np.random.default_rng(SEED + n)
    even, shifted = (runs(rng, kind, count, n) for _ in range(2))
    at = 2 * n // 5
    shifted[:, at:] = np.round(shifted[:, at:] * (1 + SHIFT), 3)
    found_even, found_shifted = ([find_shifts(range(n), run) for run in side] for side in (even, shifted))
    drifts = [find_drift(run, shifts) for run, shifts in zip(even, found_even, strict=True)]
    return {
        "kind": kind, "steps": n, "runs": count,
        "shift_false": float(np.mean([bool(found) for found in found_even])),
        "shift_found": float(np.mean([len(f) == 1 and abs(f[0].step - at) <= 1 for f in found_shifted])),
        "drift_false": float(np.mean([drift is not None and drift.p < 0.01 for drift in drifts])),
    }  # fmt: skip


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000

    def of(n: int) -> int:
        return pairs if n < 1000 else pairs // 4

    one_a_side = [(kind, n, of(n), 0.0) for kind in KINDS for n in LENGTHS]
    one_a_side += [("independent", n, of(n) // 4, BETWEEN) for n in LENGTHS[1:]]
    lengths = {"independent": LENGTHS, "AR 0.5": LENGTHS}
    several_a_side = [(kind, n, 5 * of(n), BETWEEN) for kind in KINDS for n in lengths.get(kind, LENGTHS[:2])]
    beside = [("independent", 100, pairs, BETWEEN, others) for others in (3, 10)]
    courses = [(kind, n, pairs // (40 if n < 1000 else 160)) for kind in KINDS for n in LENGTHS]
    cases: list[tuple[Callable[..., dict[str, Any]], list[Any]]] = [
        (pairs_case, one_a_side), (several_case, several_a_side), (history_case, beside), (course_case, courses),
    ]  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {"compared": [], "courses": []}
    with ProcessPoolExecutor(max_workers=WORKERS) as pool:
        running = [pool.submit(of, *given) for of, all_given in cases for given in all_given]
        for each in running:
            case = each.result()
            show(case)
            found["compared" if "ours" in case else "courses"].append(case)
    print(record.write("compare_simulation", {"seed": SEED, "level": LEVEL, **found}).name)


def show(case: dict[str, Any]) -> None:
    if "ours" not in case:
        print(*(f"{name} {value}" for name, value in case.items()), sep=", ", flush=True)
        return
    found = [
        f"{name} {case[name]['false']:.3f}/{case[name]['found']:.3f}" for name in (*METHODS, "ours") if name in case
    ]
    others = f", {case['others']} others" if "others" in case else ""
    print(
        f"{case['kind']}, {case['steps']} steps, between runs {case['between_runs']:.1%}, {case['runs_a_side']} a side"
        f"{others}: {'; '.join(found)}",
        flush=True,
    )


if __name__ == "__main__":
    main()

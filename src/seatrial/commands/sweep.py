"""`seatrial plan --sweep`: the layouts of a run on its devices, the fastest first, and why the others lose."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seatrial.check import lint
from seatrial.commands.check import read_valid, spec_of
from seatrial.commands.device_profile import profile_for, unused
from seatrial.commands.planned import action_of
from seatrial.commands.run import RunRequest
from seatrial.console import UNLIMITED, table, warn
from seatrial.engines import fit
from seatrial.errors import InputError
from seatrial.estimate import hardware
from seatrial.estimate.layouts import Candidate, Layouts, layouts, show, show_row
from seatrial.estimate.time_profile import Profile
from seatrial.report.expected import show_seconds, show_size, utilization
from seatrial.spec import Resolved, RunSpec, flatten

SHOWN = 15
MOST_LISTED = 100  # of each number format; and of those that do not fit
AXES = ("parallelism.within_node.", "parallelism.across_nodes.")
ALWAYS = (  # of a layout's settings, those that are said even where the configuration has them already
    "parallelism.zero1", "parallelism.sequence_parallel", "batch.micro_batch_size", "execution.remat",
    "precision.quantization",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A layout and why it is not the best: what of its step takes most longer than that of the best one."""

    candidate: Candidate
    why: str


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The layouts that fit and that `check` and the engine accept, the fastest first; those that do not fit; what was
    refused. `spec`: the run as it is configured."""

    spec: RunSpec
    ranked: tuple[Ranked, ...]
    too_large: tuple[Candidate, ...]
    refused: dict[str, int]
    uneven: dict[str, int]
    tried: int
    profile: Profile


def sweep(request: RunRequest) -> Sweep:
    """Ranks the layouts of a run. Raises InputError where the configuration has errors or names no device."""
    resolved = read_valid(request.config, action=action_of(request), engine=request.engine, say=request.say)
    spec = spec_of(resolved)
    warn(unused(spec), request.say)
    profile = profile_for(spec)
    if profile is None:
        why = "the layouts of a run are compared on its device, and it names none whose speed is known"
        known = ", ".join(hardware.DEVICES)
        raise InputError.single("unknown-device", "topology.device", why, f"name it: {known}")
    found = layouts(spec, request.engine, profile)
    refused: Counter[str] = Counter()
    accepted = list(_accepted(found, resolved, request, refused))
    tried = len(found.fitting) + len(found.too_large) + sum(found.uneven.values())
    best = accepted[0] if accepted else None
    return Sweep(
        spec=spec, ranked=tuple(Ranked(candidate=each, why=_why(each, best)) for each in accepted if best),
        too_large=found.too_large, refused=dict(refused), uneven=found.uneven, tried=tried, profile=profile,
    )  # fmt: skip


def _accepted(found: Layouts, resolved: Resolved, request: RunRequest, refused: Counter[str]) -> Iterator[Candidate]:
    """Those without an error for the trainer, which it can be told; other findings are as those of the run.

    Of those that differ only in the chunks of their stages, the fastest.
    """
    listed: Counter[str] = Counter()
    seen: set[tuple[Any, ...]] = set()
    for each in found.fitting:
        if (listed[_format(each.spec)] >= MOST_LISTED or _but_chunks(each.spec) in seen) and not each.is_own:
            continue
        problems = lint(replace(resolved, spec=each.spec, problems=()), action="check", engine=request.engine).problems
        errors = [f"{problem.code}: {problem.path}" for problem in problems if problem.severity == "error"]
        told, unsaid = (each.spec, list[str]()) if errors else fit.told_layout(each.spec, request.engine)
        errors = errors or [f"engine-cannot: {path}" for path in unsaid]
        if errors:
            refused[errors[0]] += 1
        else:
            listed[_format(each.spec)] += 1
            seen.add(_but_chunks(each.spec))
            yield replace(each, spec=told)


def _but_chunks(spec: RunSpec) -> tuple[Any, ...]:
    """All of a layout but the number of chunks of each stage."""
    shape, execution = replace(spec.parallelism, virtual_pipeline=1), spec.execution
    kept = execution.remat, execution.remat_modules, execution.remat_kept, execution.remat_offloaded
    return shape, spec.batch.micro_batch_size, spec.precision.quantization, kept


def _why(candidate: Candidate, best: Candidate) -> str:
    """The parts of the step that lose most to the best layout, at most two, with the milliseconds."""
    ours, theirs = candidate.time.seconds, best.time.seconds
    more = {name: ours.get(name, 0.0) - theirs.get(name, 0.0) for name in {**ours, **theirs}}
    largest = sorted(more, key=lambda name: -more[name])[:2]
    told = [f"{name} +{1000 * more[name]:,.0f} ms" for name in largest if more[name] >= 0.0005]
    return ", ".join(told) if candidate is not best else "the fastest"


# --- for people and for scripts ---------------------------------------------------------------------------------------


def _format(spec: RunSpec) -> str:
    return spec.precision.quantization or spec.precision.compute_dtype


def _settings(layout: RunSpec, spec: RunSpec) -> dict[str, Any]:
    """A layout by the keys of a native configuration, as overrides: all that makes it another one than the run's."""
    before, after = flatten(spec), flatten(layout)
    axes = [path for path, size in after.items() if path.startswith(AXES) and size != 1]
    other = [path for path, value in after.items() if value != before[path] and path not in ALWAYS]
    return {path: after[path] for path in dict.fromkeys((*axes, *other, *ALWAYS))}


def _override(path: str, value: Any) -> str:
    """A setting as a word of a shell's command line."""
    return shlex.quote(f"{path}={value if isinstance(value, str) else json.dumps(value)}")


def as_json(found: Sweep) -> str:
    """The sweep for scripts: the first of each kind, and how many there are."""
    ranked = [_as_dict(each.candidate, found.spec) | {"why": each.why} for each in found.ranked]
    large = [_as_dict(each, found.spec) | {"why": _too_large(each)} for each in found.too_large[:MOST_LISTED]]
    counts = {"tried": found.tried, "too_large": len(found.too_large), "refused": found.refused, "uneven": found.uneven}
    profile = {"device": found.profile.device, "origin": found.profile.origin}
    return json.dumps({"v": 1, "profile": profile, **counts, "ranked": ranked, "not_fitting": large}, indent=1)


def _as_dict(each: Candidate, own: RunSpec) -> dict[str, Any]:
    spec, seconds = each.spec, each.time.step_seconds
    return {
        "layout": show(spec),
        "is_own": each.is_own,
        "settings": _settings(spec, own),
        "step_seconds": seconds,
        "low_seconds": each.time.interval[0],
        "high_seconds": each.time.interval[1],
        "tokens_per_second_per_device": spec.tokens_per_step / spec.topology.num_devices / seconds,
        "mfu": utilization(spec, seconds),
        "memory_bytes": each.memory_bytes,
        "process_memory_bytes": each.available_bytes,
        "seconds_by_part": dict(each.time.seconds),
    }


def _too_large(each: Candidate) -> str:
    name, size = max(each.memory_parts.items(), key=lambda part: part[1])
    there = each.available_bytes or 0.0
    return f"needs {show_size(each.memory_bytes)} of {show_size(there)}, most of it {name} ({show_size(size)})"


def as_text(found: Sweep) -> str:
    """The sweep for people."""
    head = ("", "layout", "micro", "remat", "format", "step", "tokens/s/device", "MFU", "memory", "beside the fastest")
    rows = [_row(number, each) for number, each in _shown(found.ranked)]
    sections = [
        f"# Layouts, the fastest first\n\n{found.tried:,} tried; by {found.profile.origin} of {found.profile.device}",
        table([head, *rows], indent=0, columns=UNLIMITED, widest=60) if rows else "none fits",
    ]
    rest = len(found.ranked) - len(rows)
    lines = [f"{rest:,} more of those that fit were ranked"] if rest > 0 else []
    if found.too_large:
        spec, why = found.too_large[0].spec, _too_large(found.too_large[0])
        first = f"{show(spec)}, micro-batches of {spec.batch.micro_batch_size}, remat {show_row(spec.execution)}"
        lines.append(f"{len(found.too_large):,} do not fit: the fastest of them, {first}, {why}")
    lines += [f"the layout as configured {_too_large(each)}" for each in found.too_large if each.is_own]
    lines += [f"{count:,} do not divide {name}" for name, count in sorted(found.uneven.items())]
    lines += [f"{count:,} are refused: {name}" for name, count in sorted(found.refused.items())]
    lines += [f"{count:,} are ranked without {name}, which they do not go with" for name, count in _left_out(found)]
    if found.ranked:
        settings = _settings(found.ranked[0].candidate.spec, found.spec)
        overrides = " ".join(_override(path, value) for path, value in settings.items())
        lines.append(f"the fastest, as overrides of a native configuration: {overrides}")
    return "\n\n".join([*sections, "\n".join(lines)])


def _left_out(found: Sweep) -> Iterator[tuple[str, int]]:
    """The keys of the engine that some ranked layouts are without, and how many are."""
    for name in found.spec.execution.engine_keys:
        if count := sum(name not in each.candidate.spec.execution.engine_keys for each in found.ranked):
            yield name, count


def _shown(ranked: Sequence[Ranked]) -> Iterator[tuple[int, Ranked]]:
    """The first ones, the first of each number format and the configuration's own, with their ranks."""
    seen: set[str] = set()
    for number, each in enumerate(ranked, 1):
        if number <= SHOWN or _format(each.candidate.spec) not in seen or each.candidate.is_own:
            yield number, each
        seen.add(_format(each.candidate.spec))


def _row(number: int, ranked: Ranked) -> tuple[str, ...]:
    each = ranked.candidate
    spec, seconds = each.spec, each.time.step_seconds
    share = utilization(spec, seconds)
    why = f"as configured: {ranked.why}" if each.is_own and ranked.why else ranked.why
    return (
        str(number), show(spec), str(spec.batch.micro_batch_size), show_row(spec.execution), _format(spec),
        f"{show_seconds(seconds)} s", f"{spec.tokens_per_step / spec.topology.num_devices / seconds:,.0f}",
        f"{share:.1%}" if share else "", show_size(each.memory_bytes), why,
    )  # fmt: skip

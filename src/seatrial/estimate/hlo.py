"""The text of a program that XLA has compiled → its collectives and its kernels, with how often a step runs each.

The text is HLO as `compiled.as_text()` prints it: computations, each a list of instructions, the called before their
callers. A loop whose number of turns XLA knows runs its body so often; one that it does not know is counted once, and
`Program.unknown_loops` says how many those are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

COLLECTIVES = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
    "ragged-all-to-all",
)  # fmt: skip

# Bytes of an element, by how HLO names its type; what is not here (tokens, tuples) holds nothing.
ELEMENT_BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "s64": 8, "u64": 8,
    "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16, "f8e4m3": 1, "f8e4m3fn": 1, "f8e5m2": 1,
    "f8e4m3fnuz": 1, "f8e5m2fnuz": 1, "f8e4m3b11fnuz": 1, "f8e3m4": 1, "f8e8m0fnu": 1, "f4e2m1fn": 0.5,
}  # fmt: skip

# Calls of libraries, by the beginning of their target; the first that fits.
LIBRARIES: tuple[tuple[str, str], ...] = (
    ("__cudnn$fmha", "cuDNN attention"),
    ("__cudnn$", "cuDNN, other"),
    ("__cublas$lt$matmul$f8", "product, fp8"),
    ("__cublas$", "product"),
    ("__ynn", "product"),
    ("__onednn$matmul", "product"),
)

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_SHAPE = re.compile(r"(\w+)\[([\d,<=]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLS = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_LISTED = re.compile(r"replica_groups=\{(\{[\d,]*\})")
_COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
# Of jaxlib 0.12 on: the axes of a mesh, or parts of them, ":(parts before)parts"; numbered otherwise where ids follow.
_OF_MESH = re.compile(r"replica_groups=@?mesh\[([^\]]*)\] ?\{([^}]*)\}")
_SIZE, _AXIS = re.compile(r"([^',=]+)'?=(\d+)"), re.compile(r"'?([^',:]+)'?(?::\((\d+)\)(\d+))?(?:,|$)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_CALLERS = {"while", "call", "fusion", "conditional", "async-start"}


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Collectives of one kind over the same mesh axes.

    `instructions`: in the program's text; `times`: that a step runs them; `bytes`: of the larger side, on each device,
    in a whole step. `is_asynchronous`: they start and end apart, so that other work can go on between.
    """

    kind: str
    axes: tuple[str, ...]
    is_asynchronous: bool
    instructions: int
    times: int
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Kernels of one kind: instructions in the program's text, and times that a step runs them."""

    kind: str
    instructions: int
    times: int


@dataclass(frozen=True, kw_only=True)
class Program:
    """The collectives and kernels of a program."""

    collectives: tuple[Collective, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    unknown_loops: int = 0


@dataclass
class _Instruction:
    type: str
    opcode: str
    rest: str  # operands and attributes

    @property
    def operands(self) -> list[str]:
        return _NAME.findall(self.rest.partition(")")[0])


@dataclass
class _Computation:
    """Types of all instructions, and those instructions that count."""

    name: str
    types: dict[str, str] = field(default_factory=dict)
    found: list[_Instruction] = field(default_factory=list)


def read_program(text: str, mesh: Mapping[str, int]) -> Program:
    """A program's collectives and kernels; `mesh`: axis → size, slowest first, as its devices are numbered."""
    computations = list(_computations(text))
    times, starts, unknown = _times(computations)
    collectives: dict[tuple[str, tuple[str, ...], bool], list[float]] = {}
    kernels: dict[str, list[int]] = {}
    for computation in computations:
        often = times[computation.name]
        for each in computation.found:
            kind = each.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                apart = each.opcode != kind or computation.name in starts
                key = kind, _axes(each.rest, mesh), apart and '"is_sync":true' not in each.rest
                row = collectives.setdefault(key, [0, 0, 0])
                row[:] = [row[0] + 1, row[1] + often, row[2] + often * _payload(each, computation)]
            elif name := _kernel(each, computation):
                count = kernels.setdefault(name, [0, 0])
                count[:] = [count[0] + 1, count[1] + often]
    return Program(
        collectives=tuple(
            Collective(kind=kind, axes=axes, is_asynchronous=apart, instructions=int(n), times=int(often), bytes=size)
            for (kind, axes, apart), (n, often, size) in sorted(collectives.items())
        ),
        kernels=tuple(Kernel(kind=kind, instructions=n, times=often) for kind, (n, often) in sorted(kernels.items())),
        unknown_loops=unknown,
    )


def _computations(text: str) -> Iterator[_Computation]:
    current = _Computation("")
    for line in text.splitlines():
        if not line.startswith(" "):
            if begins := _COMPUTATION.match(line):
                current = _Computation(begins[2])
            elif line == "}":
                yield current
            continue
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        name, kind, opcode, rest = found.groups()
        current.types[name] = kind
        if opcode in _CALLERS or opcode in ("custom-call", "dot") or opcode.removesuffix("-start") in COLLECTIVES:
            current.found.append(_Instruction(kind, opcode, rest))


def _times(computations: Sequence[_Computation]) -> tuple[Counter[str], set[str], int]:
    """The runs of each computation in a step, those that run beside others, and how many loops have no known length."""
    times: Counter[str] = Counter({computations[-1].name: 1} if computations else {})
    starts: set[str] = set()
    unknown = 0
    for computation in reversed(computations):  # the called stand before their callers, the entry stands last
        for each in computation.found:
            if each.opcode not in _CALLERS:
                continue
            turns = _TURNS.search(each.rest)
            often = int(turns[1]) if turns and each.opcode == "while" else 1
            unknown += each.opcode == "while" and turns is None
            called = _CALLS.findall(each.rest)
            for several in _BRANCHES.findall(each.rest):
                called += [name.strip().removeprefix("%") for name in several.split(",")]
            for name in called:
                times[name] += often * times[computation.name]
            if each.opcode == "async-start":
                starts |= set(called)
    return times, starts, unknown


# --- collectives ------------------------------------------------------------------------------------------------------


def _payload(each: _Instruction, computation: _Computation) -> float:
    """Bytes of the operands or of the results, whichever are more."""
    given = sum(_bytes(computation.types.get(name, "")) for name in each.operands)
    made = _bytes(each.type)
    if each.opcode.endswith("-start") and each.opcode != "all-reduce-start":  # its type holds both
        made -= given
    return max(given, made)


def _bytes(kind: str) -> float:
    return sum(
        ELEMENT_BYTES.get(name, 0) * math.prod(int(n.lstrip("<=")) for n in dims.split(",") if n)
        for name, dims in _SHAPE.findall(kind)
    )


def _axes(attributes: str, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the devices of the first group differ; "?" where the text does not name devices."""
    devices = _group(attributes)
    if devices is None:
        return ("?",)
    if not devices:  # an empty list stands for all of them
        return tuple(axis for axis, size in mesh.items() if size > 1)
    differing, below = [], math.prod(mesh.values())
    for axis, size in mesh.items():
        below //= size
        if len({device // below % size for device in devices}) > 1:
            differing.append(axis)
    return tuple(differing)


def _group(attributes: str) -> list[int] | None:
    """The first group of devices that exchange something."""
    if pairs := _PAIRS.search(attributes):
        first = re.findall(r"\d+", pairs[1])[:2]
        return [int(device) for device in first]
    if listed := _LISTED.search(attributes):
        return [int(device) for device in listed[1].strip("{}").split(",") if device]
    if of_mesh := _OF_MESH.search(attributes):
        return _along({name: int(size) for name, size in _SIZE.findall(of_mesh[1])}, _AXIS.findall(of_mesh[2]))
    counted = _COUNTED.search(attributes)
    if counted is None:
        return [] if "replica_groups={}" in attributes else None
    shape, dims = ([int(n) for n in counted[part].split(",")] for part in (1, 2))
    order = [int(n) for n in counted[3].split(",")] if counted[3] else list(range(len(dims)))
    return [_iota(number, dims, order) for number in range(shape[-1])]


def _along(sizes: Mapping[str, int], axes: Iterable[tuple[str, str, str]]) -> list[int]:
    """The devices of a mesh's first group along some axes: (name, parts before, parts), "" for a whole axis."""
    asked = [(name, int(before or 1), int(size or sizes[name])) for name, before, size in axes]
    devices, below = [0], math.prod(sizes.values())
    for axis, size in sizes.items():
        below //= size
        for _, before, parts in (each for each in asked if each[0] == axis):
            step = below * size // (before * parts)
            devices = [device + number * step for device in devices for number in range(parts)]
    return devices


def _iota(number: int, dims: list[int], order: list[int]) -> int:
    """Element `number` of iota over `dims`, transposed by `order`, flattened."""
    index = dict.fromkeys(order, 0)
    for axis in reversed(order):
        number, index[axis] = divmod(number, dims[axis])
    value = 0
    for axis, size in enumerate(dims):
        value = value * size + index[axis]
    return value


# --- kernels ----------------------------------------------------------------------------------------------------------


def _kernel(each: _Instruction, computation: _Computation) -> str | None:
    """The kind of a kernel; None for what is none by itself."""
    if each.opcode == "dot":
        return f"product, {_format(each, computation)}, no library"
    if each.opcode != "custom-call":
        return None
    target = _TARGET.search(each.rest)
    name = target[1] if target else ""
    kind = next((kind for begin, kind in LIBRARIES if name.startswith(begin)), None)
    if kind == "cuDNN attention":
        return f"{kind}, {'backward' if 'Backward' in name else 'forward'}"
    return f"{kind}, {_format(each, computation)}" if kind == "product" else kind


def _format(each: _Instruction, computation: _Computation) -> str:
    """The element type of the first operand."""
    first = next((computation.types.get(name, "") for name in each.operands), "")
    found = _SHAPE.search(first)
    return found[1] if found else "?"

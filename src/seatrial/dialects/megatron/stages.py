"""The layers of each pipeline stage in Megatron's words, where stages differ.

Source: get_num_layers_to_build in megatron/core/transformer/transformer_block.py, and
megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re

from seatrial.spec import RunSpec

_MOST = 100_000  # letters of a layout
_GROUP, _LETTER = re.compile(r"\(([^()]*)\)(?:\*(\d{1,4}))?"), re.compile(r"([A-Za-z])\*(\d{1,4})")


def of_ends(layers: int, stages: int, chunks: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """The layers of each chunk where the first or the last stage has its own. Raises ValueError for an uneven rest."""
    between = stages - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if rest < 0 or (rest % between if between > 0 else rest):
        raise ValueError(f"the {rest} layers that are left cannot be split evenly over the {between} stages between")
    each = [rest // between] * between if between > 0 else []
    of_stages = [*([] if first is None else [first]), *each, *([] if last is None else [last])]
    if wrong := next((number for number in of_stages if number % chunks), 0):
        raise ValueError(f"{wrong} layers of a stage cannot be split evenly over its {chunks} model chunks")
    return tuple(number // chunks for _ in range(chunks) for number in of_stages)


def of_layout(text: str) -> tuple[int, ...]:
    """The layers of each chunk of `Et*3|(tt|)*29,m|L`. Raises ValueError where it is none."""
    layout = re.sub(r"[\s,]", "", text)
    while (found := _GROUP.search(layout)) is not None:
        layout = layout[: found.start()] + _times(found[1], found[2] or "1") + layout[found.end() :]
    layout = _LETTER.sub(lambda found: _times(found[1], found[2]), layout)
    if len(layout) > _MOST or not re.fullmatch(r"[EtmL|]*", layout):
        raise ValueError(
            f"{text[:60]!r} is no layout of E, t, m and L with | between stages, and (…)*4 for repetitions"
        )
    return tuple(stage.count("t") for stage in layout.split("|"))


def _times(text: str, count: str) -> str:
    if len(text) * int(count) > _MOST:
        raise ValueError(f"it has more than {_MOST} letters")
    return text * int(count)


def end_of(spec: RunSpec, end: int) -> int | None:
    """The layers of the first (0) or the last (-1) stage, where these two say the layers of all."""
    stages, chunks = spec.mesh["pipeline"], spec.parallelism.virtual_pipeline
    own = spec.parallelism.stage_layers
    if len(set(own)) < 2 or len(own) != stages * chunks:
        return None
    first, last = own[0] * chunks, own[stages - 1] * chunks
    try:
        is_said = of_ends(spec.model.num_layers, stages, chunks, first, last) == own
    except ValueError:
        return None
    return (first, last)[end] if is_said else None

"""MaxText: a command `train base.yml key=value …`, a YAML file that changes its `base.yml`, and variables `M_<KEY>`.

Keys that are not given have the defaults of MaxText 0.2.5. MaxText uses the devices that it finds: their number follows
from its mesh, or is given on Seatrial's own command line (`topology.devices_per_node=8`).
"""

from __future__ import annotations

from seatrial.dialects.maxtext.build import NAME, build
from seatrial.dialects.maxtext.findings import find
from seatrial.dialects.maxtext.keys import KEYS, OURS, OWN_WORDS
from seatrial.dialects.maxtext.settings import gather
from seatrial.dialects.maxtext.writer import with_engine_keys, written
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.written import Written, with_steps
from seatrial.spec import Resolved, RunSpec

__all__ = ["KEYS", "NAME", "SAID", "read", "write"]

SAID = OWN_WORDS


def read(request: Request) -> Resolved:
    """The spec that a configuration describes, or everything that is wrong with it."""
    settings = gather(request)
    spec, origins = build(settings)
    find(settings)
    if spec is not None:
        given = {name: entry for name, entry in settings.for_engine() if name not in OURS}
        spec = with_engine_keys(spec, {name: entry.value for name, entry in given.items()})
        keys = spec.execution.engine_keys
        origins |= {f"execution.engine_keys.{name}": entry.origin() for name, entry in given.items() if name in keys}
    return Resolved(spec=spec, origins=origins, problems=tuple(settings.problems))


def write(spec: RunSpec) -> Written:
    """A command that starts MaxText with a run, as a shell text, with a note for what MaxText has no words for."""
    return written(with_steps(spec, "MaxText"), read)

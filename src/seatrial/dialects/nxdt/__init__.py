"""An NxDT file (AWS NeuronX Distributed Training, and SageMaker HyperPod's recipes for it) → RunSpec, and back.

NxDT trains Hugging Face's or Megatron's Llama under PyTorch Lightning, by NeMo's experiment manager, optimizers and
schedules. Where its documentation and its code differ, the documentation is followed (`deviations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.dialects.nxdt import build as nxdt_build
from seatrial.dialects.nxdt import findings as nxdt_findings
from seatrial.dialects.nxdt.deviations import DEVIATIONS
from seatrial.dialects.nxdt.keys import KEYS
from seatrial.dialects.nxdt.settings import gather
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.written import Written
from seatrial.errors import InputError
from seatrial.spec import Resolved, RunSpec

__all__ = ["DEVIATIONS", "KEYS", "NAME", "read", "write"]

NAME = nxdt_build.NAME


def read(request: Request) -> Resolved:
    """The spec of a file, and everything that is wrong with it. Raises InputError for NeMo's own configurations."""
    document = request.document
    if not {"model_source", "distributed_strategy", "data"} & document.root.members.keys():
        why = "this is a NeMo configuration, not one of NxDT, which says model_source, distributed_strategy and data"
        fix = "write these three sections, or a native configuration: `seatrial init` lists examples"
        raise InputError.single("dialect-not-supported-yet", document.file, why, fix, document.root.mark)
    settings = gather(request, KEYS)
    nxdt_findings.refused(settings)
    nxdt_findings.own(settings)
    spec = nxdt_build.build(settings)
    if spec is not None:
        nxdt_findings.about(settings, spec)
    settings.without_effect(aside=nxdt_findings.CHECKED)
    origins, problems = nxdt_build.origins(settings, spec), tuple(settings.problems)
    return Resolved(spec=spec, origins=origins, problems=problems, kept=settings.kept())


def write(spec: RunSpec, kept: Mapping[str, Any] | None = None) -> Written:
    """The spec as an NxDT file: with a Hugging Face model or a Megatron one, whichever can say more of it.

    `kept`: what an NxDT file that it was read from says beside the spec.
    """
    from seatrial.dialects.nxdt.writer import written  # late: only those who convert pay for it

    return written(spec, read, kept or {})

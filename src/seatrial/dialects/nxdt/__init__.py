"""An NxDT file (AWS NeuronX Distributed Training, and SageMaker HyperPod's recipes for it) → RunSpec, and back.

NxDT trains Hugging Face's or Megatron's Llama under PyTorch Lightning, by NeMo's experiment manager, optimizers and
schedules. Where its documentation and its code differ, the documentation is followed (`nxdt_deviations`).
"""

from __future__ import annotations

from dataclasses import fields

from seatrial.dialects.nxdt import data as nxdt_data
from seatrial.dialects.nxdt import experiment as nxdt_experiment
from seatrial.dialects.nxdt import findings as nxdt_findings
from seatrial.dialects.nxdt import model as nxdt_model
from seatrial.dialects.nxdt import optimizer as nxdt_optimizer
from seatrial.dialects.nxdt import precision as nxdt_precision
from seatrial.dialects.nxdt import run as nxdt_run
from seatrial.dialects.nxdt import trainer as nxdt_trainer
from seatrial.dialects.nxdt.deviations import DEVIATIONS
from seatrial.dialects.nxdt.settings import Settings, gather
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.written import Written
from seatrial.dialects.typed import as_name
from seatrial.errors import InputError
from seatrial.spec import Batch, Origin, Resolved, RunSpec

__all__ = ["DEVIATIONS", "KEYS", "NAME", "read", "write"]

NAME = "nxdt"

KEYS: dict[str, Key] = {
    **nxdt_run.TOP,
    **nxdt_trainer.KEYS,
    **nxdt_experiment.KEYS,
    **nxdt_run.STRATEGY,
    **nxdt_data.KEYS,
    **nxdt_model.KEYS,
    **nxdt_optimizer.KEYS,
    **nxdt_precision.KEYS,
}


def read(request: Request) -> Resolved:
    """The spec of a file, and everything that is wrong with it. Raises InputError for NeMo's own configurations."""
    document = request.document
    if not {"model_source", "distributed_strategy", "data"} & document.root.members.keys():
        why = "this is a NeMo configuration, not one of NxDT, which says model_source, distributed_strategy and data"
        fix = "write these three sections, or a native configuration: `seatrial init` lists examples"
        raise InputError.single("dialect-not-supported-yet", document.file, why, fix, document.root.mark)
    settings = gather(request, KEYS)
    nxdt_findings.refused(settings)
    spec = _build(settings)
    if spec is not None:
        nxdt_findings.traps(settings, spec)
        nxdt_findings.deviations(settings, spec)
        nxdt_findings.mesh(settings, spec)
    settings.without_effect(aside=nxdt_findings.SPOKEN_OF)
    return Resolved(spec=spec, origins=_origins(settings, spec), problems=tuple(settings.problems))


def write(spec: RunSpec) -> Written:
    """The spec as an NxDT file: with a Hugging Face model or a Megatron one, whichever can say more of it."""
    from seatrial.dialects.nxdt.writer import written  # late: only those who convert pay for it

    return written(spec, read)


def _build(settings: Settings) -> RunSpec | None:
    """The spec, as far as the values allow one; every part is looked at all the same."""
    steps = nxdt_trainer.steps(settings)
    topology = nxdt_run.topology(settings)
    kind = nxdt_data.kind(settings)
    length = nxdt_data.sequence_length(settings, kind)
    data = nxdt_data.data(settings, kind)
    architecture = nxdt_model.architecture(settings)
    optimizer = nxdt_optimizer.optimizer(
        settings, steps or 1, architecture.model.hidden_dim if architecture else settings.get("model.hidden_size") or 1
    )
    precision = nxdt_precision.precision(settings)
    checkpoint, logging = nxdt_experiment.checkpoint(settings), nxdt_experiment.logging(settings)
    evaluation = nxdt_trainer.evaluation(
        settings, has_data=bool(data.validation_paths) or (data.kind == "megatron" and not data.test_paths)
    )
    parallelism = nxdt_run.parallelism(settings, topology) if topology else None
    batch, micro = settings.get("data.global_batch_size"), settings.get("data.micro_batch_size")
    if None in (steps, topology, length, architecture, optimizer, parallelism, batch, micro) or not data.paths:
        return None
    assert steps is not None
    assert length is not None
    assert topology is not None
    assert architecture is not None
    assert optimizer is not None
    assert parallelism is not None
    return RunSpec(
        name=as_name(settings.get("name", "nxdt")),
        dialect=NAME,
        model=architecture.model,
        batch=Batch(sequence_length=length, global_batch_size=batch, micro_batch_size=micro),
        steps=steps,
        epochs=settings.get("trainer.max_epochs"),
        topology=topology,
        parallelism=parallelism,
        precision=precision,
        initialization=architecture.initialization,
        dropout=architecture.dropout,
        optimizer=optimizer,
        objective=nxdt_data.objective(settings, kind),
        data=data,
        evaluation=evaluation,
        logging=logging,
        execution=nxdt_model.execution(settings),
        checkpoint=checkpoint,
        log_dir=nxdt_experiment.log_dir(settings),
        seed=settings.get("seed", nxdt_run.DEFAULT_SEED),
    )


# What follows from another key where its own is not given: spec path, key, how.
_MADE_FROM = (
    ("model.num_kv_heads", "model.num_attention_heads", "as many as query heads"),
    ("model.head_dim", "model.num_attention_heads", "hidden_size / num_attention_heads"),
    ("initialization.std", "model.model_config", "that of the model"),
    ("initialization.scaled", "model.model_config", "Hugging Face scales none"),
    ("dropout.attention", "model.model_config", "that of the model"),
)


def _origins(settings: Settings, spec: RunSpec | None) -> dict[str, Origin]:
    """Where each value came from: the key that says it; what no key says is NxDT's default."""
    default = Origin(kind="default", note="NxDT's default")
    entries = settings.entries
    origins = {f.name: default for f in fields(RunSpec) if f.name not in ("dialect", "container", "distributed")}
    for name in settings.values:
        entry = settings.entries[name]
        for path in filter(None, (part.strip() for part in KEYS[name].to.split(","))):
            if settings.values[name] is None and path in origins:
                continue  # of several keys for one thing, another says it
            note = f"= {settings.values[name]}" if "${" in entry.text else ""
            origins[path] = entry.origin(note)
    for path, key, note in _MADE_FROM:
        if path not in origins and key in entries:
            origins[path] = entries[key].origin(note)
    block = next((entry for name, entry in entries.items() if name.startswith(f"{nxdt_data.ALIGNMENT}.")), None)
    if block is not None:
        origins["objective.kind"] = origins["data.kind"] = block.origin("by the block that is there")
    for axis in ("within_node", "across_nodes"):
        origins[f"parallelism.{axis}.data"] = Origin(
            kind="derived", key="trainer.devices", note="what TP, PP and CP leave"
        )
    if spec is not None and spec.log_dir is None:
        origins["log_dir"] = default
    length = "data.seq_length"
    if spec is not None and settings.get(length) == spec.batch.sequence_length != settings.get(
        "model.encoder_seq_length"
    ):
        origins["batch.sequence_length"] = settings.entries[length].origin()
    elif "model.encoder_seq_length" in settings.values:
        origins["batch.sequence_length"] = settings.entries["model.encoder_seq_length"].origin()
    return origins

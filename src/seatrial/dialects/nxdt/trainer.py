"""NxDT's `trainer`: PyTorch Lightning's arguments, with its meaning of whole numbers and shares."""

from __future__ import annotations

from typing import Any

from seatrial.dialects.nxdt.readers import (
    anything,
    boolean,
    choice,
    count_or_all,
    natural,
    natural_or_all,
    not_negative,
    optional,
    portion,
)
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.keys import Key, ignored, rejected, to
from seatrial.spec import Evaluation

_LIGHTNING = "it is about PyTorch Lightning itself"
_PRECISION = "precision.type decides"
_OTHER_LENGTH = "a run's length is trainer.max_steps here"


def _interval(value: Any) -> int | float:
    """Steps (int), or a share of an epoch (float), as Lightning tells them apart: by the type."""
    if isinstance(value, int) and not isinstance(value, bool):
        return coerce.count(value)
    number = coerce.positive(value)
    if number > 1:
        raise ValueError(f"{number:g} is no share of an epoch; steps are counted by a number without a point")
    return number


def _all(value: Any) -> Any:
    return None if value is None or (isinstance(value, float) and value == 1.0) else value


@coerce.takes("a whole number from 1 on")
def _steps(value: Any) -> int | None:
    return count_or_all(value)


_ENDS = "a run ends with max_steps or max_epochs, and with nothing else"

KEYS: dict[str, Key] = {
    "trainer.devices": to(
        "topology.devices_per_node", coerce.count, "Devices of each node: a request for as many NeuronCores, met by any"
        " accelerator.", required=True,
    ),
    "trainer.lnc": ignored(
        "it maps logical to physical NeuronCores", optional(coerce.one_of("1", "2")), "1 or 2."
    ),
    "trainer.num_nodes": to("topology.num_nodes", coerce.count, "1 where it is not given."),
    "trainer.max_epochs": to("epochs", optional(count_or_all), "-1: no limit."),
    "trainer.max_steps": to(
        "steps", _steps, "Optimizer steps, one global batch each; also the length of every schedule.",
        required=True,
    ),
    "trainer.log_every_n_steps": to("logging.interval_steps", coerce.count, "1 where it is not given."),
    "trainer.val_check_interval": to(
        "evaluation.interval_steps,evaluation.interval_fraction", optional(_interval),
        "A whole number: steps. A number with a point: a share of an epoch.",
    ),
    "trainer.check_val_every_n_epoch": to(
        "evaluation.interval_fraction", optional(coerce.count),
        "null: val_check_interval counts steps across epochs. 1: within each.",
    ),
    "trainer.num_sanity_val_steps": to("evaluation.initial_batches", natural_or_all, "-1: all."),
    "trainer.limit_val_batches": to(
        "evaluation.batches,evaluation.fraction", optional(portion),
        "1 is one batch, 1.0 all of them; 0 and 0.0 turn validation off.",
    ),
    "trainer.limit_test_batches": ignored(
        "nothing is tested at the end of a run", optional(portion), quiet=(None, 0, 1, 0.0, 1.0)
    ),
    "trainer.gradient_clip_val": to(
        "optimizer.clip_norm", optional(not_negative), "Global norm to which gradients are clipped; null or 0: off."
    ),
    "trainer.sequential_move_factor": ignored("it is about how Neuron loads weights", coerce.whole),
    "trainer.limit_train_batches": rejected(_OTHER_LENGTH, _all, quiet=(None,)),
    "trainer.min_epochs": ignored(_ENDS, optional(natural), quiet=(None,)),
    "trainer.min_steps": ignored(_ENDS, optional(coerce.whole), quiet=(None, -1)),
    "trainer.max_time": rejected(
        "a run's length is trainer.max_steps here; the launcher limits time", optional(anything), quiet=(None,)
    ),
    "trainer.fast_dev_run": rejected(f"{_OTHER_LENGTH}; `seatrial run --rehearse` is for trying", anything,
                                     quiet=(False, 0)),
    "trainer.overfit_batches": rejected("a part of the data is data.dev_choose_samples", anything, quiet=(0, 0.0)),
    "trainer.enable_progress_bar": ignored(_LIGHTNING, boolean, quiet=(True, False)),
    "trainer.profiler": ignored(_LIGHTNING, anything, quiet=(None,)),
    "trainer.detect_anomaly": ignored(_LIGHTNING, boolean, quiet=(False,)),
    "trainer.benchmark": ignored("it is about cuDNN in PyTorch", optional(boolean), quiet=(None, False)),
    "trainer.deterministic": ignored("XLA's flags decide", anything, quiet=(None, False)),
    "trainer.inference_mode": ignored(_LIGHTNING, boolean, quiet=(True, False)),
    "trainer.reload_dataloaders_every_n_epochs": ignored(_LIGHTNING, natural, quiet=(0,)),
    "trainer.precision": ignored(_PRECISION, anything, quiet=(None,)),
    "trainer.logger": ignored("exp_manager decides", anything, quiet=(None, False)),
    "trainer.enable_checkpointing": ignored("exp_manager decides", optional(boolean), quiet=(None, False)),
    "trainer.plugins": ignored(_LIGHTNING, anything, quiet=(None,)),
    "trainer.accelerator": ignored("the devices that are there decide", anything, quiet=("tpu", "auto")),
    "trainer.strategy": ignored("distributed_strategy decides", anything, quiet=("auto",)),
    "trainer.default_root_dir": ignored("exp_manager decides", optional(coerce.text), quiet=(None,)),
    "trainer.barebones": ignored(_LIGHTNING, boolean, quiet=(False,)),
    "trainer.use_distributed_sampler": ignored(_LIGHTNING, boolean, quiet=(False,)),
    "trainer.accumulate_grad_batches": rejected(
        "accumulation follows from data.global_batch_size and data.micro_batch_size", coerce.count, quiet=(1,)
    ),
    "trainer.gradient_clip_algorithm": rejected(
        "gradients are clipped by their global norm; NxDT takes no value here either",
        optional(choice("norm", "value")), quiet=(None,),
    ),
    "trainer.enable_model_summary": rejected("there is none, as in NxDT", boolean, quiet=(False,)),
}  # fmt: skip


def steps(settings: Settings) -> int | None:
    """The run's steps. -1, "as many as max_epochs has", depends on the data and is an error."""
    if "trainer.max_steps" in settings.values and settings.values["trainer.max_steps"] is None:
        settings.add(
            "trainer.max_steps", "error", "steps-unknown",
            "-1 leaves the number of steps to the length of the data, and the schedule needs the number",
            "give trainer.max_steps=…; trainer.max_epochs may end the run sooner",
        )  # fmt: skip
    found: int | None = settings.get("trainer.max_steps")
    return found


def evaluation(settings: Settings, *, has_data: bool) -> Evaluation:
    """When validation runs, and on how much. Lightning skips it where there is no validation data."""
    limit = settings.get("trainer.limit_val_batches", 1.0)
    limit = 1.0 if limit is None else limit
    if limit == 0:
        return Evaluation()
    every = settings.get("trainer.val_check_interval", 1.0)
    every = 1.0 if every is None else every
    epochs = settings.get("trainer.check_val_every_n_epoch", 1)
    if not has_data:
        settings.add(
            "trainer.val_check_interval", "info", "no-effect",
            "there is no validation data (data.val_dir), so nothing is validated", "nothing to do",
        )  # fmt: skip
        return Evaluation()
    if isinstance(every, float) and epochs != 1:
        what = "null" if epochs is None else epochs
        settings.add(
            "trainer.val_check_interval", "error", "contradiction",
            f"a share of an epoch ({every:g}) with check_val_every_n_epoch {what} has no meaning here"
            + ("; in Lightning neither" if epochs is None else ""),
            "give the interval as a number of steps, without a point, or check_val_every_n_epoch: 1",
        )  # fmt: skip
        every = 1.0
    if isinstance(every, int) and epochs not in (None, 1):
        settings.add(
            "trainer.check_val_every_n_epoch", "error", "contradiction",
            f"validation in every {epochs}th epoch only has no meaning here",
            "give trainer.check_val_every_n_epoch: null, and the interval in steps",
        )  # fmt: skip
    return Evaluation(
        interval_steps=every if isinstance(every, int) else None,
        interval_fraction=None if isinstance(every, int) else every,
        batches=limit if isinstance(limit, int) else None,
        fraction=1.0 if isinstance(limit, int) else limit,
        initial_batches=settings.get("trainer.num_sanity_val_steps", 2),
    )

"""NxDT's `exp_manager`: NeMo's, with NxDT's own additions; logs and checkpoints."""

from __future__ import annotations

from seatrial.dialects.nxdt.readers import anything, boolean, choice, natural_or_all, optional
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce, keys
from seatrial.dialects.table.keys import Key, ignored, rejected, to
from seatrial.spec import Checkpoint, Logging

_FORMAT = "checkpoints here have one format, which every number of devices can read"
_NAMES = "checkpoints are named by their step"
_TRACKERS = "a run's history is in its run directory; it is sent to no service"
_NEMO = "it is about NeMo itself"
_CARE = "a run's log and events are always written by one process, and by the others where they fail"
_LIVENESS = "the agent on each node watches for stragglers and hangs"
_P = "exp_manager.checkpoint_callback_params"

MONITORS = {"val_loss": "validation_loss", "reduced_train_loss": "loss", "train_loss": "loss", "loss": "loss"}

_OPEN_SERVICES = {
    f"exp_manager.{name}": ignored(_TRACKERS, anything, quiet=(None, False))
    for name in (
        "create_wandb_logger", "create_mlflow_logger", "create_dllogger_logger", "create_clearml_logger",
        "create_neptune_logger",
    )
} | {
    f"exp_manager.{name}": ignored(_TRACKERS, anything, quiet=(None, {}))
    for name in (
        "wandb_logger_kwargs", "mlflow_logger_kwargs", "dllogger_logger_kwargs", "clearml_logger_kwargs",
        "neptune_logger_kwargs", "summary_writer_kwargs",
    )
}  # fmt: skip

KEYS: dict[str, Key] = {
    "exp_manager.log_local_rank_0_only": ignored(_CARE, boolean, quiet=(True, False)),
    "exp_manager.log_global_rank_0_only": ignored(_CARE, boolean, quiet=(True, False)),
    "exp_manager.create_tensorboard_logger": to("logging.tensorboard", boolean),
    "exp_manager.explicit_log_dir": to("log_dir", optional(coerce.text), "The folder of logs, as it is."),
    "exp_manager.exp_dir": to(
        "log_dir", optional(coerce.text), "The folder above that of the logs, which is named exp_manager.name."
    ),
    "exp_manager.name": to("log_dir", optional(coerce.text), "The folder of logs in exp_dir."),
    "exp_manager.resume_if_exists": to("checkpoint.resume", boolean),
    "exp_manager.resume_ignore_no_checkpoint": to(
        "checkpoint.resume_required", boolean,
        "Whether a run starts from scratch if resume_if_exists finds no checkpoint; if false or not given, it stops.",
    ),
    "exp_manager.resume_from_checkpoint": to(
        "checkpoint.resume_from", optional(coerce.text), "Used where resume_if_exists finds no checkpoint of this run."
    ),
    "exp_manager.resume_past_end": ignored(_NEMO, boolean, quiet=(False,)),
    "exp_manager.create_checkpoint_callback": to("checkpoint.enabled", boolean, "true where it is not given."),
    "exp_manager.async_checkpointing": to("checkpoint.asynchronous", boolean),
    f"{_P}.monitor": to(
        "checkpoint.keep_best", coerce.text, "By what checkpoints are kept: step, val_loss, reduced_train_loss."
    ),
    f"{_P}.mode": to("checkpoint.keep_best", choice("min", "max"), "Whether less of it is better, or more."),
    f"{_P}.save_top_k": to("checkpoint.keep", natural_or_all, "-1: all. 0: only the last one of the run."),
    f"{_P}.every_n_train_steps": to("checkpoint.interval_steps", optional(coerce.whole)),
    f"{_P}.train_time_interval": to("checkpoint.interval_minutes", optional(coerce.positive), "In seconds."),
    f"{_P}.dirpath": to("checkpoint.directory", optional(coerce.text)),
    f"{_P}.save_last": ignored("the last checkpoint of a run is always saved", boolean, quiet=(True, False)),
    f"{_P}.filename": ignored(_NAMES, optional(coerce.text), quiet=()),
    f"{_P}.model_parallel_size": keys.repeats(
        "the sizes of distributed_strategy decide", coerce.count,
        lambda spec: spec.mesh["tensor"] * spec.mesh["pipeline"],
    ),
    f"{_P}.use_master_weights_in_ckpt": keys.equivalent(
        "checkpoints always hold the weights that the optimizer updates", boolean,
        "Whether checkpoints hold master weights, without which resuming is not exact.",
    ),
    f"{_P}.every_n_epochs": rejected("checkpoints are saved by steps here", optional(coerce.whole), quiet=(None, 0)),
    f"{_P}.save_weights_only": rejected(
        "a checkpoint without the optimizer's state cannot be resumed from", boolean, quiet=(False,)
    ),
    **{
        f"{_P}.{name}": ignored(_NAMES if "fix" in name or name == "filepath" else _NEMO, anything, quiet=(None, False))
        for name in (
            "filepath", "prefix", "postfix", "save_on_train_epoch_end", "save_nemo_on_train_end",
            "auto_insert_metric_name", "verbose", "async_save", "save_last_n_optim_states", "save_best_model",
            "always_save_nemo", "enable_version_counter",
        )
    },
    "exp_manager.log_parameter_norm": to("logging.parameter_norm", boolean),
    "exp_manager.log_gradient_norm": to("logging.gradient_norm", boolean),
    "exp_manager.enable_recovery_time_instrumentation": to(
        "logging.startup_times", boolean, "Whether the times of starting and restoring are told."
    ),
    "exp_manager.save_xser": ignored(_FORMAT, boolean, quiet=()),
    "exp_manager.load_xser": ignored(_FORMAT, boolean, quiet=()),
    "exp_manager.save_bf16": ignored(_FORMAT, boolean, quiet=(False,)),
    "exp_manager.ckpt_ptl_version": ignored(_FORMAT, coerce.text),
    "exp_manager.version": ignored("a run directory has a name of its own", optional(coerce.text), quiet=(None,)),
    "exp_manager.use_datetime_version": ignored("a run directory has a name of its own", boolean, quiet=(True, False)),
    "exp_manager.create_early_stopping_callback": rejected("no run is ended early", boolean, quiet=(False,)),
    "exp_manager.early_stopping_callback_params": ignored("no run is ended early", anything, quiet=(None,)),
    "exp_manager.create_preemption_callback": ignored(_LIVENESS, boolean, quiet=(True, False)),
    "exp_manager.create_straggler_detection_callback": ignored(_LIVENESS, optional(boolean), quiet=(None, False)),
    "exp_manager.straggler_detection_params": ignored(_LIVENESS, anything, quiet=(None,)),
    "exp_manager.create_fault_tolerance_callback": ignored(_LIVENESS, optional(boolean), quiet=(None, False)),
    "exp_manager.fault_tolerance": ignored(_LIVENESS, anything, quiet=(None,)),
    "exp_manager.files_to_copy": ignored("a run directory holds what was run", anything, quiet=(None,)),
    "exp_manager.log_step_timing": ignored("every step's time is always logged", boolean, quiet=(True,)),
    "exp_manager.log_delta_step_timing": ignored("every step's time is always logged", boolean, quiet=(False,)),
    "exp_manager.step_timing_kwargs": ignored("every step's time is always logged", anything, quiet=(None,)),
    "exp_manager.log_tflops_per_sec_per_gpu": ignored("throughput is always logged", boolean, quiet=(True,)),
    "exp_manager.disable_validation_on_resume": ignored(_NEMO, boolean, quiet=(True, False)),
    "exp_manager.ema": rejected("no moving average of the weights is kept", anything, quiet=(None,)),
    "exp_manager.max_time_per_run": rejected("the launcher limits time", optional(anything), quiet=(None,)),
    "exp_manager.seconds_to_sleep": ignored(_NEMO, coerce.decimal, quiet=(5.0,)),
    **_OPEN_SERVICES,
}  # fmt: skip


def log_dir(settings: Settings) -> str | None:
    """explicit_log_dir as it is, or exp_dir/name; None: wherever the run directory is."""
    explicit, above = settings.get("exp_manager.explicit_log_dir"), settings.get("exp_manager.exp_dir")
    if explicit or not above:
        return explicit or None
    return f"{above.rstrip('/')}/{settings.get('exp_manager.name') or 'default'}"


def logging(settings: Settings) -> Logging:
    """What is written; the defaults are those that NxDT documents."""
    return Logging(
        interval_steps=settings.get("trainer.log_every_n_steps", 1),
        tensorboard=settings.get("exp_manager.create_tensorboard_logger", False),
        gradient_norm=settings.get("exp_manager.log_gradient_norm", False),
        parameter_norm=settings.get("exp_manager.log_parameter_norm", False),
        startup_times=settings.get("exp_manager.enable_recovery_time_instrumentation", False),
    )


def checkpoint(settings: Settings) -> Checkpoint:
    """When checkpoints are saved and which of them are kept; NeMo's defaults keep three."""
    keep = settings.get(f"{_P}.save_top_k", 3)
    every = settings.get(f"{_P}.every_n_train_steps")
    seconds = settings.get(f"{_P}.train_time_interval")
    resumes = settings.get("exp_manager.resume_if_exists", False)
    return Checkpoint(
        enabled=settings.get("exp_manager.create_checkpoint_callback", True),
        asynchronous=settings.get("exp_manager.async_checkpointing", False),
        directory=settings.get(f"{_P}.dirpath") or None,
        interval_steps=every if every and every > 0 and keep != 0 else None,
        interval_minutes=coerce.fraction_of(seconds, 60.0) if seconds and keep != 0 else None,
        keep=None if keep == -1 else max(1, keep),
        keep_best=_best(settings, keep),
        resume=resumes,
        resume_required=resumes and not settings.get("exp_manager.resume_ignore_no_checkpoint", False),
        resume_from=settings.get("exp_manager.resume_from_checkpoint") or None,
        weights_only=settings.get("model.weight_init_only", False),
    )


def _best(settings: Settings, keep: int) -> str | None:
    """The metric by which checkpoints are kept; None: the newest. All or none need no metric."""
    monitor = settings.get(f"{_P}.monitor", "val_loss")
    mode = settings.get(f"{_P}.mode", "min")
    if monitor not in ("step", "global_step", *MONITORS):
        why = f"{coerce.shown(monitor)} decides nothing here; step, val_loss and reduced_train_loss can"
        settings.add(f"{_P}.monitor", "error", "bad-value", why, "give monitor: step with mode: max for the newest")
        return None
    is_newest = monitor not in MONITORS
    if mode != ("max" if is_newest else "min") and keep not in (0, -1):
        wanted = "max" if is_newest else "min"
        why = f"{mode} of {monitor} would keep the {'oldest' if is_newest else 'worst'} checkpoints"
        settings.add(f"{_P}.mode", "error", "contradiction", why, f"give mode: {wanted}")
    return None if is_newest else MONITORS[monitor]

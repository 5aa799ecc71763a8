"""Rules across fields: what is wrong, or looks wrong, with a spec as a whole.

A rule sees the spec and where its values came from, and yields findings in the user's own key names. It decides purely;
`xla_flags` asks the installed jaxlib.
"""

from __future__ import annotations

from dataclasses import replace

from seatrial.check import (
    data,
    environment,
    memory,
    mesh,
    model,
    network,
    precision,
    schedule,
    settings,
    targets,
    trainer,
)
from seatrial.check.finder import Finder, Rule
from seatrial.check.model import contradiction
from seatrial.estimate.compiled import Compiled
from seatrial.estimate.memory import OWN
from seatrial.spec import Action, Resolved

# The trainer's rows of the same names; each keeps what MaxText's row of that name keeps.
REMAT = (
    "none", "full", "minimal", "minimal_with_context", "minimal_flash", "save_dot_except_mlp",
    "save_dot_with_context_except_mlp", "save_dot_except_mlpwi", "save_qkv_proj", "save_out_proj",
    "minimal_offloaded", "qkv_proj_offloaded",
)  # fmt: skip

# Findings of rules and dialects about Seatrial's own trainer: what it lacks, or does instead.
_OF_OUR_TRAINER = frozenset(
    {"not-supported-yet", "nearest-mask", "nearest-optimizer", "nearest-recipe", "nearest-remat", "nearest-strategy",
     "own-resumption", "schedule-differs"}
)  # fmt: skip


def lint(
    resolved: Resolved, *, action: Action, engine: str | None = None, compiled: Compiled | None = None
) -> Resolved:
    """The same, with what the rules found appended to its problems. `engine`: what will train, where that is said.

    `compiled`: the step of Seatrial's own trainer, whose memory is then known and not estimated.

    Where that is another trainer, what only Seatrial's own would do differently is left out.
    """
    if resolved.spec is None:
        return resolved
    finder = Finder(resolved, resolved.spec, action, engine, compiled)
    said = {(problem.code, problem.path) for problem in resolved.problems}  # a dialect knows its users' words better
    found = [problem for _, rule in RULES for problem in rule(finder) if (problem.code, problem.path) not in said]
    problems = [*resolved.problems, *found]
    if engine not in (None, "", OWN):
        problems = [each for each in problems if each.severity == "error" or each.code not in _OF_OUR_TRAINER]
    return replace(resolved, problems=tuple(problems))


__all__ = ["REMAT", "RULES", "Rule", "contradiction", "lint"]

RULES: tuple[tuple[str, Rule], ...] = (
    # the model
    ("the model's numbers are those of its name", model.architecture),
    ("query heads share key/value heads evenly", model.heads),
    ("rotary positions are those of the model", model.rotary_base),
    # mesh and batch
    ("the mesh uses every device once", mesh.devices_used),
    ("the global batch divides into micro batches", mesh.batch_divides),
    ("what a mesh axis splits is a multiple of it", mesh.split_dimensions),
    ("devices share key/value heads where they can", mesh.shared_heads_are_known),
    ("the stages of a pipeline are even and busy", mesh.pipeline_is_even),
    ("the run fits into each device's memory", memory.memory_fits),
    # number formats
    ("names say which number format runs", precision.names_say_the_precision),
    ("the device has the number format", precision.device_has_the_format),
    ("weights are stored finely enough for their updates", precision.updates_are_kept),
    # steps
    ("the run has a length", schedule.length_is_known),
    ("the warm-up ends before the run does", schedule.warmup_ends),
    ("the schedule has room for a decay", schedule.schedule_has_room),
    ("a rate that falls in steps has time to", schedule.rate_falls),
    ("the optimizer's numbers are stable", schedule.optimizer_is_stable),
    ("every interval ends within the run", schedule.intervals_are_reached),
    ("a run that has to resume can find a checkpoint", schedule.something_to_resume),
    # data
    ("data of the kind that needs files has them", data.data_is_there),
    ("the objective can learn from the data", data.data_fits_the_objective),
    ("sequences fit the model", data.sequences_fit_the_model),
    ("evaluations have data", data.evaluations_have_data),
    # targets
    ("no target is above the device's peak", targets.impossible_targets),
    ("no target is above what any layout reaches", targets.unreachable_targets),
    ("no target is so weak that anything passes", targets.weak_targets),
    ("no metric has two targets", targets.repeated_targets),
    ("targets for the same thing agree", targets.contradicting_targets),
    ("a run with targets has enough steps to be judged", schedule.enough_steps_to_judge),
    # network, container, variables and flags
    ("all nodes can reach the coordinator", network.coordinator_is_reachable),
    ("network cards and interfaces are named together", network.cards_are_named),
    ("network cards are of the kind that is named", network.cards_are_of_their_kind),
    ("the GID index is one of RoCE v2", network.gid_index),
    ("the container can work", settings.container_can_work),
    ("variables repeat what the settings say", environment.repeated_variables),
    ("variables have the names of variables", environment.variable_names),
    ("as many devices are visible as are used", environment.devices_are_visible),
    ("JAX's share of a device's memory is a fraction", memory.memory_fraction),
    ("XLA flags stand in one place", environment.flags_stand_in_one_place),
    ("the installed jaxlib knows the XLA flags", environment.known_flags),
    # settings without effect, and what the trainer does not support yet
    ("settings have an effect", settings.settings_have_an_effect),
    ("the trainer supports the run", trainer.not_supported_yet),
)

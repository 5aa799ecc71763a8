"""Cross-field rules: what is wrong, or looks wrong, with a spec as a whole.

A rule sees the spec and where its values came from, and yields findings in the user's own key names. It decides purely:
what the installed jaxlib says about XLA flags is asked for in `xla_flags`.
"""

from __future__ import annotations

from dataclasses import replace

from seatrial.check.bars import contradicting_bars, impossible_bars, repeated_bars
from seatrial.check.environment import known_flags, repeated_variables, variable_names
from seatrial.check.finder import Finder, Rule
from seatrial.check.mesh import batch_divides, data_is_there, devices_used, split_dimensions, warmup_ends
from seatrial.check.model import architecture, contradiction, heads
from seatrial.check.trainer import not_supported_yet
from seatrial.spec import Resolved

# The trainer's rows of the same names; what each of them keeps is MaxText's meaning of it.
REMAT = (
    "none", "full", "minimal", "minimal_with_context", "minimal_flash", "save_dot_except_mlp",
    "save_dot_with_context_except_mlp", "save_dot_except_mlpwi", "save_qkv_proj", "save_out_proj",
)  # fmt: skip


def lint(resolved: Resolved, *, action: str) -> Resolved:
    """The same, with what the rules found appended to its problems."""
    if resolved.spec is None:
        return resolved
    finder = Finder(resolved, resolved.spec, action)
    found = [problem for _, rule in RULES for problem in rule(finder)]
    return replace(resolved, problems=(*resolved.problems, *found))


__all__ = ["REMAT", "RULES", "contradiction", "lint"]

RULES: tuple[tuple[str, Rule], ...] = (
    ("the model's numbers are those of its name", architecture),
    ("query heads share key/value heads evenly", heads),
    ("the mesh uses every device once", devices_used),
    ("the global batch divides into micro batches", batch_divides),
    ("what a mesh axis splits is a multiple of it", split_dimensions),
    ("the warm-up ends before the run does", warmup_ends),
    ("there is data of the kind asked for", data_is_there),
    ("no bar is above the device's peak", impossible_bars),
    ("no metric has two bars", repeated_bars),
    ("bars that measure the same thing agree", contradicting_bars),
    ("variables repeat what the settings say", repeated_variables),
    ("variables have the names of variables", variable_names),
    ("the installed jaxlib knows the XLA flags", known_flags),
    ("the trainer can do what is asked for", not_supported_yet),
)

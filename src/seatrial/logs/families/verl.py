"""verl's reinforcement learning: `step:3 - actor/pg_loss:0.021 - actor/grad_norm:0.13 - … - timing_s/step:96.551 - …`.

The loss is the policy's, which says nothing of how the run goes: it may be negative, and need not fall. Step 0 is an
evaluation before the first. A step takes generation, scoring and updates together; the tokens/s are those of prompts
and answers, per device, in all of it. The MFU is that of a part of the step, and is not read.
"""

from __future__ import annotations

import re

from seatrial.logs.grammar import Family, Field, note
from seatrial.logs.numbers import NUMBER

# At the end of a line, a number with fewer than three decimals may have been cut.
PAIR = re.compile(
    rf"(?<= - )([^:\s]{{1,120}}):(?:np\.\w{{1,20}}\((?=[^)\s]+\)))?({NUMBER}(?=\)? - )|-?\d+\.\d{{3,}}(?=\)?\s*$))",
    re.IGNORECASE,
)
NOTES = (
    note("facts", "Total training steps: ", r"Total training steps: (?P<planned_steps>\d+),?\s*$"),
    note("end", "Final validation metrics: "),
)

FAMILY = Family(
    name="verl",
    anchors=("step:", " - actor/"),
    head=re.compile(r"\bstep:(?P<step>\d+) - "),
    pair=PAIR,
    whole=re.compile(r"(?<= - )actor/(?:pg_)?loss:\S+ - "),
    fields={
        "actor/pg_loss": Field(name="loss", preferred=True),
        "actor/loss": Field(name="loss"),
        "actor/grad_norm": Field(name="grad_norm"),
        "actor/lr": Field(name="learning_rate"),
        "timing_s/step": Field(name="seconds", preferred=True),
        "perf/time_per_step": Field(name="seconds"),
        "perf/throughput": Field(name="tokens_per_second_per_device"),
        "perf/max_memory_reserved_gb": Field(name="memory_bytes", per=2.0**-30),
    },
    counted_from=1,
    objective="policy",
    notes=(
        *NOTES,
        note("start", "Setting global step to ", r"Setting global step to \d+", trains=True),
        note("checkpoint", "Setting global step to ", r"Setting global step to (?P<step>\d+)", action="restore"),
    ),
)

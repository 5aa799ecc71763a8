"""The needs of each action: one row per action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Action = Literal["run", "train", "rehearse", "check", "plan", "convert", "judge"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The needs of an action; the absence of one is an error, not a warning.

    `cluster`: what describes the cluster, such as the number of nodes. `device`: devices that can do what is asked of
    them (memory, network). `trainer`: our own trainer, which runs on this machine. `data`: all of the data on this
    machine; `text`: data of that kind alone. `memory`: an estimate of what each device needs; no error by itself.
    """

    cluster: bool = False
    device: bool = False
    trainer: bool = False
    data: bool = False
    text: bool = False
    memory: bool = True


NEEDS: Mapping[Action, Needs] = {
    "run": Needs(cluster=True, device=True, trainer=True, data=True, text=True),
    "train": Needs(device=True, trainer=True, data=True, text=True),
    "rehearse": Needs(trainer=True, text=True),  # random tokens stand in for other data
    "check": Needs(cluster=True, device=True, text=True),
    "plan": Needs(cluster=True),
    "convert": Needs(),
    "judge": Needs(memory=False),
}

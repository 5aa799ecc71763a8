"""Runs whose reports are looked at, by name."""

from __future__ import annotations

from tests.helpers import run_directory
from tests.helpers.run_directory import Story

STORIES: dict[str, Story] = {
    "sound": run_directory.sound,
    "killed": run_directory.killed,
    "diverged": run_directory.diverged,
    "slow": run_directory.slow,
}

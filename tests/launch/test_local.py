"""This machine as its own tools report it, and what of it a process started here can use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.launch.local import this_machine


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        (None, ("0", "1", "2", "3")),
        ("all", ("0", "1", "2", "3")),
        ("3,1", ("3", "1")),
        (" 2 , 0 ", ("2", "0")),
        ("2,9,0", ("2",)),  # CUDA stops reading at a device that is not there
        ("GPU-8932f937,1", ("GPU-8932f937", "1")),
        ("", ()),
        ("-1", ()),
    ],
)
def test_devices_that_the_shell_hides_are_not_this_run_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, names: tuple[str, ...]
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '%s, 81559\\n' 0 1 2 3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert this_machine(for_jax=False).accelerators == names


@pytest.mark.parametrize(("code", "names"), [(14, ("0", "1")), (9, ()), (255, ())])
def test_a_warning_of_an_inforom_beside_the_listing_hides_no_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, names: tuple[str, ...]
) -> None:
    tool = tmp_path / "nvidia-smi"
    warning = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
    tool.write_text(f"#!/bin/sh\nprintf '%s, 81559\\n' 0 1\necho '{warning}'\nexit {code}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert this_machine(for_jax=False).accelerators == names


@pytest.mark.parametrize(
    ("told", "names", "gib"),
    [
        ("0, 81559\\n1, 24576\\n", ("0", "1"), 24),
        ("0, [N/A]\\n", ("0",), None),  # as where a GPU shares the memory of the CPU
        ("0, 24576\\n1, [N/A]\\n", ("0", "1"), None),
    ],
)
def test_accelerators_are_told_with_the_memory_of_the_smallest(
    told: str, names: tuple[str, ...], gib: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    asked = "--query-gpu=index,memory.total --format=csv,noheader,nounits"
    tool.write_text(f"#!/bin/sh\n[ \"$*\" = '{asked}' ] && printf '{told}'\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    machine = this_machine(for_jax=False)
    assert (machine.vendor, machine.accelerators) == ("nvidia", names)
    assert machine.accelerator_bytes == (gib and gib << 30)

"""What of this machine a process started here can use."""

from __future__ import annotations

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
    tool.write_text("#!/bin/sh\nprintf '%s\\n' 0 1 2 3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert this_machine(for_jax=False).accelerators == names

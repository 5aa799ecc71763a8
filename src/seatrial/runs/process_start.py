"""When a process of this machine began."""

from __future__ import annotations

import sys
import time

import psutil


def start_time(pid: int | None = None) -> float:
    """The wall-clock time, in seconds since the epoch, at which a process was started; None is this process.

    On Linux the kernel counts from the boot, and psutil adds a boot time of whole seconds (btime in proc(5)), which
    makes a process up to one second older than it is. The time since the boot has no such error.

    Raises psutil.Error where there is no such process.
    """
    created = psutil.Process(pid).create_time()
    if sys.platform != "linux":
        return created
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - (created - psutil.boot_time()))

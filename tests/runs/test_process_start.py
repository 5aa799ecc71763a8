"""When processes began, held against clocks read right before and after their start."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from seatrial.runs.process_start import start_time


def test_the_start_of_a_process_is_known_to_a_few_hundredths_of_a_second():
    """Ten of them over two seconds: a boot time of whole seconds would be wrong for most."""
    for _ in range(10):
        before = time.time()
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            after = time.time()
            assert before - 0.03 <= start_time(process.pid) <= after + 0.03  # the kernel counts in hundredths
            process.communicate(b"\n")
        time.sleep(0.2)


def test_without_a_number_it_is_this_process():
    assert abs(start_time() - start_time(os.getpid())) < 0.03

"""The calls that the kernel refuses to a script: those that reach what no namespace holds.

Keyrings are such: a process has those of the shell that started it, and may read, change and revoke their keys. The
filter is a program of seccomp (linux/filter.h, linux/seccomp.h), which bubblewrap loads for all that it starts.
"""

from __future__ import annotations

import errno
import platform
import struct

# By machine: its AUDIT_ARCH_… (linux/audit.h), and the numbers of add_key, request_key and keyctl (asm/unistd.h).
_MACHINES = {
    "x86_64": (0xC000003E, (248, 249, 250)),
    "aarch64": (0xC00000B7, (217, 218, 219)),
    "riscv64": (0xC00000F3, (217, 218, 219)),
    "ppc64le": (0xC0000015, (269, 270, 271)),
}
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # where they stand in seccomp_data
_OTHER_ABI = 0x40000000  # the first number of x32, the same calls by other numbers
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOSYS


def program(machine: str = platform.machine()) -> bytes:
    """The filter for a machine: it refuses the calls, and all of other ABIs; nothing for one that is not known."""
    if machine not in _MACHINES:
        return b""
    architecture, refused = _MACHINES[machine]
    behind = len(refused) + 1  # instructions from the test of the ABI to the last one, which refuses
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, behind + 2, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, behind, 0, _OTHER_ABI),
        *((_EQUAL, behind - 1 - place, 0, number) for place, number in enumerate(refused)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)

"""An empty machine for a script that nobody trusts, made by bubblewrap: nothing outside can be written or reached.

In it are the system's programs (read-only), stand-ins for what would start something, and a copy of the script's
folder. There is no network, no home, no /etc of this machine and no other process; other files lie in memory.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from seatrial.capture import project as project_copy
from seatrial.capture import syscalls
from seatrial.capture.inside import stand_in
from seatrial.errors import InputError

HERE = "/seatrial"
SETTINGS = "/proc/sys/"  # of the kernel: an empty folder, into which a script may write
MAX_PROCESSES = 256
MAX_FILE_BYTES = 32 * 2**20  # of each file that is written, the script's output among them
MAX_MEMORY_FILES = 256 * 2**20  # of all of them together
MAX_ADDRESSES = 4 * 2**30  # bytes of address space of a process
_NOBODY = 65534
_LOOK_SECONDS = 0.1  # between two looks at how much is written
_PYTHON = "/seatrial-python"  # where ours is, which runs the stand-ins; it finds its library beside itself
_OURS = re.compile(r"SEATRIAL_AT=|printf '%s\\0")  # what `set -x` shows of our trap
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf", "os-release")
_PATH = f"{HERE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Root becomes nobody, for whom limits hold; nobody else gains anything by a program that is set-user-ID.
_AS_NOBODY = (
    "setpriv",
    f"--reuid={_NOBODY}",
    f"--regid={_NOBODY}",
    "--clear-groups",
    "--no-new-privs",
    "--inh-caps=-all",
)
# Where memory runs out, the kernel ends the script first; no file of the sandbox is larger than the limit.
_ENDS_FIRST = ("choom", "-n", "1000", "--", "prlimit", f"--fsize={MAX_FILE_BYTES}", "--")
_LIMITS = f"ulimit -c 0 -u {MAX_PROCESSES} -f {MAX_FILE_BYTES // 1024} -v {MAX_ADDRESSES // 1024}"
# What a script leaves in the background is given a second: of all processes, two are the sandbox's own.
_START = (
    _LIMITS
    + """; "$@"; code=$?
for _ in {1..20}; do all=(/proc/[0-9]*); ((${#all[@]} > 2)) || break; sleep 0.05; done; exit $code"""
)
_SHELL = ("bash", "--norc", "--noprofile", "-c", _START, "bash")  # the words of a command follow


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A path that the script expects: a folder, a file or a program."""

    path: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a script: its exit code (None: it was stopped), and its last output."""

    exit_code: int | None
    output: str


def require() -> str:
    """The path of bubblewrap. Raises InputError where no sandbox can be had."""
    found = shutil.which("bwrap")
    if found is None:
        raise _refused("bubblewrap is not installed", "install it (apt install bubblewrap, dnf install bubblewrap)")
    done = subprocess.run([found, "--ro-bind", "/", "/", "--unshare-all", "true"], capture_output=True, text=True)
    if done.returncode:
        why = f"bubblewrap cannot make one here: {done.stderr.strip()[:200]}"
        raise _refused(why, "allow user namespaces (sysctl user.max_user_namespaces), or capture it on another machine")
    return found


def _refused(why: str, fix: str) -> InputError:
    return InputError.single("no-sandbox", "capture", f"a script is only run in a sandbox, and {why}", fix)


def prepare(scratch: Path, project: Path, script: Path, text: str) -> None:
    """Lays out what the sandbox gets: stand-ins, an empty record, and a copy of the project, its script with a text."""
    for name in ("bin", "modules", "records", "scripts", "home"):
        (scratch / name).mkdir(parents=True)
    source = files("seatrial.capture.inside")
    program = scratch / "bin" / ".any"
    body = source.joinpath("stand_in.py").read_text(encoding="utf-8")
    program.write_text(f"#!{_python()} -SI\n{body}", encoding="utf-8")
    program.chmod(0o755)
    for name in stand_in.NAMES:
        (scratch / "bin" / name).symlink_to(".any")
    for name, place in (("torch.py", "modules/torch.py"), ("startup.sh", "startup.sh")):
        (scratch / place).write_bytes(source.joinpath(name).read_bytes())
    (scratch / "trace").touch()
    (scratch / "empty").touch()
    user, number = _user(), os.getuid() or _NOBODY
    accounts = f"root:x:0:0::/root:/bin/bash\n{user}:x:{number}:{number}::{_home()}:/bin/bash\n"
    (scratch / "passwd").write_text(accounts, encoding="utf-8")
    (scratch / "group").write_text(f"root:x:0:\n{user}:x:{number}:\n", encoding="utf-8")
    owner = _NOBODY if os.geteuid() == 0 else None
    if owner is not None:
        for path in (scratch, *scratch.rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)
    copied = scratch / "project"
    project_copy.copy(project, copied, script, owner)
    if script.is_relative_to(project):
        to = copied / script.relative_to(project)
        to.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")


def _python() -> str:
    return f"{_PYTHON}/bin/python3.{sys.version_info.minor}"


def run(
    bubblewrap: str, scratch: Path, project: Path, command: Sequence[str], *, folder: Path,
    variables: Mapping[str, str], missing: Iterable[Missing], seconds: float,
) -> Ended:  # fmt: skip
    """Runs a command in the sandbox, for so many seconds at the most."""
    calls, most = _refused_calls(), project_copy.count(scratch) + project_copy.MAX_MADE
    argv = [*_ENDS_FIRST, bubblewrap, *_layout(scratch, project), *_made(missing), "--chdir", str(folder)]
    argv += [word for number in calls for word in ("--seccomp", str(number))]
    argv.append("--clearenv")
    for name, value in {**_environment(project), **variables}.items():
        argv += ["--setenv", name, value]
    argv += ["--", *(_AS_NOBODY if os.geteuid() == 0 else ()), *_SHELL, *command]
    with tempfile.TemporaryFile() as output:  # which no script can replace
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd="/",
            env={"PATH": os.defpath}, pass_fds=calls,
        )  # fmt: skip
        for number in calls:
            os.close(number)
        until, code = time.monotonic() + seconds, None
        try:
            wait = _LOOK_SECONDS
            while code is None and time.monotonic() < until:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=min(wait, max(0.0, until - time.monotonic())))
                began = time.monotonic()
                if code is None and project_copy.is_full(scratch, most):
                    break
                wait = max(_LOOK_SECONDS, 4 * (time.monotonic() - began))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the sandbox's first process dies with bubblewrap, all with it
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - 20_000))
        lines = output.read().decode("utf-8", "replace").splitlines(keepends=True)
    return Ended(exit_code=code, output="".join(line for line in lines if not _OURS.search(line)))


def _refused_calls() -> tuple[int, ...]:
    """The descriptor from which bubblewrap reads the filter of calls; none for a machine that has none."""
    program = syscalls.program()
    if not program:
        return ()
    read, write = os.pipe()
    os.write(write, program)
    os.close(write)
    return (read,)


def _layout(scratch: Path, project: Path) -> list[str]:
    argv = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if os.geteuid() == 0 else ["--unshare-user"]
    argv += ["--die-with-parent", "--new-session", "--hostname", "node1"]
    argv += ["--perms", "1777", "--size", str(MAX_MEMORY_FILES), "--tmpfs", "/", "--proc", "/proc", "--dev", "/dev"]
    argv += ["--perms", "0777", "--size", str(MAX_MEMORY_FILES), "--tmpfs", SETTINGS]
    for name in ("net/core", "net/ipv4", "kernel", "vm"):
        argv += [*_folder(f"{SETTINGS}{name.partition('/')[0]}"), *_folder(f"{SETTINGS}{name}")]
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            argv += ["--ro-bind", str(path), str(path)]
    argv += _folder("/etc")
    argv += [word for name in _ETC for word in ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")]
    argv += [word for name in ("passwd", "group") for word in ("--ro-bind", str(scratch / name), f"/etc/{name}")]
    for folder in ("/tmp", "/var/tmp", "/run", "/opt", "/home", *_parents(Path(_home())), _home()):
        argv += _folder(folder)
    argv += ["--ro-bind", str(Path(sys.base_prefix).resolve()), _PYTHON, *_above(project)]
    argv += [word for path in _stood_in_for() for word in ("--ro-bind", str(scratch / "bin" / ".any"), path)]
    argv += ["--bind", str(scratch), HERE, "--bind", str(scratch / "project"), str(project)]
    return argv


def _stood_in_for() -> list[str]:
    """The system's own programs of which there are stand-ins, for a script that names them by their path."""
    found: dict[str, None] = {}
    for folder in ("/usr/bin", "/usr/local/bin"):
        for name in stand_in.NAMES:
            real = Path(folder, name).resolve()  # of python3, python3.12; another name has other uses
            if real.name.startswith(name) and real.is_relative_to("/usr") and real.is_file():
                found[str(real)] = None
    return [*found]


def _above(path: Path) -> list[str]:
    """The folders above a path, which bubblewrap would make for root alone."""
    return [word for parent in _parents(path) for word in _folder(parent)]


def _parents(path: Path) -> list[str]:
    return [str(parent) for parent in reversed(path.parents[:-1])]


def _folder(path: str) -> list[str]:
    """A folder in which everybody may write, where there is none yet."""
    return ["--perms", "0777", "--dir", path]


def _made(missing: Iterable[Missing]) -> list[str]:
    """Bubblewrap's arguments for what a script expects and is not here: empty folders, empty files, or stand-ins."""
    argv: list[str] = []
    for each in missing:
        argv += _above(Path(each.path))
        if each.kind == "folder":
            argv += _folder(each.path)
        else:
            argv += ["--symlink", f"{HERE}/bin/.any" if each.kind == "program" else f"{HERE}/empty", each.path]
    return argv


def _home() -> str:
    """The user's home, which is empty there; root's is another, as root is nobody there."""
    home = os.environ.get("HOME", "")
    return home if home.startswith("/") and os.geteuid() else "/home/user"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name if os.getuid() else "user"
    except KeyError:
        return "user"


def _environment(project: Path) -> dict[str, str]:
    user = _user()
    return {
        "PATH": _PATH, "HOME": _home(), "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "LANG": "C.UTF-8",
        "TERM": "xterm", "HOSTNAME": "node1", "BASH_ENV": f"{HERE}/startup.sh", "SEATRIAL_PROJECT": str(project),
    }  # fmt: skip


BASELINE = frozenset(_environment(Path())) | {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}

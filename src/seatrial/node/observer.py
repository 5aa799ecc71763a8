"""Watches a node during a run: its devices, its network counters and the kernel's log.

    python3 -I observer.py          the job is a line of JSON on the standard input: {"path", "interval_seconds"}

The agent starts it, and it ends when its standard input does. It appends lines of JSON to the file at `path`, each
with its `kind` and with `at`, seconds since the epoch by this node's clock:

    begun     {"v", "host", "interval_seconds", "cores", "memory_bytes"}
    source    {"source", "why"}: what this node does not offer, or no longer does
    devices   {"devices": {name: {"model", "memory_bytes"}}}
    sample    {"devices": {name: {quantity: number, "throttled": [reason]}}, "node": {quantity: number}}
    counters  {"counters": {place: {name: value}}}: first all, then errors that have changed, in the end all that have
    kernel    {"level", "stamp" (the kernel's own seconds), "text"}
    ended     {"cpu_seconds", "left_out": {kind: number of lines}}

No reading may take more than a hundredth of a core: one that took long is taken that much less often. The file stays
small: whenever the samples have filled another SAMPLE_BYTES, they come half as often. What fails is reported, and
disturbs nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING or __package__:
    from seatrial.node import processes, sensors
else:  # on a node, where its modules lie beside it
    sys.dont_write_bytecode = True  # what lies in the run's folder is the run's
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import processes
    import sensors

VERSION = 1
TOLERANCE = 1.2  # times its share that a tool may cost before it is slowed down
SHARE = 100.0  # a reading that took a second is not taken again within so many
SAMPLE_BYTES = 2 << 20
MOST_BYTES = {"sample": 24 << 20, "counters": 4 << 20, "kernel": 4 << 20}
CHATTER_BYTES = 1 << 18  # of lines of the kernel that are no warning
CHATTER_LEVEL = 5
MAX_TEXT = 1000
SETTLE_SECONDS = 0.1  # in which a tool prints all its lines
COST_SECONDS = 60.0  # over which the cost of a tool is measured
AGAIN_SECONDS = 60.0  # before a tool that has ended is started again
FINISH_SECONDS = 1.0
PLACES = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin", "/opt/rocm/bin")  # ssh's PATH has few of them


class Tool:
    """A program in the background: `take` gets its output, `over` its last line and its exit code."""

    def __init__(self, argv: list[str], take: Callable[[bytes], None], over: Callable[[str, int], None]) -> None:
        self.take, self.over, self.said = take, over, b""
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
            env={**os.environ, "LC_ALL": "C"},
            preexec_fn=lambda: processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL),  # it dies with this
        )  # fmt: skip
        pipe: Any = self.process.stdout
        self.pipe = pipe
        os.set_blocking(self.pipe.fileno(), False)

    def read(self) -> bool:
        """Takes what has come; False when no more will."""
        try:
            chunk = os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        self.said = (self.said + chunk)[-MAX_TEXT:]
        if chunk:
            self.take(chunk)
        return bool(chunk)

    def end(self) -> None:
        self.pipe.close()
        if self.process.poll() is None:
            self.process.kill()


def slower(every: int, share: float) -> int:
    """The interval of a tool that takes this share of a core, so that it takes no more than it may."""
    return max(every, math.ceil(every * share * SHARE)) if share * SHARE > TOLERANCE else every


class Observer:
    """Watches one node, in one thread: does what is due, and takes what comes."""

    def __init__(self, path: str, interval_seconds: float) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.interval_seconds = interval_seconds
        self.written: dict[str, int] = {}
        self.left_out: dict[str, int] = {}
        self.torn = False  # the last line is only there in part
        self.selector = selectors.DefaultSelector()
        self.due: dict[Callable[[], None], float] = {self.sample: 0.0, self.count: 0.0}
        self.tools: list[Tool] = []
        self.node, self.clock = sensors.Node(), sensors.Clock()
        self.devices: dict[str, dict[str, Any]] = {}
        self.fresh: dict[str, dict[str, Any]] = {}  # of devices, not yet written
        self.first_counters: dict[str, dict[str, int]] | None = None
        self.last_counters: dict[str, dict[str, int]] = {}
        self.kernel: int | None = None

    def run(self) -> None:
        """Watches until the standard input ends."""
        host = socket.gethostname()
        self.write("begun", v=VERSION, host=host, interval_seconds=self.interval_seconds, **sensors.machine())
        self.selector.register(0, selectors.EVENT_READ, None)
        for begin in (self.begin_kernel, self.begin_devices):
            self._try(begin)
        while self._turn():
            pass
        self._try(self.finish)

    def _turn(self) -> bool:
        """Does what is due, then waits for input; False when the standard input has ended."""
        for act in [act for act, at in self.due.items() if at <= time.monotonic()]:
            del self.due[act]
            self._try(act)
        wait = min(self.due.values(), default=time.monotonic() + AGAIN_SECONDS) - time.monotonic()
        for key, _ in self.selector.select(max(0.0, wait)):
            if key.data is None:
                if not os.read(0, 4096):
                    return False
            elif not self._try(key.data):
                with contextlib.suppress(KeyError, ValueError):
                    self.selector.unregister(key.fileobj)
        return True

    def finish(self) -> None:
        """Writes what is left to write."""
        for act in (self.take_kernel, lambda: self.count(last=True), self.flush):
            self._try(act)
        for tool in self.tools:
            tool.end()
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = time.process_time() + spent.ru_utime + spent.ru_stime
        self.write("ended", cpu_seconds=round(seconds, 3), left_out=self.left_out)

    def _try(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as error:  # whatever it is, the rest goes on
            self.lacks(getattr(act, "__name__", "observer"), repr(error))
            return False
        return True

    def write(self, kind: str, **fields: Any) -> None:
        entry = {"kind": kind, "at": round(fields.pop("at", time.time()), 3), **fields}
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        used = self.written.get(kind, 0) + len(line)
        try:
            if used > MOST_BYTES.get(kind, 1 << 20):
                raise OSError("enough of that")
            written = os.write(self.file, b"\n" + line if self.torn else line)
        except OSError:  # a full disk, for one
            self.left_out[kind] = self.left_out.get(kind, 0) + 1
            return
        self.torn, self.written[kind] = written < len(line), used

    def lacks(self, source: str, why: str) -> None:
        self.write("source", source=source, why=" ".join(why.split())[:MAX_TEXT])

    # --- samples and counters ---

    def pause(self, took: float = 0.0) -> float:
        """Seconds from one sample to the next."""
        doubled: int = 2 ** (self.written.get("sample", 0) // SAMPLE_BYTES)
        return max(self.interval_seconds * doubled, SHARE * took)

    def sample(self) -> None:
        begun = time.monotonic()
        node = self.node.sample()
        cards = sensors.amd_cards()
        self.take_devices(cards)
        self.write("sample", devices={card: found for card, (_, found) in cards.items()}, node=node)
        self.due[self.sample] = begun + self.pause(time.monotonic() - begun)

    def take_devices(self, found: dict[str, sensors.Reading]) -> None:
        new = {device: about for device, (about, _) in found.items() if self.devices.get(device) != about}
        if new:
            self.devices.update(new)
            self.write("devices", devices=new)

    def take_samples(self, found: dict[str, sensors.Reading]) -> None:
        """Keeps a tool's readings of the devices until the next `flush`."""
        self.take_devices(found)
        self.fresh.update({device: values for device, (_, values) in found.items()})

    def flush(self) -> None:
        """Writes a tool's readings of the devices."""
        if self.fresh:
            self.write("sample", devices=self.fresh)
        self.fresh = {}

    def count(self, last: bool = False) -> None:
        begun, found = time.monotonic(), sensors.counters()
        if self.first_counters is None:
            self.first_counters = found
            changed = found
        else:
            before = self.first_counters if last else self.last_counters
            changed = {
                place: own
                for place, values in found.items()
                if (own := {
                    name: value
                    for name, value in values.items()
                    if value != before.get(place, {}).get(name) and (last or sensors.ERRORS.search(name))
                })
            }  # fmt: skip
        if changed:
            self.write("counters", counters=changed)
        self.last_counters = found
        self.due[self.count] = begun + self.pause(time.monotonic() - begun)

    # --- devices ---

    def begin_devices(self) -> None:
        path = os.pathsep.join([os.environ.get("PATH", ""), *PLACES])
        nvidia, amd = shutil.which("nvidia-smi", path=path), shutil.which("amd-smi", path=path)
        if nvidia:
            self.due[NvidiaSmi(self, nvidia).start] = 0.0
        else:
            self.lacks("nvidia-smi", "there is no nvidia-smi")
        if amd and not sensors.amd_cards():
            self.due[lambda: self.start_amd(amd)] = 0.0
        elif not sensors.amd_cards():
            self.lacks("amd-smi", "there is no amd-smi")

    def start(self, argv: list[str], take: Callable[[bytes], None], over: Callable[[str, int], None]) -> Tool:
        tool = Tool(argv, take, over)
        self.tools.append(tool)

        def read_on() -> None:
            if not tool.read():
                self.selector.unregister(tool.pipe)
                self.tools.remove(tool)
                tool.end()
                lines = tool.said.decode("utf-8", "replace").strip().splitlines()
                tool.over(lines[-1] if lines else "no output", tool.process.wait(FINISH_SECONDS))

        self.selector.register(tool.pipe, selectors.EVENT_READ, read_on)
        return tool

    def start_amd(self, program: str) -> None:
        """One call per sample, because not every version can loop and print JSON; it is a heavy program."""
        printed: list[bytes] = []
        before = resource.getrusage(resource.RUSAGE_CHILDREN)

        def over(said: str, code: int) -> None:
            try:
                found = sensors.amd_document(b"".join(printed).decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                self.lacks("amd-smi", "it ended with %d: %s" % (code, said))
                return
            self.take_samples(found)
            self.flush()
            spent = resource.getrusage(resource.RUSAGE_CHILDREN)
            took = spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime
            self.due[lambda: self.start_amd(program)] = time.monotonic() + self.pause(took)

        self.start([program, "metric", "--json"], printed.append, over)

    # --- the kernel's log ---

    def begin_kernel(self) -> None:
        try:
            self.kernel = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self.kernel, 0, os.SEEK_END)
            self.selector.register(self.kernel, selectors.EVENT_READ, self.take_kernel)
        except OSError as error:
            self.begin_journal("/dev/kmsg cannot be read: %s" % error.strerror)

    def begin_journal(self, why: str) -> None:
        """systemd's copy of the kernel's log may be readable where the log itself is not."""
        journal, rest = shutil.which("journalctl"), b""
        if journal is None:
            self.lacks("kernel log", why)
            return

        def take(chunk: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                found = sensors.journal_record(line.decode("utf-8", "replace"))
                if found:
                    self.say_kernel(*found)

        def over(said: str, code: int) -> None:
            self.lacks("kernel log", "%s; journalctl ended with %d: %s" % (why, code, said))

        self.start([journal, "--dmesg", "--follow", "--lines=0", "--output=json"], take, over)

    def take_kernel(self) -> None:
        while self.kernel is not None:
            try:
                found = sensors.kernel_record(os.read(self.kernel, 8192).decode("utf-8", "replace"))
            except BrokenPipeError:  # some were overwritten before they were read
                self.left_out["kernel"] = self.left_out.get("kernel", 0) + 1
                continue
            except BlockingIOError:
                return
            if found:
                level, stamp, text = found
                self.say_kernel(self.clock.wall(stamp, time.monotonic()), level, stamp, text)

    def say_kernel(self, when: float, level: int, stamp: float, text: str) -> None:
        if level >= CHATTER_LEVEL and self.written.get("kernel", 0) > CHATTER_BYTES:
            self.left_out["kernel"] = self.left_out.get("kernel", 0) + 1
        else:
            self.write("kernel", at=when, level=level, stamp=stamp, text=text)


class NvidiaSmi:
    """nvidia-smi in one process that prints again and again: starting it costs more than all that it does later."""

    def __init__(self, observer: Observer, program: str) -> None:
        self.observer, self.program = observer, program
        self.fields = [*sensors.NVIDIA_FIRST, *sensors.NVIDIA]
        self.every = max(1, round(observer.interval_seconds))  # seconds from one printing to the next

    def start(self) -> None:
        self.partial, self.has_printed, self.is_too_dear = b"", False, False
        query = "--query-gpu=" + ",".join(self.fields)
        argv = [self.program, query, "--format=csv,noheader,nounits", "--loop=%d" % self.every]
        tool = self.observer.start(argv, self.take, self.over)
        # What it costs to start does not count.
        self.observer.due[lambda: self.check_cost(tool)] = time.monotonic() + COST_SECONDS

    def take(self, chunk: bytes) -> None:
        *lines, self.partial = (self.partial[-MAX_TEXT:] + chunk).split(b"\n")
        rows = [sensors.nvidia_row(line.decode("utf-8", "replace"), self.fields) for line in lines]
        found = {row[0]: (row[1], row[2]) for row in rows if row}
        if found:
            self.has_printed = True
            self.observer.take_samples(found)
            late = self.observer.pause() - self.every  # as the file grows, most of what comes is not kept
            self.observer.due.setdefault(self.observer.flush, time.monotonic() + max(SETTLE_SECONDS, late))

    def check_cost(self, tool: Tool, before: float | None = None) -> None:
        """Ends it where it takes too much of a processor, so that it is started again to print more rarely."""
        if tool.process.poll() is not None:
            return
        spent = sensors.cpu_seconds(tool.process.pid)
        every = self.every if before is None else slower(self.every, (spent - before) / COST_SECONDS)
        if every > self.every:
            self.every, self.is_too_dear = every, True
            tool.process.kill()
        else:
            self.observer.due[lambda: self.check_cost(tool, spent)] = time.monotonic() + COST_SECONDS

    def over(self, said: str, code: int) -> None:
        """It ended: starts it again without what it refused, or later, or not at all if it never found a device."""
        refused = re.search(r'Field "([\w.]+)" is not a valid field', said)
        field = refused.group(1) if refused else ""
        if self.is_too_dear:
            self.start()
        elif field in self.fields[1:]:
            renamed = (sensors.OTHER_NAMES.get(each, "") if each == field else each for each in self.fields)
            self.fields = list(filter(None, renamed))
            self.start()
        else:
            self.observer.lacks("nvidia-smi", "it ended with %d: %s" % (code, said))
            if self.has_printed:
                self.observer.due[self.start] = time.monotonic() + AGAIN_SECONDS


def main() -> None:
    """Reads the job and watches. Signals that end the others do not end it: the agent does."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    job = json.loads(sys.stdin.buffer.readline())
    with contextlib.suppress(OSError):
        os.nice(5)
    Observer(job["path"], job["interval_seconds"]).run()


if __name__ == "__main__":
    main()

"""Works on a node for a launcher elsewhere: starts the agent there, and sends what it and its processes write.

Its text is sent with each call, in a line of JSON on the standard input of `python3 -I -c BOOT`, as
{"mark", "source", "verb", "given"}. The mark, which nobody can guess, is printed first, on a line by itself: whatever
comes before is the login shell's.

    begin   {"root", "files": {relative: text}, "job", "attempt", "port"} → {"pid"} once the agent runs by itself
    send    {"root", "host", "ranks", "offsets"} → frames until the input ends
    order   {"root", "host", "stop": "in_order" or "now"}           → {}: the agent is asked to stop
    release {"root", "host"}                                        → {}: all is copied, and a pod may end

A frame is a line of JSON and the bytes that it announces: {"file", "offset", "size"}; or, once a second,
{"alive": true, "agent": whether it lives, "more": whether some of what it wrote is still to be sent}. Lines that come
in are orders for the agent, as above. What fails is answered with {"error": why}. The root is a folder of mode 0700
that belongs to whoever logs in, and may not be a link.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import Any, Callable

# The text that `python3 -c` is given; nothing in it varies, so that no value ever passes through a shell.
BOOT = (
    'import json,sys;c=json.loads(sys.stdin.buffer.readline());print();print(c["mark"],flush=True);m={};'
    'exec(c["source"],m);m["main"](c["verb"],c["given"])'
)
TURN_SECONDS = 0.2
ALIVE_SECONDS = 1.0
CHUNK_BYTES = 1 << 18
END_SECONDS = 20.0  # for an agent of the last attempt that still runs
RELEASED = "released"
AGENT_PID = "agent.pid"  # until the agent writes its own status
WHOLE = (".json",)  # replaced rather than appended to: sent from the beginning whenever it has changed


def owned(root: str) -> None:
    """Makes the run's folder, or checks that it is ours. Raises OSError where others could replace it."""
    parent = os.path.dirname(root)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(root, 0o700)
    for folder, owners, closed in ((parent, (os.getuid(), 0), stat.S_IWOTH), (root, (os.getuid(),), 0o077)):
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or found.st_mode & closed:
            raise OSError("%s is not a folder that only user %d can write to" % (folder, os.getuid()))


def begin(given: dict[str, Any]) -> None:
    """Starts the agent, and tells its number."""
    _say({"pid": start(given).pid})


def start(given: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Writes the run's files and starts the agent in a session of its own; its job never lies on a disk."""
    root, job = given["root"], given["job"]
    owned(root)
    directory = job["directory"]
    if given["port"]:
        _require_port(given["port"])
    if given["attempt"] > 1:
        _end_agent(root, directory)
        _set_aside(root, job, os.path.join(root, "attempts", str(given["attempt"] - 1)))
    os.makedirs(directory)  # fails for a second run of this name
    try:
        for relative, text in given["files"].items():
            path = os.path.join(root, relative)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            new = "%s.%s.%d.new" % (path, socket.gethostname(), os.getpid())  # hosts may share the directory
            with open(new, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(new, path)
        with open(os.path.join(directory, "agent.log"), "wb") as log:
            agent = subprocess.Popen(
                [sys.executable, "-I", os.path.join(root, "launch/agent.py"), "-"],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, cwd=root,
            )  # fmt: skip
    except OSError:  # nothing has begun: the next try may
        shutil.rmtree(directory, ignore_errors=True)
        raise
    with open(os.path.join(directory, AGENT_PID), "w", encoding="utf-8") as file:
        file.write(str(agent.pid))
    stdin: Any = agent.stdin
    with stdin:
        stdin.write(json.dumps(job).encode())
    return agent


def _require_port(port: int) -> None:
    """Raises OSError unless the coordinator's port is free; engines report that in too many ways."""
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", port))
    except OSError as error:
        raise OSError("the coordinator's port %d cannot be used (%s)" % (port, error.strerror)) from error


def _end_agent(root: str, directory: str) -> None:
    """No two attempts run at once: stops an agent of the last one that could not be reached then."""
    host = os.path.basename(directory)
    deadline = time.monotonic() + END_SECONDS
    if _agent_lives(root, host):
        _order(root, host, {"stop": "now"})
    while _agent_lives(root, host):
        if time.monotonic() > deadline:
            pid = _agent_pid(directory)
            raise OSError("the agent of the last attempt (process %s) does not stop" % pid)
        time.sleep(TURN_SECONDS)


def _set_aside(root: str, job: dict[str, Any], kept: str) -> None:
    """Moves away what the last attempt left of this host, and of the processes that will be here now."""
    names = ["events-%d.jsonl" % process["rank"] for process in job["processes"]]
    for name in [os.path.relpath(job["directory"], root), *names]:
        os.makedirs(os.path.dirname(os.path.join(kept, name)), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(root, name), os.path.join(kept, name))


def send(given: dict[str, Any]) -> None:
    """Sends what is new in the run's files, from the given offsets, until the input ends."""
    root, host = given["root"], given["host"]
    own, offsets = os.path.join(root, "nodes", host), dict(given["offsets"])
    events = [os.path.join(root, "events-%d.jsonl" % rank) for rank in given["ranks"]]
    sent: dict[str, tuple[int, int]] = {}  # of files that are replaced: (inode, change) as sent last
    orders, pending, said, more = selectors.DefaultSelector(), b"", 0.0, False
    os.set_blocking(0, False)
    orders.register(0, selectors.EVENT_READ)
    while True:
        if orders.select(0 if more else TURN_SECONDS):
            chunk = os.read(0, CHUNK_BYTES)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                _order(root, host, json.loads(line))
        lives = _agent_lives(root, host)  # asked first: what it has written by then is sent, or there is `more`
        logs = sorted(glob.glob(os.path.join(glob.escape(own), "*.log")))
        paths = [*logs, *events, own + "/observed.jsonl", own + "/status.json"]
        left = [_send_file(os.path.relpath(path, root), path, offsets, sent) for path in paths]
        more = any(left)
        if time.monotonic() - said >= ALIVE_SECONDS:
            _say({"alive": True, "agent": lives, "more": more})
            said = time.monotonic()


def order(given: dict[str, Any]) -> None:
    """Asks the agent to stop its processes."""
    owned(given["root"])
    _order(given["root"], given["host"], given)
    _say({})


def release(given: dict[str, Any]) -> None:
    """Tells whoever keeps the run's files for a launcher that it has them."""
    open(os.path.join(given["root"], "nodes", given["host"], RELEASED), "w").close()
    _say({})


def _send_file(name: str, path: str, offsets: dict[str, int], sent: dict[str, tuple[int, int]]) -> bool:
    """Sends the next piece of a file; whether there may be more. No file keeps the others, or an order, waiting."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        found = os.fstat(file.fileno())
        if name.endswith(WHOLE):
            mark = (found.st_ino, found.st_mtime_ns)
            if sent.get(name) != mark:
                sent[name] = mark
                _frame(name, 0, file.read())
            return False
        begun = offsets.get(name, 0)
        if found.st_size < begun:  # somebody has cut it off
            begun = 0
        file.seek(begun)
        chunk = file.read(CHUNK_BYTES)
        if chunk:
            _frame(name, begun, chunk)
        offsets[name] = begun + len(chunk)
        return len(chunk) == CHUNK_BYTES
    return False


def _order(root: str, host: str, order: dict[str, str]) -> None:
    directory = os.path.join(root, "nodes", host)
    stop_file = os.path.join(directory, "stop")
    with contextlib.suppress(OSError), open(stop_file, "ab"):
        os.utime(stop_file)
    if order.get("stop") == "now":
        pid = _agent_pid(directory)
        if pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)


def _agent_pid(directory: str) -> int | None:
    status, first = os.path.join(directory, "status.json"), os.path.join(directory, AGENT_PID)
    with contextlib.suppress(OSError, ValueError, KeyError), open(status, encoding="utf-8") as file:
        return int(json.load(file)["agent_pid"])
    with contextlib.suppress(OSError, ValueError), open(first, encoding="utf-8") as file:
        return int(file.read())
    return None


def _agent_lives(root: str, host: str) -> bool | None:
    """True if the agent's process is there; None while it has not reported."""
    pid = _agent_pid(os.path.join(root, "nodes", host))
    if pid is None:
        return None
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return b"launch/agent.py" in file.read()
    except OSError:
        return False


def _frame(name: str, offset: int, content: bytes) -> None:
    _say({"file": name, "offset": offset, "size": len(content)}, content)


def _say(frame: dict[str, Any], content: bytes = b"") -> None:
    put(json.dumps(frame).encode() + b"\n" + content)


def put(content: bytes) -> None:
    """Prints bytes, all of them: a pipe may take a part."""
    view = memoryview(content)
    while view:
        view = view[os.write(1, view) :]


VERBS: dict[str, Callable[[dict[str, Any]], None]] = {"begin": begin, "send": send, "order": order, "release": release}


def main(verb: str, given: dict[str, Any]) -> None:
    """Does what is requested; an error is a frame."""
    try:
        VERBS[verb](given)
    except BrokenPipeError:
        return
    except OSError as error:
        _say({"error": "%s: %s" % (error.filename or given["root"], error.strerror) if error.errno else str(error)})

"""Work on many files by a pool of processes, where that is worth their start."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")

WORTHWHILE = 32 << 20  # bytes of files; the processes start in the time that reading a part of it takes
MANY = 512  # files, however small: each takes some milliseconds
MOST_PROCESSES = 8  # each needs some 70 MB
PARTS = 8  # of the work of a process, so that all of them end at about the same time
MOST_AT_ONCE = 16  # files: what is read of them waits in memory

_work: Callable[..., Any] | None = None  # of this process, if it is one of the pool's


def map_files(work: Callable[..., R], arguments: Sequence[tuple[Any, ...]], paths: Sequence[Path]) -> list[R]:
    """The results of `work` for each of the arguments, in their order; each call reads the path of the same index.

    `work` and its results must be picklable. Its exceptions are raised here; an interrupt ends the processes. They
    import the main program once more, so that a script needs the usual `if __name__ == "__main__"`.
    """
    processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES, len(paths))
    if processes < 2 or not _is_much(paths):
        return [work(*each) for each in arguments]
    many = max(1, min(len(arguments) // (processes * PARTS), MOST_AT_ONCE))
    try:
        pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (work,))
    except (OSError, NotImplementedError):  # there are no semaphores here
        return [work(*each) for each in arguments]
    with pool:
        try:
            with _without_interrupts():  # which the processes would get as well, while they start
                found = pool.map(_call, arguments, chunksize=many)
            return list(found)
        except BrokenProcessPool:  # one of them was killed, as for its memory
            return [work(*each) for each in arguments]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Holds an interrupt back; processes that are started in the meantime never get one.

    Other threads of this process, such as those of numpy, may get it all the same: then it is raised afterwards.
    """
    interrupts: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number)) if is_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if is_main:
            signal.signal(signal.SIGINT, handler)
    if interrupts:
        raise KeyboardInterrupt


def _is_much(paths: Sequence[Path]) -> bool:
    """True if the files are worth a pool; nothing but files can be read by another process."""
    size = 0
    for path in paths:
        if not path.is_file():
            return False
        size += path.stat().st_size
    return size >= WORTHWHILE or len(paths) >= MANY


def _begin(work: Callable[..., Any]) -> None:
    """Makes this process one of the pool's, which ends with its parent."""
    global _work
    _work = work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _call(arguments: tuple[Any, ...]) -> Any:
    assert _work is not None
    return _work(*arguments)

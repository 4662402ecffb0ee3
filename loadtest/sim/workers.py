"""Processes that share the work of a study, and end with it however it ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial


@contextmanager
def worker_processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """`jobs` processes; what is still to do when an exception leaves the block is not done."""
    begin = partial(_begin, os.getpid())
    # The default of Python 3.14 puts a server between the processes: `_begin` would watch it.
    fork = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(jobs, mp_context=fork, initializer=begin)
    try:
        yield pool
    except BaseException:
        # The pool itself would first finish every task that has been handed in. A process that was
        # forked a moment ago still has the parent's handlers, which may swallow a SIGTERM.
        for worker in multiprocessing.active_children():
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """The parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    if os.getppid() != parent:
        os._exit(1)  # It ended before the kernel was told to end its children with it.


def end_with_parent() -> None:
    """What this process computes is of use to its parent alone (Linux only)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

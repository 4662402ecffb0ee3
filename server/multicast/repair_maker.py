"""Runs the process that makes repair symbols: to make them here blocks the reactor for 10 ms.

RaptorQ's package holds the interpreter's lock, so threads do not help. If the process does not run,
or has no free slot, the sender makes the symbols itself.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger

from ..http.clock import Reactor
from .repair_process import (
    ANSWER,
    MEMORY,
    ORDER,
)

Done = Callable[[list[bytes] | None], None]
_MEMORY_FD = 3


class RepairMaker(ProcessProtocol):
    """Implements `server.multicast.symbols.Maker` by one process for all sessions of a server."""

    log = Logger()

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._process: Any = None
        self._memory: mmap.mmap | None = None
        self._free: list[int] = []
        self._jobs: dict[int, tuple[int, Done]] = {}
        self._answers = b""
        self._closing = False

    def start(self) -> None:
        """Start the process; returns at once."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        words = [
            sys.executable,
            "-P",
            "-m",
            "tidegate.server.multicast.repair_process",
            str(_MEMORY_FD),
        ]
        try:
            with tempfile.TemporaryFile(dir=_memory_folder()) as file:
                file.truncate(MEMORY.slots * MEMORY.slot_bytes)
                self._memory = mmap.mmap(file.fileno(), MEMORY.slots * MEMORY.slot_bytes)
                fds = {0: "w", 1: "r", 2: 2, _MEMORY_FD: file.fileno()}
                self._process = self._reactor.spawnProcess(
                    self, words[0], words, environment, childFDs=fds
                )
        except OSError as error:
            self.log.warn("no process for repair symbols: {error}", error=error)
            self._lost()

    def close(self) -> None:
        """End the process."""
        self._closing = True
        if self._process is not None:
            self._process.closeStdin()

    def make(
        self, scheme: str, source: bytes, k: int, symbol_bytes: int, count: int, done: Done
    ) -> bool:
        """See `Maker`."""
        if scheme != "raptorq" or not self._free or self._memory is None:
            return False
        if len(source) > MEMORY.source_bytes or count * symbol_bytes > MEMORY.symbol_bytes:
            return False
        slot = self._free.pop()
        self._jobs[slot] = (symbol_bytes, done)
        at = slot * MEMORY.slot_bytes
        self._memory[at : at + len(source)] = source
        self._process.write(ORDER.pack(slot, k, symbol_bytes, count))
        return True

    # --- events of the process ------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Twisted: the process runs."""
        self._free = list(range(MEMORY.slots))

    def outReceived(self, data: bytes) -> None:
        """Twisted: the process sent answers, or parts of them."""
        self._answers += data
        while len(self._answers) >= ANSWER.size and self._memory is not None:
            slot, made = ANSWER.unpack_from(self._answers)
            self._answers = self._answers[ANSWER.size :]
            size, done = self._jobs.pop(slot)
            at = slot * MEMORY.slot_bytes + MEMORY.source_bytes
            symbols = self._memory[at : at + made * size]
            self._free.append(slot)
            done([symbols[i : i + size] for i in range(0, len(symbols), size)] or None)

    def processEnded(self, reason: Any) -> None:
        """Twisted: the process ended."""
        if not self._closing:
            self.log.warn("the process for repair symbols ended: {why}", why=reason.value)
        self._lost()

    def _lost(self) -> None:
        self._free = []
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
        jobs, self._jobs = self._jobs, {}
        for _, done in jobs.values():
            done(None)


def _memory_folder() -> str | None:
    """A folder whose files are in memory; None if there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

"""Makes RaptorQ repair symbols for a sender in a separate process.

usage: python -m tidegate.server.multicast.repair_process MEMORY_FD

The shared memory has slots, as `MEMORY` says: a block, then its repair symbols. Orders are
read from standard input and answers written to standard output, in order and of fixed size. The
process ends with its input.
"""

from __future__ import annotations

import mmap
import signal
import struct
import sys
from typing import NamedTuple

from ...protocol.fec_raptorq import RaptorQEncoder


class RepairMemory(NamedTuple):
    """What the common memory of the sender and this process has."""

    #: The largest block (`protocol.fec.MAX_BLOCK_BYTES`).
    source_bytes: int = 1 << 20
    #: Two blocks of repair; a sender makes more itself.
    symbol_bytes: int = 2 << 20
    slot_bytes: int = source_bytes + symbol_bytes
    #: Orders in flight: the process works on one while the next ones arrive.
    slots: int = 4


MEMORY = RepairMemory()
#: Slot, K, symbol size, number of symbols.
ORDER = struct.Struct(">BHHI")
#: Slot, number of symbols made (0: it failed).
ANSWER = struct.Struct(">BI")


def serve(memory: mmap.mmap) -> None:
    """Answer orders until the end of the input."""
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(order := orders.read(ORDER.size)) == ORDER.size:
        slot, k, size, count = ORDER.unpack(order)
        at = slot * MEMORY.slot_bytes
        try:
            encoder = RaptorQEncoder(memory[at : at + k * size], k, size)
            symbols = b"".join(encoder.repair(0, count))
            at += MEMORY.source_bytes
            memory[at : at + len(symbols)] = symbols
            made = len(symbols) // size
        except Exception:  # noqa: BLE001 - the sender then makes them itself, and sees why
            made = 0
        answers.write(ANSWER.pack(slot, made))
        answers.flush()


def main() -> None:
    """Map the shared memory, and serve."""
    # Ctrl-C reaches the whole process group, but the server ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with mmap.mmap(int(sys.argv[1]), MEMORY.slots * MEMORY.slot_bytes) as memory:
        serve(memory)


if __name__ == "__main__":
    main()

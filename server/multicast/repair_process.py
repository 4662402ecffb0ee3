"""Makes RaptorQ repair symbols for a sender, in a process of its own.

usage: python -m server.multicast.repair_process MEMORY_FD

Shared memory has `SLOTS` places of `SLOT_BYTES`: the block in front, its symbols behind. Orders
come on standard input, answers go to standard output, in order, each of fixed size; the end of the
input is the end of the process.
"""

from __future__ import annotations

import mmap
import signal
import struct
import sys

from ...protocol.fec_raptorq import RaptorQEncoder

SOURCE_BYTES = 1 << 20
SYMBOL_BYTES = 2 << 20
SLOT_BYTES = SOURCE_BYTES + SYMBOL_BYTES
SLOTS = 4
#: Slot, K, symbol size, how many symbols.
ORDER = struct.Struct(">BHHI")
#: Slot, how many symbols were made (0: it failed).
ANSWER = struct.Struct(">BI")


def serve(memory: mmap.mmap) -> None:
    """Answer orders until there are no more."""
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(order := orders.read(ORDER.size)) == ORDER.size:
        slot, k, size, count = ORDER.unpack(order)
        at = slot * SLOT_BYTES
        try:
            encoder = RaptorQEncoder(memory[at : at + k * size], k, size)
            symbols = b"".join(encoder.repair(0, count))
            at += SOURCE_BYTES
            memory[at : at + len(symbols)] = symbols
            made = len(symbols) // size
        except Exception:  # noqa: BLE001 - the sender then makes them itself, and sees why
            made = 0
        answers.write(ANSWER.pack(slot, made))
        answers.flush()


def main() -> None:
    """Run."""
    # Ctrl-C reaches the whole group: the server says when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with mmap.mmap(int(sys.argv[1]), SLOTS * SLOT_BYTES) as memory:
        serve(memory)


if __name__ == "__main__":
    main()

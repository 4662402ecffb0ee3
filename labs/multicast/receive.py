"""One receiver of the lab: everything imported first, then it waits for the go, then it asks.

usage: receive.py URL OUT INTERFACE_ADDRESS READY_FILE GO_FILE

Prints one JSON object: when it was whole, how it ended, its counters, its CPU time. The output is
written beside and renamed when the file is whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import protocol.fec_raptorq
import protocol.fec_rs
import protocol.fec_xor  # noqa: F401 - imported before the go
from client.loop import Loop
from client.multicast import Outcome, Reception
from client.multicast_channel import Answer, HttpChannel
from client.net import Endpoint
from protocol.fec import available_schemes
from protocol.session import HEADER_NAME, Capability, decode_offer, format_capability


class Visit:
    """Ask, receive, say how it went."""

    def __init__(self, url: str, out: Path, interface: str) -> None:
        parts = urlsplit(url)
        self.loop = Loop()
        self.out = out
        self.interface = interface
        self.part = out.with_suffix(".part")
        self.over = False
        self.result: dict[str, object] = {}
        endpoint = Endpoint(parts.hostname or "", parts.port or 80)
        capability = format_capability(Capability((*available_schemes(), "paper")))
        fields = [(HEADER_NAME, capability)]
        self.asking = HttpChannel(self.loop, endpoint, parts.netloc, fields, 60.0)
        self.reports = HttpChannel(self.loop, endpoint, parts.netloc)
        self.asking.get(parts.path, self.answered)

    def answered(self, answer: Answer) -> None:
        """The offer (or a fault)."""
        if answer.fault is not None:
            self.result = {"reason": answer.fault}
            self.over = True
            return
        offer = decode_offer(answer.body)
        fd = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.truncate(fd, offer.size_bytes)
        self.reception = Reception(
            self.loop,
            offer,
            self.reports,
            lambda at, data: os.pwrite(fd, data, at),
            self.out.parent,
            self.interface,
            self.ended,
        )
        self.reception.start()

    def ended(self, outcome: Outcome) -> None:
        """The last block came, or the reception gave up."""
        if outcome.reason is None:
            self.part.rename(self.out)
        missing = self.reception.receiver.missing_ranges()
        self.result = {
            "done_at": time.monotonic(),
            "reason": outcome.reason,
            "repaired_bytes": outcome.repaired_bytes,
            "missing_bytes": sum(end - first for first, end in missing),
            **dataclasses.asdict(outcome.counters),
        }
        self.over = True


if __name__ == "__main__":
    ready, go = Path(sys.argv[4]), Path(sys.argv[5])
    ready.touch()
    while not go.exists():
        time.sleep(0.002)
    before_s = time.process_time()
    visit = Visit(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    visit.loop.run_until(lambda: visit.over and visit.reports.idle)
    visit.result["cpu_s"] = round(time.process_time() - before_s, 3)
    print(json.dumps(visit.result), flush=True)  # noqa: T201

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
from typing import Any
from urllib.parse import urlsplit

from twisted.internet import epollreactor

epollreactor.install()

from twisted.internet import reactor as installed  # noqa: E402

from client.multicast import Outcome, Reception  # noqa: E402
from client.multicast_channel import HttpChannel  # noqa: E402
from protocol.fec import available_schemes  # noqa: E402
from protocol.session import (  # noqa: E402
    HEADER_NAME,
    Capability,
    decode_offer,
    format_capability,
)

reactor: Any = installed


def main(url: str, out: Path, interface: str) -> None:
    """Ask, receive, say how it went."""
    path = urlsplit(url).path
    capability = Capability((*available_schemes(), "paper"))
    asking = HttpChannel(reactor, url, {HEADER_NAME: format_capability(capability)})
    part = out.with_suffix(".part")
    before_s = time.process_time()

    def offered(body: bytes) -> Any:
        offer = decode_offer(body)
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.truncate(fd, offer.size_bytes)
        reports = HttpChannel(reactor, url)
        reception = Reception(
            reactor, offer, reports, lambda at, data: os.pwrite(fd, data, at), out.parent, interface
        )
        return reception.run().addCallback(ended, reception)

    def ended(outcome: Outcome, reception: Reception) -> None:
        if outcome.reason is None:
            part.rename(out)
        result = {
            "done_at": time.monotonic(),
            "reason": outcome.reason,
            "repaired_bytes": outcome.repaired_bytes,
            "missing_bytes": sum(b - a for a, b in reception.receiver.missing_ranges()),
            "cpu_s": round(time.process_time() - before_s, 3),
            **dataclasses.asdict(outcome.counters),
        }
        print(json.dumps(result), flush=True)  # noqa: T201

    asked = asking.get(path).addCallback(offered)
    asked.addErrback(lambda failure: print(json.dumps({"reason": str(failure.value)})))  # noqa: T201
    asked.addBoth(lambda _: reactor.callLater(0.05, reactor.stop))


if __name__ == "__main__":
    ready, go = Path(sys.argv[4]), Path(sys.argv[5])
    ready.touch()
    while not go.exists():
        time.sleep(0.002)
    reactor.callWhenRunning(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    reactor.run()

"""One receiver of the lab: the real downloader, everything imported first, started by a signal.

usage: receive.py OUT INTERFACE_ADDRESS READY_FILE GO_FILE URL...

Prints one JSON object: how it ended, what came by which way, its CPU time.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tidegate.client.api import Options, fetch_blocking
from tidegate.client.net.errors import DownloadFailed

#: Loaded before the go, as everything is in a daemon.
_EARLY = (
    "httptools",
    "tidegate.client.fetch.multicast_join",
    "tidegate.client.multicast.reception",
    "tidegate.client.multicast.channel",
    "tidegate.protocol.fec_raptorq",
)


def main() -> None:
    """Wait for the go, fetch, tell."""
    out, interface, ready, go = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    for name in _EARLY:
        importlib.import_module(name)
    ready.touch()
    while not go.exists():
        time.sleep(0.002)
    before_s = time.process_time()
    said: list[str] = []

    def emit(event: str, data: Mapping[str, object]) -> None:
        if event == "multicast":
            said.append(str(data["text"]))

    options = Options(
        multicast=True,
        multicast_interface=interface,
        mirrors=False,
        data_folder=out.parent,
        environ={},
        max_failures=2,
    )
    result: dict[str, object] = {}
    try:
        done = fetch_blocking(sys.argv[5:], out, options, emit)
        result = {
            "bytes": {source.url.partition(":")[0]: source.bytes for source in done.sources},
            "verified": done.verified,
        }
    except DownloadFailed as problem:
        result = {"failed": str(problem)}
    cpu_s = round(time.process_time() - before_s, 3)
    print(json.dumps({**result, "said": said, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()

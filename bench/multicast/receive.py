"""One receiver of the lab: the real downloader. It imports all modules, and waits for GO_FILE.

usage: receive.py OUT INTERFACE_ADDRESS GO_FILE URL...

Prints `ready`, then one JSON object: result, bytes from each kind of source, CPU time.
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


def main() -> None:
    """Wait for GO_FILE, download, and print the result."""
    out, interface, go = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    # A download would import these late. A daemon has them already.
    for name in (
        "httptools",
        "tidegate.client.fetch.multicast_join",
        "tidegate.client.multicast.reception",
        "tidegate.protocol.fec_raptorq",
    ):
        importlib.import_module(name)
    print("ready", flush=True)
    while not go.exists():
        time.sleep(0.002)
    before_s = time.process_time()
    messages: list[str] = []

    def emit(event: str, data: Mapping[str, object]) -> None:
        if event == "multicast":
            messages.append(str(data["text"]))

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
        done = fetch_blocking(sys.argv[4:], out, options, emit)
        result = {
            "bytes": {source.url.partition(":")[0]: source.bytes for source in done.sources},
            "verified": done.verified,
        }
    except DownloadFailed as problem:
        result = {"failed": str(problem)}
    cpu_s = round(time.process_time() - before_s, 3)
    print(json.dumps({**result, "messages": messages, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()

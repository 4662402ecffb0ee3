"""Sends datagrams that look like a session's, with random tags and payloads, for three seconds.

usage: forger.py STATUS_URL INTERFACE_ADDRESS
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
import urllib.request

from tidegate.protocol.packet import PAYLOAD_OFFSET, PacketHeader, PacketType, pack_header


def main() -> None:
    """Wait for a session, then disturb it."""
    url, interface = sys.argv[1:3]
    rows: list[dict[str, object]] = []
    until = time.monotonic() + 10
    while not rows and time.monotonic() < until:
        with urllib.request.urlopen(url, timeout=5) as answer:
            rows = json.load(answer)["sessions"]
    rng = random.Random(1)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    where = (str(rows[0]["group"]), int(str(rows[0]["port"])))
    session = int(str(rows[0]["session"]), 16)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        header = PacketHeader(
            PacketType.SYMBOL, 0, session, 0, 0, 724, rng.randrange(30), rng.randrange(724), 0, 0
        )
        body = rng.randbytes(16 + 1448)
        sock.sendto((pack_header(header) + body)[: PAYLOAD_OFFSET + 1424], where)
        time.sleep(0.002)


if __name__ == "__main__":
    main()

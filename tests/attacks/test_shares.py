"""A network that had more than its share waits in turn; a quiet one never does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.http_bench import Answer, Bench, Client
from tidegate.server.files.request_queue import LONGEST_S

GREEDY, QUIET = "198.51.100.1", "192.0.2.1"
SMALL_BYTES = 100_000


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path, bandwidth_bytes_s=1_000_000.0)
    found.write("small.bin", bytes(SMALL_BYTES))
    found.pacer.waiting_networks = 9
    return found


def said_to(client: Client) -> bytes:
    """What the server says to one request for the small file; empty where it waits."""
    client.send(b"GET /small.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    client.clock.advance(0)
    return client.taken()


def flood(bench: Bench, most: int = 100) -> tuple[int, Client]:
    """Fetch again and again from one address until a request waits; how many were answered."""
    for count in range(most):
        client = bench.connect(GREEDY)
        said = said_to(client)
        if not said:
            return count, client
        assert Answer(said).status == 200
    raise AssertionError("nobody had to wait")


def test_one_address_that_fetches_again_and_again_waits_and_others_do_not(bench: Bench) -> None:
    answered, _ = flood(bench)
    # The line's burst, and what a network may be ahead.
    assert answered * SMALL_BYTES <= 256 * 1024 + 50_000 + 3 * SMALL_BYTES
    for _ in range(100):
        # The line is busy with what it was given at once.
        bench.clock.advance(0.01)
    assert Answer(said_to(bench.connect(QUIET))).status == 200


def test_its_turn_comes_as_its_share_grows(bench: Bench) -> None:
    _, waiting = flood(bench)
    said = b""
    for _ in range(500):
        bench.clock.advance(0.01)
        said = waiting.taken()
        if said:
            break
    assert Answer(said).status == 200
    assert Answer(said).body == bytes(SMALL_BYTES)


def test_who_waits_for_too_long_is_told_when_to_come_back(bench: Bench) -> None:
    clients = [bench.connect(GREEDY) for _ in range(400)]
    said = [said_to(client) for client in clients]
    waiting = [client for client, text in zip(clients, said, strict=True) if not text]
    for _ in range(int(LONGEST_S * 100) + 10):
        bench.clock.advance(0.01)
    answers = [Answer(client.taken()) for client in waiting]
    refused = [answer for answer in answers if answer.status == 503]
    assert refused
    assert all(answer.status in (200, 503) for answer in answers)
    for answer in refused:
        assert 1 <= int(answer.text("retry-after") or 0) <= 300
        assert b"network-busy" in answer.body


def test_who_leaves_while_waiting_is_forgotten(bench: Bench) -> None:
    _, waiting = flood(bench)
    assert len(bench.pacer.requests) == 1
    waiting.leave()
    assert len(bench.pacer.requests) == 0
    for _ in range(300):
        bench.clock.advance(0.01)


def test_the_cap_bounds_small_files_within_two_per_cent(bench: Bench) -> None:
    before = bench.pacer.sent_bytes_total
    addresses = [f"10.{number}.0.1" for number in range(20)]
    clients = {address: bench.connect(address) for address in addresses}
    busy: set[str] = set()
    for _ in range(2000):
        for address, client in clients.items():
            if address in busy and not client.taken():
                continue
            busy.discard(address)
            if not said_to(client):
                busy.add(address)
        bench.clock.advance(0.01)
    sent = bench.pacer.sent_bytes_total - before
    assert sent <= 1.02 * 20 * 1_000_000 + 20 * SMALL_BYTES

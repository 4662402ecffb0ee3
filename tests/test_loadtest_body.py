"""Bodies are counted, paced and hashed; a broken one is a value, not an exception."""

from __future__ import annotations

import hashlib
import math

import pytest

from tidegate.client.storage.piece_writer import Pieces
from tidegate.loadtest import body
from tidegate.loadtest.body import PieceCheck, receive


class Blocks:
    """A body from a list: bytes are given, exceptions are raised."""

    def __init__(self, *parts: bytes | OSError) -> None:
        self._parts = list(parts)
        self.asked: list[int] = []

    def read(self, length: int) -> bytes:
        self.asked.append(length)
        if not self._parts:
            return b""
        part = self._parts.pop(0)
        if isinstance(part, OSError):
            raise part
        if len(part) > length:
            self._parts.insert(0, part[length:])
        return part[:length]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Virtual time: sleeping moves it, nothing else does."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(body.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(body.gevent, "sleep", sleep)
    return now


def test_a_whole_body_is_counted_and_hashed() -> None:
    content = bytes(range(256)) * 3000
    got = receive(Blocks(content), len(content), math.inf)
    assert got.fault is None
    assert got.count_bytes == len(content)
    assert got.sha256_hex == hashlib.sha256(content).hexdigest()


def pieces_of(content: bytes, length: int) -> Pieces:
    parts = [content[at : at + length] for at in range(0, len(content), length)]
    return Pieces(length, "sha256", tuple(hashlib.sha256(part).digest() for part in parts))


@pytest.mark.parametrize("step", [1, 7, 100, 1000])
def test_pieces_are_checked_wherever_the_part_begins_and_however_it_comes(step: int) -> None:
    content = bytes(range(251)) * 2
    pieces = pieces_of(content, 100)
    for first, end in ((0, 100), (100, 300), (300, len(content)), (0, len(content))):
        blocks = [content[at : min(end, at + step)] for at in range(first, end, step)]
        got = receive(Blocks(*blocks), end - first, math.inf, PieceCheck(pieces, first))
        assert got.fault is None, (first, end)
    wrong = bytearray(content)
    wrong[301] ^= 1
    got = receive(Blocks(bytes(wrong[200:])), len(content) - 200, math.inf, PieceCheck(pieces, 200))
    assert got.fault == "piece 3 is not what the server's Metalink names"
    got = receive(Blocks(content + b"more"), None, math.inf, PieceCheck(pieces, 0))
    assert got.fault is not None


def test_a_line_that_stood_idle_is_no_faster_afterwards(clock: list[float]) -> None:
    class Stalls(Blocks):
        def read(self, length: int) -> bytes:
            if len(self.asked) == 10:
                clock[0] += 60.0
            return super().read(length)

    receive(Stalls(b"x" * 50_000), 50_000, 10_000.0)
    assert clock[0] - 160.0 == pytest.approx(5.0, abs=0.3)


def test_a_slow_client_takes_as_long_as_its_line_needs(clock: list[float]) -> None:
    receive(Blocks(b"x" * 50_000), 50_000, 10_000.0)
    assert clock[0] - 100.0 == pytest.approx(5.0, abs=0.2)


def test_a_slow_client_reads_often_and_little(clock: list[float]) -> None:
    blocks = Blocks(b"x" * 50_000)
    receive(blocks, 50_000, 20_000.0)
    assert set(blocks.asked) == {2_000}


@pytest.mark.parametrize("fault", [ConnectionResetError(), TimeoutError()])
def test_a_broken_connection_is_told(fault: OSError) -> None:
    got = receive(Blocks(b"abc", fault), 10, math.inf)
    assert got.count_bytes == 3
    assert got.fault is not None
    assert "after 3 bytes" in got.fault


def test_a_short_body_is_a_fault() -> None:
    assert receive(Blocks(b"abc"), 4, math.inf).fault == "3 bytes came of 4"

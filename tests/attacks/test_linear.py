"""Nothing that reads a stranger's bytes takes more than a bounded number of steps for each.

Steps are counted as processor time of this thread in units of one turn of a Python loop, taken
beside it, so a busy or slow machine changes nothing: a quadratic reader needs ten thousands of
turns a byte for 64 KB, a linear one less than a hundred.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from tests.readers import HEADS, READERS, UNITS, Reader
from tidegate.protocol.errors import ProtocolError
from tidegate.protocol.headers import EntityTag, strong_match, weak_match

SIZE = 64 * 1024
MOST_STEPS_A_BYTE = 200
#: Less than 64 KB of turns take on any machine: not worth a comparison.
_NOTHING_S = 0.002


def steps_a_byte(reader: Reader, data: bytes) -> float:
    """Processor time for each byte, in turns of a loop."""
    began_s = time.thread_time()
    with contextlib.suppress(ProtocolError, ValueError):
        reader(data)
    took_s = time.thread_time() - began_s
    if took_s < _NOTHING_S:
        return 0.0
    began_s = time.thread_time()
    for at, _ in enumerate(data):
        assert at >= 0
    return took_s / max(time.thread_time() - began_s, 1e-4)


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_reader_takes_a_bounded_number_of_steps_a_byte(name: str) -> None:
    reader = READERS[name]
    for head in HEADS:
        for unit in UNITS:
            data = (head + unit * (SIZE // len(unit) + 1))[:SIZE]
            found = steps_a_byte(reader, data)
            if found > MOST_STEPS_A_BYTE:
                # A pause of the collector may fall into one reading, not into two.
                found = min(found, steps_a_byte(reader, data))
            assert found <= MOST_STEPS_A_BYTE, f"{head!r} and {unit!r} again and again"


def test_the_counting_sees_a_quadratic_reader() -> None:
    def quadratic(data: bytes) -> None:
        while data:
            data = data[1:]
            sum(data)

    assert steps_a_byte(quadratic, b"a" * (SIZE // 8)) > MOST_STEPS_A_BYTE


@pytest.mark.parametrize("matches", [weak_match, strong_match])
def test_a_long_list_of_tags_costs_few_steps_a_byte(
    matches: Callable[[str, EntityTag], bool],
) -> None:
    """Each tag cost a copy of all behind it: 8.6 ms for the 28 kB that a header may have."""
    tags = b'"a",' * (128 * 1024)
    assert steps_a_byte(lambda data: matches(data.decode(), EntityTag("b")), tags) <= 5


def test_the_readers_of_the_protocol_are_found() -> None:
    assert {
        "tidegate.protocol.headers.parse_links",
        "tidegate.protocol.manifest.decode_metalink",
    } <= set(READERS)
    assert len(READERS) > 30

"""No reader of a stranger's bytes fails otherwise than by saying what is wrong with them."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers import HEADS, READERS, UNITS
from tidegate.protocol.errors import ProtocolError

#: Examples for each reader.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
LONG = "FUZZ_EXAMPLES" in os.environ

pieces = st.sampled_from([*UNITS, *HEADS]) | st.binary(max_size=12)
inputs = st.lists(pieces, max_size=30).map(b"".join)


@pytest.mark.timeout(3600 if LONG else 120)
@pytest.mark.parametrize("name", sorted(READERS))
def test_a_reader_says_what_is_wrong(name: str) -> None:
    reader = READERS[name]

    @settings(max_examples=EXAMPLES, derandomize=not LONG, deadline=None)
    @given(inputs)
    def attack(data: bytes) -> None:
        fault: Exception | None = None
        try:
            reader(data)
        except (ProtocolError, ValueError) as error:
            fault = error
        # A person may read it, so it must say something.
        assert fault is None or str(fault)
        if isinstance(fault, ProtocolError):
            assert 400 <= fault.status < 600

    attack()

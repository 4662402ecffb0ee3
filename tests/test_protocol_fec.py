"""Every rung of the ladder restores every block it promises to restore."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.protocol.errors import ProtocolError
from tidegate.protocol.fec import (
    BlockLayout,
    FecParameters,
    available_schemes,
    block_symbols_for,
    scheme_for,
)


def _scheme(name: str, group: int = 0):
    return scheme_for(FecParameters(name, 64, 1, group))


def test_all_rungs_are_installed():
    assert available_schemes() == ("raptorq", "xor", "none")


def test_unknown_rung_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="unknown"):
        scheme_for(FecParameters("turbo", 64, 1))


@given(
    name=st.sampled_from(["none", "xor", "raptorq"]),
    k=st.integers(1, 150),
    group=st.sampled_from([0, 2, 8, 33]),
    loss=st.floats(0, 0.6),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_any_loss_pattern_ends_in_the_right_block(name, k, group, loss, seed):
    rng = random.Random(seed)
    scheme = _scheme(name, group)
    source = rng.randbytes(k * 64)
    decoder = scheme.decoder(k, 64)
    symbols = [(i, source[i * 64 : i * 64 + 64]) for i in range(k)]
    rng.shuffle(symbols)
    for number, payload in symbols:
        if rng.random() >= loss:
            decoder.add(number, payload)
            decoder.add(number, payload)
    sent = 0
    while decoder.missing:
        repair = []
        if scheme.counts or sent == 0:
            repair = scheme.repair(source, k, 64, sent + decoder.missing)[sent:]
        for number, payload in enumerate(repair, k + sent):
            if rng.random() >= loss:
                decoder.add(number, payload)
        sent += len(repair)
        if not repair:
            lost = decoder.wanted
            for i in range(k):
                if lost >> i & 1:
                    decoder.add(i, source[i * 64 : i * 64 + 64])
    assert bytes(decoder.block()) == source
    assert decoder.wanted == 0


@given(k=st.integers(1, 400), group=st.integers(1, 70), lost=st.integers(0, 399))
@settings(max_examples=60, deadline=None)
def test_xor_survives_a_burst_as_long_as_it_has_groups(k, group, lost):
    scheme = _scheme("xor", group)
    groups = scheme.max_repair(k)
    source = random.Random(k).randbytes(k * 16)
    decoder = scheme.decoder(k, 16)
    for i in range(k):
        if not lost <= i < lost + groups:
            decoder.add(i, source[i * 16 : i * 16 + 16])
    for j, payload in enumerate(scheme.repair(source, k, 16, groups)):
        decoder.add(k + j, payload)
    assert decoder.missing == 0
    assert bytes(decoder.block()) == source


@pytest.mark.parametrize(("k", "group"), [(1, 1), (7, 16), (64, 8), (65, 8), (100, 33)])
def test_an_xor_parity_is_the_sum_of_every_gth_symbol(k: int, group: int) -> None:
    scheme = _scheme("xor", group)
    source = random.Random(k).randbytes(k * 64)
    groups = scheme.max_repair(k)
    for number, parity in enumerate(scheme.repair(source, k, 64, groups)):
        expected = bytearray(64)
        for symbol in range(number, k, groups):
            for at in range(64):
                expected[at] ^= source[symbol * 64 + at]
        assert parity == expected


def test_repair_symbols_do_not_depend_on_how_they_are_asked_for():
    source = random.Random(1).randbytes(100 * 64)
    scheme = _scheme("raptorq")
    whole = scheme.repair(source, 100, 64, 90)
    assert scheme.repair(source, 100, 64, 7) == whole[:7]
    assert scheme.repair(source, 100, 64, 67) == whole[:67]
    assert len(set(whole)) == 90


def test_layout_cuts_every_byte_once():
    layout = BlockLayout(10_000_001, 1424, block_symbols_for(1424))
    assert layout.block_symbols == 368
    assert sum(layout.length(b) for b in range(layout.blocks)) == 10_000_001
    assert layout.k(layout.blocks - 1) * 1424 >= layout.length(layout.blocks - 1)
    assert BlockLayout(0, 1424, 736).blocks == 0

"""Priority passes: what counts as one use, and how they are listed."""

from __future__ import annotations

import pytest

from tidegate.protocol.errors import BadToken
from tidegate.protocol.ticket import Key, KeyRing, Pass
from tidegate.server.admission.passes import PassBook
from tidegate.server.store.records import PassRecord

TERMS = Pass("", "press", 4.0, "*", 0.0, 1_000.0, 1)


def book(kept: list[PassRecord]) -> PassBook:
    return PassBook(KeyRing([Key("k1", b"0123456789abcdef")]), kept.append)


def test_a_download_that_goes_on_is_one_use_and_the_same_file_again_another() -> None:
    kept: list[PassRecord] = []
    passes = book(kept)
    token, _ = passes.issue(TERMS, 1.0)
    grant = passes.read(token, "/big.iso", 2.0)
    for now in (2.0, 3.0):
        passes.check_use(grant, "anna", "/big.iso")
        passes.begin(grant, "anna", "/big.iso", now)
    assert [record.uses for record in kept] == [1]
    with pytest.raises(BadToken, match="as often as it allows"):
        passes.check_use(grant, "bert", "/big.iso")
    passes.end("anna", "/big.iso")
    with pytest.raises(BadToken, match="as often as it allows"):
        passes.check_use(grant, "anna", "/big.iso")


def test_passes_are_listed_with_the_newest_first() -> None:
    passes = book([])
    for now in (5.0, 9.0, 7.0):
        passes.issue(TERMS, now)
    assert [record.issued_s for record in passes.records()] == [9.0, 7.0, 5.0]

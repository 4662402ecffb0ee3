"""Whose share of the line a download counts as."""

from __future__ import annotations

import pytest

from policies.contract import Job
from policies.sharing import Shares
from policies.virtual_sharing import VirtualSharing

LINK = 1_000_000.0
NETWORK = ("203.0.113.7", "203.0.113.0/24")


def job(client: str, network: tuple[str, ...] = NETWORK, *, known: bool = False) -> Job:
    return Job(client, "/f", 10_000_000, 10_000_000, network=network, known=known)


def test_strangers_of_a_network_have_so_many_shares_in_all() -> None:
    shares = Shares()
    for number in range(500):
        shares.note(job(f"a#{number}"), 4)
    found = {shares.of(f"a#{number}") for number in range(500)}
    assert len(found) == 4
    shares.note(job("b", ("203.0.114.1", "203.0.114.0/24")), 4)
    assert shares.of("b") not in found


def test_who_is_known_has_a_share_of_its_own() -> None:
    shares = Shares()
    shares.note(job("a"), 1)
    assert shares.of("a") != "a"
    shares.note(job("a", known=True), 1)
    assert shares.of("a") == "a"
    shares.note(job("b", ()), 1)
    assert shares.of("b") == "b"
    shares.note(job("c"), 0)
    assert shares.of("c") == "c"


def test_a_crowd_of_names_is_one_in_the_virtual_sharing() -> None:
    virtual = VirtualSharing()
    virtual.run_to(0.0, LINK)
    marks = [virtual.add(f"a{number}", 10_000_000, LINK, "n") for number in range(100)]
    honest = virtual.add("honest", 10_000_000, LINK)
    assert virtual.left_s("honest", honest) == pytest.approx(20.0)
    # The first of the crowd is done as soon, the last one after all the others.
    assert virtual.left_s("a0", marks[0]) == pytest.approx(20.0)
    assert virtual.left_s("a99", marks[99]) == pytest.approx(2000.0)


def test_a_share_is_as_fast_as_its_clients_together() -> None:
    virtual = VirtualSharing()
    virtual.run_to(0.0, LINK)
    first = virtual.add("a", 1_000_000, 100_000.0, "n")
    assert virtual.left_s("a", first) == pytest.approx(10.0)
    virtual.add("b", 1_000_000, 100_000.0, "n")
    assert virtual.left_s("a", first) == pytest.approx(5.0)
    virtual.set_speed("b", 400_000.0)
    assert virtual.left_s("a", first) == pytest.approx(2.0)
    virtual.end("b", False)
    virtual.set_speed("a", 50_000.0)
    assert virtual.left_s("a", first) == pytest.approx(20.0)
    virtual.end("a", True)
    virtual.run_to(1000.0, LINK)
    assert len(virtual) == 0


def test_who_fetches_much_at_once_is_not_taken_for_somebody_slow() -> None:
    """Thirty files of one client, a little each, are no thirty people with slow lines."""
    virtual = VirtualSharing()
    virtual.run_to(0.0, LINK)
    for number in range(10):
        virtual.add(f"other{number}", 10_000_000, LINK)
    for _ in range(30):
        virtual.add("greedy", 10_000_000, 0.03 * LINK)
    virtual.set_speed("greedy", 0.9 * LINK)
    assert virtual.is_served("slow", 0.03 * LINK)
    assert not virtual.is_served("greedy", 0.9 * LINK, 1.25)

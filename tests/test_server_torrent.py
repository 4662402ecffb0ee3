"""Torrents of served files and their tracker: the wire, the bounds, and who learns nothing."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import cast
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from tidegate.server.files.openfile import OpenFile, key_of
from tidegate.server.files.transfer import Representation
from tidegate.server.http.clock import Threads
from tidegate.server.http.proxies import prefixes_of
from tidegate.server.torrent.announce import (
    BadAnnounce,
    fields_of,
    peers_answer,
    read_announce,
    read_scrape,
    scrape_answer,
)
from tidegate.server.torrent.metainfo import CannotMake, Metainfo, MetainfoStore
from tidegate.server.torrent.swarm import Announce, Brake, Census, PeerEvent, Ring, Swarm

HASH = bytes(range(20))


def query(**fields: object) -> bytes:
    return b"&".join(
        name.encode()
        + b"="
        + quote_from_bytes(value if isinstance(value, bytes) else str(value).encode()).encode()
        for name, value in fields.items()
    )


def test_an_announce_is_read() -> None:
    asked = read_announce(
        query(info_hash=HASH, peer_id=b"x" * 20, port=6881, left=7, event="started", numwant=5),
        "192.0.2.1",
    )
    assert asked.info_hash == HASH
    assert asked.announce == Announce("192.0.2.1", 6881, 7, PeerEvent.STARTED, 5)


def test_a_program_that_writes_minus_one_does_not_know() -> None:
    asked = read_announce(query(info_hash=HASH, port=1, left=-1, numwant=-1), "192.0.2.1")
    assert asked.announce == Announce("192.0.2.1", 1, 1, PeerEvent.STILL_THERE, 30)
    with pytest.raises(BadAnnounce, match="port"):
        read_announce(query(info_hash=HASH, port=-1), "192.0.2.1")


def test_the_address_is_the_one_that_asks_whatever_it_says() -> None:
    said = read_announce(query(info_hash=HASH, port=1, ip="198.51.100.9"), "192.0.2.1").announce
    assert said.address == "192.0.2.1"


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"port": 1}, "info_hash"),
        ({"info_hash": b"short", "port": 1}, "20 bytes"),
        ({"info_hash": HASH}, "port"),
        ({"info_hash": HASH, "port": 0}, "1 to 65535"),
        ({"info_hash": HASH, "port": 65536}, "up to 65535"),
        ({"info_hash": HASH, "port": "６"}, "number"),
        ({"info_hash": HASH, "port": 1, "left": "9" * 40}, "left"),
    ],
)
def test_a_faulty_announce_is_refused_with_its_fault(fields: dict[str, object], fault: str) -> None:
    with pytest.raises(BadAnnounce, match=fault):
        read_announce(query(**fields), "192.0.2.1")


@given(st.binary(max_size=300))
def test_no_query_does_more_than_be_refused(raw: bytes) -> None:
    for read in (lambda: read_announce(raw, "::1"), lambda: read_scrape(raw)):
        with contextlib.suppress(BadAnnounce):
            read()


@given(st.dictionaries(st.binary(min_size=1, max_size=8), st.binary(max_size=20), max_size=4))
def test_fields_come_back(fields: dict[bytes, bytes]) -> None:
    raw = b"&".join(
        quote_from_bytes(name, safe="").encode() + b"=" + quote_from_bytes(value, safe="").encode()
        for name, value in fields.items()
    )
    if fields:
        assert fields_of(raw) == {name: [value] for name, value in fields.items()}


def test_answers_are_compact_for_both_families() -> None:
    answer = peers_answer(
        [("192.0.2.1", 258), ("2001:db8::1", 3)], Census(1, 2, 3), interval_s=60.0
    )
    assert answer[b"peers"] == bytes([192, 0, 2, 1, 1, 2])
    assert answer[b"peers6"] == bytes.fromhex("20010db8" + "00" * 11 + "01" + "0003")
    assert (answer[b"complete"], answer[b"incomplete"]) == (1, 2)
    assert scrape_answer({HASH: Census(1, 2, 3)}) == {
        b"files": {HASH: {b"complete": 1, b"incomplete": 2, b"downloaded": 3}}
    }


def test_a_scrape_must_name_torrents() -> None:
    with pytest.raises(BadAnnounce, match="names 1 to 16"):
        read_scrape(b"")
    assert read_scrape(query(info_hash=HASH)) == [HASH]


def test_a_finished_peer_is_not_sent_to_finished_ones() -> None:
    swarm, rng = Swarm(60.0, 10), random.Random(1)
    swarm.announce(Announce("192.0.2.1", 1, 0), 0.0, rng)
    swarm.announce(Announce("192.0.2.2", 2, 5), 0.0, rng)
    assert swarm.announce(Announce("192.0.2.3", 3, 0), 0.0, rng) == [("192.0.2.2", 2)]
    assert set(swarm.announce(Announce("192.0.2.4", 4, 9), 0.0, rng)) == {
        ("192.0.2.1", 1),
        ("192.0.2.2", 2),
        ("192.0.2.3", 3),
    }


def test_one_network_cannot_push_the_others_out() -> None:
    swarm, rng = Swarm(60.0, 20), random.Random(1)
    honest = [Announce(f"192.0.2.{number}", 5000, 1) for number in range(1, 6)]
    for one in honest:
        swarm.announce(one, 0.0, rng)
    for port in range(1, 500):
        swarm.announce(Announce("198.51.100.7", port, 1), 1.0, rng)
    places = swarm.announce(Announce("203.0.113.1", 1, 1, want=64), 2.0, rng)
    assert {(one.address, one.port) for one in honest} <= set(places)
    assert swarm.census(2.0).incomplete == 20


def test_the_brake_lets_a_crowd_through_and_stops_a_flood() -> None:
    brake = Brake(per_s=10.0, burst=50.0, most=3)
    assert sum(brake.allows("192.0.2.1", 0.0) for _ in range(200)) == 50
    assert sum(brake.allows("192.0.2.1", 1.0) for _ in range(200)) == 10
    assert brake.allows("198.51.100.2", 1.0)


def test_a_stop_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose disk is dead does not even die by force, and a server stood at SIGTERM for ever."""
    begun, over = threading.Event(), threading.Event()

    def hung(making: object) -> bytes:
        begun.set()
        over.wait()
        raise CannotMake

    monkeypatch.setattr("tidegate.server.torrent.metainfo._Making.run", hung)
    path = tmp_path / "a.iso"
    path.write_bytes(b"x" * 100)
    key = key_of(path.stat())
    rep = Representation(b"a.iso", "/a.iso", 100, 0.0, '"a"', key)
    store = MetainfoStore(cast(Threads, MemoryReactorClock()), tmp_path)
    wish = store.want(OpenFile(os.open(path, os.O_RDONLY), rep))
    assert begun.wait(60)
    stop = threading.Thread(target=store.stop)
    stop.start()
    stop.join(60)
    stands = stop.is_alive()
    threads = [one for one in threading.enumerate() if "torrents" in one.name]
    over.set()
    stop.join()
    assert not stands
    assert threads
    assert all(one.daemon for one in threads), "nor does the process's end"
    told: list[Failure] = []
    wish.addErrback(told.append)
    assert told
    assert told[0].check(CannotMake)


def test_a_file_with_two_names_is_hashed_once_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asked for both in turn had a large file hashed for each request."""
    path = tmp_path / "a.iso"
    path.write_bytes(b"x" * 100)
    key = key_of(path.stat())
    store = MetainfoStore(cast(Threads, MemoryReactorClock()), tmp_path)
    names = ("/a.iso", "/latest.iso")
    for number, name in enumerate(names):
        store._keep(Metainfo(name, key, bytes([number] * 20), bytes([number] * 32), path))
    monkeypatch.setattr("tidegate.server.torrent.metainfo._Making.run", lambda making: b"")
    found: list[Metainfo] = []
    for name in names * 2:
        rep = Representation(b"a.iso", name, 100, 0.0, '"a"', key)
        opened = OpenFile(os.open(path, os.O_RDONLY), rep)
        store.want(opened).addCallback(found.append).addErrback(lambda failure: None)
    store.stop()
    assert [made.url_path for made in found] == [*names, *names]


def test_a_torrent_outlives_one_of_its_files_names(tmp_path: Path) -> None:
    """What was kept of two hard links was removed with the first name that was forgotten."""
    store = MetainfoStore(cast(Threads, MemoryReactorClock()), tmp_path)
    path, key = tmp_path / "kept.info", key_of(tmp_path.stat())
    path.touch()
    for name in ("/new/a.iso", "/old/a.iso"):
        store._keep(Metainfo(name, key, b"1" * 20, b"2" * 32, path))
    for number in range(2048):
        if number == 2047:
            known = store.by_hash(b"1" * 20)
            assert (known is not None, path.exists()) == (True, True)
        other = f"{number:020}".encode()
        store._keep(Metainfo("/b.iso", key._replace(inode=number), other, other, tmp_path / "b"))
    assert (store.by_hash(b"1" * 20), path.exists()) == (None, False)


A_PEER = st.tuples(
    st.sampled_from([f"10.{net}.0.{host}" for net in range(6) for host in (1, 2)]),
    st.integers(1, 3),
)


@given(st.lists(st.tuples(st.booleans(), A_PEER, st.integers(0, 12)), max_size=40))
def test_each_network_gives_one_peer_before_any_gives_a_second(
    moves: list[tuple[bool, tuple[str, int], int]],
) -> None:
    ring, rng = Ring(), random.Random(7)
    members: set[tuple[str, int]] = set()
    for joins, place, want in moves:
        (ring.add(place, rng) if joins else ring.discard(place))
        (members.add(place) if joins else members.discard(place))
        for asker in (place, ("10.9.9.9", 1)):
            others = members - {asker}
            found = ring.take(want, asker)
            assert len(set(found)) == len(found) == min(want, len(others))
            assert set(found) <= others
            had = Counter(prefixes_of(address)[-1] for address, _ in others)
            gave = Counter(prefixes_of(address)[-1] for address, _ in found)
            assert all(gave[one] >= min(had[one], max(gave.values(), default=0) - 1) for one in had)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_all_peers_are_given_in_turn(networks: int, want: int, seed: int) -> None:
    ring, rng = Ring(), random.Random(seed)
    members = {(f"10.{number}.0.1", 1) for number in range(networks)}
    for place in sorted(members):
        ring.add(place, rng)
    found: set[tuple[str, int]] = set()
    for _ in range(-(-networks // want)):
        found.update(ring.take(want, ("192.0.2.1", 1)))
    assert found == members


class Tracking(RuleBasedStateMachine):
    """A swarm beside a plain dictionary of who spoke when."""

    def __init__(self) -> None:
        super().__init__()
        self.swarm, self.rng, self.now = Swarm(10.0, 6), random.Random(3), 0.0
        self.overfull = False
        self.seen: dict[tuple[str, int], tuple[float, bool]] = {}

    @rule(
        host=st.integers(1, 5),
        port=st.integers(1, 3),
        left=st.integers(0, 2),
        event=st.sampled_from(PeerEvent),
        want=st.integers(0, 100),
    )
    def speak(self, host: int, port: int, left: int, event: PeerEvent, want: int) -> None:
        place = (f"10.{host}.0.1", port)
        said = Announce(*place, left, event, want)
        places = self.swarm.announce(said, self.now, self.rng)
        assert place not in places
        assert len(places) <= want
        assert len(set(places)) == len(places)
        self.seen.pop(place, None)
        if event is not PeerEvent.STOPPED:
            self.seen[place] = (self.now, left == 0)
            self.overfull = self.overfull or len(self.seen) > 6
        else:
            assert places == []
        for other in places:
            at_s, complete = self.seen[other]
            assert self.now - at_s <= 25.0
            assert not (complete and left == 0)

    @rule(by_s=st.floats(0, 30))
    def wait(self, by_s: float) -> None:
        self.now += by_s
        for place, (at_s, _) in list(self.seen.items()):
            if self.now - at_s > 25.0:
                del self.seen[place]

    @invariant()
    def the_census_is_right(self) -> None:
        census = self.swarm.census(self.now)
        complete = sum(complete for _, complete in self.seen.values())
        assert census.complete + census.incomplete <= min(6, len(self.seen))
        if not self.overfull:
            assert census == Census(complete, len(self.seen) - complete, census.downloaded)


TestTracking = Tracking.TestCase
TestTracking.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)

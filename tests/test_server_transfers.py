"""No transfer is lost: each stands in exactly one place, and each that can go on does."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs

from tests.test_server_sender import Peer
from tidegate.server.files.openfile import OpenFile, key_of
from tidegate.server.files.pacer import Pacer, Share, TransferState
from tidegate.server.files.sender import BodySender
from tidegate.server.files.transfer import Representation
from tidegate.server.http.limits import HttpLimits

SIZES = (3_000, 40_000, 400_000, 2_000_000)


class Body:
    """A body on its way to a peer, its listener, and what it waits for."""

    def __init__(self, world: World, size: int, share: Share, *, shows_end_late: bool) -> None:
        self.world, self.size, self.share = world, size, share
        self.ends: list[bool] = []
        self.peer = Peer()
        self.peer.factory = SimpleNamespace(limits=HttpLimits())
        self.gone: Callable[[], None] = lambda: None
        self.reset = False
        self._shows_end_late = shows_end_late
        file = OpenFile(os.open(world.path, os.O_RDONLY), world.rep)
        real = file.at_hand
        # Wrapped, because a file that was just written is always in the page cache.
        self.file: Any = SimpleNamespace(
            fd=file.fd,
            unchanged=lambda: True,
            read_at=file.read_at,
            at_hand=lambda start, stop: not world.cold and real(start, stop),
            file=file,
        )
        request: Any = SimpleNamespace(
            connection=self.peer,
            bytes_out=0,
            on_gone=self._set_gone,
            finish=lambda: None,
            abort=self._abort,
            target=b"/a.iso",
        )
        self.sender = BodySender(
            request, self.file, [(0, size)], size, self, world.pacer,
            lambda _: succeed(True), world,  # type: ignore[arg-type]
        )  # fmt: skip
        self.sender.start()

    def _set_gone(self, call: Callable[[], None]) -> None:
        self.gone = call

    def _abort(self) -> None:
        self.reset = True
        self.peer.close()

    def may_end(self, go_on: Callable[[], None]) -> bool:
        if self._shows_end_late:
            self._shows_end_late = False
            self.world.waits.append(go_on)
            return False
        return True

    def moves(self) -> None:
        """Nobody sleeps here."""

    def transfer_done(self, transfer: BodySender, complete: bool) -> None:
        self.ends.append(complete)

    @property
    def over(self) -> bool:
        return bool(self.ends)

    def read(self, count: int) -> None:
        if self.peer.socket.fileno() >= 0:
            try:
                self.peer.read(count)
            except BlockingIOError:
                self.peer.got += b""

    def leave(self) -> None:
        if not self.over:
            self.gone()
        self.peer.close()


class World:
    """Bodies under one pacer in virtual time; also the disk of their files."""

    def __init__(self, path: Path, cap: float | None) -> None:
        self.path = path
        path.write_bytes(os.urandom(max(SIZES)))
        key = key_of(path.stat())
        self.rep = Representation(b"a.iso", "/a.iso", max(SIZES), 0.0, '"a"', key)
        self.clock = Clock()
        self.pacer = Pacer(self.clock, cap)
        self.bodies: list[Body] = []
        #: Whether the page cache has nothing, and what was asked of disk and journal meanwhile.
        self.cold = False
        self.waits: list[Callable[[], None]] = []

    def fetch(self, file: OpenFile, start: int, stop: int) -> Deferred[None]:
        fetched: Deferred[None] = Deferred()
        self.waits.append(lambda: fetched.callback(None))
        return fetched

    def begin(self, size: int, address: str = "", *, shows_end_late: bool = False) -> Body:
        body = Body(self, size, Share(address=address), shows_end_late=shows_end_late)
        self.bodies.append(body)
        return body

    def serve_waits(self) -> None:
        self.cold = False
        while self.waits:
            self.waits.pop(0)()

    def open_bodies(self) -> list[Body]:
        return [body for body in self.bodies if not body.over]

    def check(self) -> None:
        assert self.pacer.misplaced() == 0
        for body in self.bodies:
            state = body.sender.state
            assert (state is TransferState.OVER) == body.over
            assert len(body.ends) <= 1
            assert (body.peer._room is not None) == (state is TransferState.SOCKET)
        stands = [body.sender.state for body in self.bodies]
        assert all(self.pacer.states[one] == stands.count(one) for one in TransferState)

    def finish(self) -> None:
        """All peers read and nothing holds anything back: each body must come to its end."""
        if self.pacer.capped:
            self.pacer.set_bandwidth(5e7)
        for body in self.open_bodies():
            body.sender.resume()
        for _ in range(1000):
            self.serve_waits()
            for body in self.open_bodies():
                body.read(1 << 20)
            self.clock.advance(0.02)
            if not self.open_bodies():
                break
        self.check()
        stuck = [(body.sender.state, body.sender.sent_bytes) for body in self.open_bodies()]
        assert not stuck, stuck
        for body in self.bodies:
            body.leave()


class TransferMachine(RuleBasedStateMachine):
    """Any order of pauses, caps, reads, waits for the disk and lost connections."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self._folder.name, "a.iso"), 1e6)

    def _one(self, number: int) -> Body:
        bodies = self.world.open_bodies()
        return bodies[number % len(bodies)]

    @precondition(lambda self: len(self.world.bodies) < 12)
    @rule(
        size=st.sampled_from(SIZES),
        address=st.sampled_from(["", "", "192.0.2.1", "192.0.2.2", "198.51.100.1"]),
        late=st.booleans(),
    )
    def begin(self, size: int, address: str, late: bool) -> None:
        self.world.begin(size, address, shows_end_late=late)

    @precondition(lambda self: self.world.open_bodies())
    @rule(number=st.integers(0, 50), count=st.sampled_from([1_000, 50_000, 1 << 20]))
    def read(self, number: int, count: int) -> None:
        self._one(number).read(count)

    @precondition(lambda self: self.world.open_bodies())
    @rule(number=st.integers(0, 50))
    def pause(self, number: int) -> None:
        self._one(number).sender.pause()

    @precondition(lambda self: self.world.open_bodies())
    @rule(number=st.integers(0, 50))
    def resume(self, number: int) -> None:
        self._one(number).sender.resume()

    @precondition(lambda self: self.world.open_bodies())
    @rule(number=st.integers(0, 50))
    def leave(self, number: int) -> None:
        self._one(number).leave()

    @precondition(lambda self: self.world.open_bodies())
    @rule(number=st.integers(0, 50), background=st.booleans())
    def move_behind(self, number: int, background: bool) -> None:
        self._one(number).share.background = background

    @rule(cap=st.sampled_from([None, 2e4, 1e6, 5e7]))
    def cap(self, cap: float | None) -> None:
        self.world.pacer.set_bandwidth(cap)

    @rule(cold=st.booleans())
    def chill(self, cold: bool) -> None:
        self.world.cold = cold

    @rule()
    def serve_waits(self) -> None:
        self.world.serve_waits()

    @rule(ticks=st.sampled_from([1, 5, 500]))
    def pass_time(self, ticks: int) -> None:
        for _ in range(ticks):
            self.world.clock.advance(0.011)

    @invariant()
    def each_stands_in_one_place(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.finish()
        self._folder.cleanup()


TransferMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
TestTransfers = TransferMachine.TestCase


@pytest.mark.parametrize("seed", range(4))
def test_many_short_and_long_downloads_all_come_to_their_end(tmp_path: Path, seed: int) -> None:
    """A thousand steps each of pauses, stalls, caps that come and go, and peers that leave."""
    rng, world = random.Random(seed), World(tmp_path / "a.iso", 2.5e6)
    for _ in range(1000):
        bodies = world.open_bodies()
        if len(bodies) < 25 and rng.random() < 0.2:
            address = rng.choice(["", f"192.0.2.{rng.randrange(3)}"])
            world.begin(rng.choice(SIZES), address, shows_end_late=rng.random() < 0.2)
        for body in bodies:
            match rng.randrange(12):
                case 0:
                    body.sender.pause()
                case 1 | 2:
                    body.sender.resume()
                case 3:
                    body.share.background = rng.random() < 0.5
                case 4 if rng.random() < 0.02:
                    body.leave()
                case 5 | 6 | 7 | 8:
                    body.read(rng.choice((2_000, 200_000)))
        if rng.random() < 0.02:
            world.pacer.set_bandwidth(rng.choice((None, 1e5, 2.5e6, 1e8)))
        if rng.random() < 0.1:
            world.cold = not world.cold
        if rng.random() < 0.3:
            world.serve_waits()
        world.clock.advance(rng.choice((0.003, 0.01, 0.05, 0.5)))
        world.check()
    world.finish()


def test_a_turn_that_fails_freezes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick that it interrupted was the last one, and took the share of the turn along."""
    world = World(tmp_path / "a.iso", 1e6)
    bodies = [world.begin(400_000) for _ in range(4)]
    real = BodySender.push
    failures = iter([True] * 3)

    def push(sender: BodySender, most_bytes: int) -> int:
        if next(failures, False):
            raise RuntimeError("boom")
        return real(sender, most_bytes)

    monkeypatch.setattr(BodySender, "push", push)
    with capturedLogs() as logged:
        world.finish()
    assert all(body.ends == [True] for body in bodies)
    assert sum(event["log_level"] is LogLevel.critical for event in logged) == 3


@pytest.mark.parametrize("cap", [None, 1e6])
def test_keep_alive_bytes_that_fail_leave_the_others_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cap: float | None
) -> None:
    world = World(tmp_path / "a.iso", cap)
    first, second = world.begin(2_000_000), world.begin(2_000_000)
    real = BodySender.trickle

    def trickle(sender: BodySender, most_bytes: int) -> int:
        if sender is first.sender:
            raise RuntimeError("boom")
        return real(sender, most_bytes)

    monkeypatch.setattr(BodySender, "trickle", trickle)
    for body in (first, second):
        body.sender.pause()
    kept: list[int] = []
    with capturedLogs():
        for _ in range(30):
            second.read(1 << 20)
            kept.append(second.sender.sent_bytes)
            world.clock.advance(1.0)
    assert len(set(kept)) >= 5
    world.finish()


def test_a_transfer_that_the_server_starves_is_not_cut_for_its_rate(tmp_path: Path) -> None:
    """It stood in the ring for a minute, was at its socket for a moment, and was reset."""
    world = World(tmp_path / "a.iso", 1e6)
    body = world.begin(2_000_000)
    monitor = body.peer.monitor
    assert monitor is not None
    # From now on the ring gives it next to nothing, and its peer takes all of that.
    world.pacer.set_bandwidth(1.0)
    for second in range(150):
        world.clock.advance(1.0)
        if second % 7:
            body.read(1 << 20)
        monitor(world.clock.seconds())
    assert not body.reset
    # A peer that takes nothing is cut still.
    world.pacer.set_bandwidth(1e6)
    for _ in range(70):
        world.clock.advance(1.0)
        monitor(world.clock.seconds())
    assert body.reset
    body.leave()


def test_a_share_that_starves_in_the_background_is_silent_for_5_s_at_most(tmp_path: Path) -> None:
    """It was silent for up to 10 s."""
    world = World(tmp_path / "a.iso", 1e5)
    front = [world.begin(2_000_000) for _ in range(3)]
    behind = world.begin(2_000_000)
    behind.share.background = True
    world.pacer._behind_due = -1e9
    sent = []
    for _ in range(1200):
        world.clock.advance(0.01)
        for body in (*front, behind):
            body.read(1 << 20)
        sent.append(behind.sender.sent_bytes)
    turns = [at for at, (before, after) in enumerate(pairwise(sent)) if after > before]
    assert max(later - sooner for sooner, later in pairwise([*turns, len(sent)])) <= 500
    assert world.pacer.starved_total >= 1
    world.finish()

"""The follower as a service: what it does between rounds; nothing makes it stop or rush."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from mirror_site import Site, fill
from tuf.api.exceptions import DownloadError

from tidegate.client.mirror.follow import Followed, Follower
from tidegate.client.mirror.problem import MirrorProblem
from tidegate.client.mirror.service import MirrorService, Reporting
from tidegate.client.net.answers import Reply
from tidegate.protocol.mirror_report import SIGNATURE_HEADER, decode_report

ORIGIN = "http://origin.test/mirror/"


@dataclass
class World:
    """A clock that moves by sleeping and by held requests, and an origin that answers as told."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    #: What the question for news answers, and how long it is held.
    news: Callable[[], Reply] = lambda: Reply(404, {}, b"")
    held_s: float = 0.0
    posted: list[tuple[bytes, str]] = field(default_factory=list)
    own: Mapping[str, Reply] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit_bytes: int = 1 << 20,
        timeout_s: float = 30.0,
    ) -> Reply:
        self.asked.append(f"{method} {url}")
        if url.endswith("/report"):
            self.posted.append((body, (headers or {})[SIGNATURE_HEADER]))
            return Reply(204, {}, b"")
        if "/next?" in url:
            self.now += self.held_s
            return self.news()
        for prefix, answer in self.own.items():
            if url.startswith(prefix):
                return answer
        raise DownloadError(f"{url} is not there")

    def download(self, url: str, path: Path, length_bytes: int, sha256: str) -> None:
        raise AssertionError("not in these tests")


def latest(number: int) -> Reply:
    return Reply(200, {}, json.dumps({"channel": "main", "latest": number}).encode())


@dataclass
class Rounds:
    """Replaces a follower's rounds: what each does, in turn; the last one for ever."""

    world: World
    plan: list[Followed | Exception]
    looked: list[bool] = field(default_factory=list)
    takes_s: float = 0.0

    def __call__(self, *, look: bool = True) -> Followed:
        self.looked.append(look)
        self.world.now += self.takes_s if look else 0.0
        done = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
        if isinstance(done, Exception):
            raise done
        return done


def at(version: int) -> Followed:
    return Followed(version, version, False, 0, ())


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    site = Site(tmp_path)
    fill(site.tree)
    site.publish()
    follower = site.follower()
    follower.once()
    return follower


@pytest.fixture
def world() -> World:
    return World()


def service(
    world: World, follower: Follower, plan: list[Followed | Exception], **more: object
) -> tuple[MirrorService, Rounds, list[str]]:
    rounds = Rounds(world, plan)
    follower.once = rounds  # type: ignore[method-assign, assignment]
    said: list[str] = []
    made = MirrorService(
        follower,
        world,
        world.clock,
        world.sleep,
        failed=lambda problem: said.append(problem.code),
        rng=Random(1),
        **more,  # type: ignore[arg-type]
    )
    return made, rounds, said


def test_a_plain_file_server_is_asked_once_an_interval(world: World, follower: Follower) -> None:
    made, rounds, _ = service(world, follower, [at(1)])
    for _ in range(5):
        made.turn()
    assert len(rounds.looked) == 5
    assert world.slept == [60.0] * 5


def test_news_start_the_next_round_at_once(world: World, follower: Follower) -> None:
    world.news, world.held_s = lambda: latest(2), 10.0
    made, rounds, _ = service(world, follower, [at(1), at(2)])
    made.turn()
    made.turn()
    assert len(rounds.looked) == 2
    assert world.slept == []


def test_troubles_back_off_up_to_the_interval_and_are_forgotten(
    world: World, follower: Follower
) -> None:
    trouble = MirrorProblem("unreachable", "it did not answer", passing=True)
    made, _, said = service(world, follower, [*[trouble] * 8, at(1), trouble, trouble])
    for _ in range(8):
        made.turn()
    assert said == ["unreachable"] * 8
    assert 3 <= world.slept[0] <= 7
    assert all(40 <= pause <= 75 for pause in world.slept[4:])
    made.turn()
    made.turn()
    assert world.slept[-1] <= 7


def test_a_fault_of_the_program_does_not_end_it(
    world: World, follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    made, _, said = service(world, follower, [ZeroDivisionError("oh"), at(1)])
    made.turn()
    made.turn()
    assert said == ["internal"]
    assert "ZeroDivisionError" in caplog.text


def test_an_origin_that_announces_what_it_never_signs_is_not_asked_in_a_rush(
    world: World, follower: Follower
) -> None:
    world.news = lambda: latest(10**9)
    made, rounds, _ = service(world, follower, [at(1)])
    began = world.now
    for _ in range(30):
        made.turn()
    assert len(rounds.looked) == 30
    assert world.now - began > 25 * 40


@pytest.mark.parametrize(
    "answer", [latest(1), latest(0), Reply(200, {}, b'{"latest": "5"}'), Reply(200, {}, b"[" * 9)]
)
def test_an_origin_that_does_not_hold_is_asked_seldom(
    world: World, follower: Follower, answer: Reply
) -> None:
    world.news = lambda: answer
    made, _, _ = service(world, follower, [at(1)])
    began = world.now
    for _ in range(3):
        made.turn()
    assert len(world.asked) <= 3 * 12
    assert world.now - began >= 170


def test_looking_for_drift_in_a_huge_tree_takes_a_small_share_of_the_time(
    world: World, follower: Follower
) -> None:
    made, rounds, _ = service(world, follower, [at(1)])
    rounds.takes_s = 30.0
    for _ in range(40):
        made.turn()
    assert rounds.looked[0]
    looking_s = 30.0 * sum(rounds.looked)
    assert looking_s <= 0.08 * (world.now - 1000.0)
    assert sum(rounds.looked) >= 3


def test_a_small_tree_is_looked_at_every_round(world: World, follower: Follower) -> None:
    made, rounds, _ = service(world, follower, [at(1)])
    rounds.takes_s = 0.2
    for _ in range(5):
        made.turn()
    assert rounds.looked == [True] * 5


def reported(world: World, follower: Follower, own_url: str | None) -> str:
    """The trouble a mirror with this server of its own reports."""
    made, _, _ = service(
        world, follower, [at(1)], reporting=Reporting("one", "secret", own_url), interval_s=3600.0
    )
    made.turn()
    body, signature = world.posted[-1]
    report = decode_report(body, signature, {"one": "secret"}.get, world.now)
    assert (report.mirror, report.channel, report.version) == ("one", "main", 1)
    return report.trouble


def test_a_mirror_that_reports_does_so_often_enough_to_stay_listed(
    world: World, follower: Follower
) -> None:
    reported(world, follower, None)
    assert world.now - 1000.0 <= 60.0


def test_its_own_server_must_offer_what_it_mirrors(world: World, follower: Follower) -> None:
    own = "http://own.test/"
    ready = Reply(200, {"tidegate-free": "yes"}, b"")
    assert reported(world, follower, own) == "not-serving"
    world.own = {own + "-/ready": ready, own: Reply(404, {}, b"")}
    assert reported(world, follower, own) == "serves-other-files"
    world.own = {own + "-/ready": ready, own: Reply(200, {"content-length": "123456"}, b"")}
    assert reported(world, follower, own) == "serves-other-files"
    world.own = {own + "-/ready": ready, own: Reply(200, {}, b"")}
    assert reported(world, follower, own) == ""
    world.own = {own + "-/ready": ready, own: Reply(503, {}, b"")}
    assert reported(world, follower, own) == ""

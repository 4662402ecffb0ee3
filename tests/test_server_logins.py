"""Passwords are checked one at a time, fairly by network, and wrong ones are counted by network."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import HashingError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from tests.admin_site import PASSWORD, QUICK, Browser, make_site, operator, stop
from tests.installed import PYTHON
from tidegate.server.accounts import hash_process
from tidegate.server.accounts.hash_process import kept_hash, kept_hash_apart
from tidegate.server.accounts.hashing import Asker, Busy, Hashing, KeptHash, OneAtATime
from tidegate.server.accounts.login_brake import TUNING, LoginBrake
from tidegate.server.http.proxies import prefixes_of

NETWORKS = [f"10.0.{number}" for number in range(OneAtATime.WAITING + 3)]


@dataclass(eq=False)
class Try:
    """One password that somebody has checked, and what became of it."""

    network: str
    is_known: bool
    begun: bool = False
    refused: bool = False
    #: Hashes of strangers that began while this one waited, by network.
    before: Counter[str] = field(default_factory=Counter)
    #: Whether others of its network waited when it came.
    is_first: bool = False


class Logins(RuleBasedStateMachine):
    """Clients of many networks, of which one sends most, and the one thread that hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Deferred[str]] = []
        self.hashing = Hashing(self.off, lambda *_: "kept", QUICK)
        self.tries: list[Try] = []
        self.ended: list[Try] = []

    def off(self, _work: object) -> Deferred[str]:
        job: Deferred[str] = Deferred()
        self.jobs.append(job)
        return job

    def waiting(self, network: str | None = None) -> list[Try]:
        return [
            one
            for one in self.tries
            if not one.begun and not one.refused and network in (None, one.network)
        ]

    def begin(self, mine: Try) -> None:
        assert not mine.refused
        mine.begun = True
        if not mine.is_known:
            for other in self.waiting():
                other.before[mine.network] += 1

    @rule(
        network=st.sampled_from(NETWORKS) | st.just(NETWORKS[0]),
        host=st.integers(0, 255),
        is_known=st.sampled_from([False, False, False, True]),
        times=st.sampled_from([1, 1, 1, 30]),
    )
    def come(self, network: str, host: int, is_known: bool, times: int) -> None:
        for number in range(times):
            strangers = [one for one in self.waiting() if not one.is_known]
            counts = Counter(one.network for one in strangers)
            mine = Try(network, is_known, is_first=not self.waiting(network))
            self.tries.append(mine)
            prefixes = prefixes_of(f"{network}.{(host + number) % 256}")
            asker = Asker(prefixes, is_known, lambda mine=mine: self.begin(mine))

            def end(result: object, mine: Try = mine) -> None:
                if isinstance(result, Failure):
                    assert result.check(Busy)
                    mine.refused = True
                self.ended.append(mine)

            Deferred.fromCoroutine(self.hashing(asker, "guess", "hash")).addBoth(end)
            if mine.refused and not is_known:
                assert len(strangers) == OneAtATime.WAITING
                assert counts[network] >= max(counts.values()) - 1, "others have more"
            for one in strangers:
                if one.refused and one.network != network:
                    assert counts[one.network] > counts[network] + 1, "displaced by its equal"

    @precondition(lambda self: self.jobs)
    @rule()
    def finish(self) -> None:
        self.jobs.pop().callback("kept")

    @invariant()
    def one_at_a_time_and_few_wait(self) -> None:
        assert len(self.jobs) <= 1
        for is_known in (True, False):
            waiting = [one for one in self.waiting() if one.is_known is is_known]
            assert len(waiting) <= OneAtATime.WAITING
            assert self.jobs or not waiting, "nobody waits for nothing"

    @invariant()
    def known_ones_first_and_each_network_once_before_another_has_its_turn(self) -> None:
        for one in self.waiting():
            if one.is_first:
                assert not one.before or not one.is_known
                assert max(one.before.values(), default=0) <= 1

    def teardown(self) -> None:
        while self.jobs:
            self.finish()
        assert len(self.ended) == len(self.tries)
        assert all(one.begun is not one.refused for one in self.tries), "a Busy one never begins"


TestLogins = Logins.TestCase


@pytest.mark.parametrize(
    ("client", "neighbour", "elsewhere"),
    [
        ("2001:db8:7:{}::1", "2001:db8:7:ffff::1", "2001:db8:8::1"),
        ("198.51.100.{}", "198.51.100.255", "198.51.101.1"),
    ],
)
def test_a_network_whose_clients_guess_is_slowed_as_a_whole(
    client: str, neighbour: str, elsewhere: str
) -> None:
    brake = LoginBrake()
    for number in range(200):
        brake.start(client.format(number), "admin", 0.0)
    assert brake.wait_s(neighbour, "admin", 0.0) > 0
    assert brake.wait_s(elsewhere, "admin", 0.0) == 0.0


def test_a_client_that_logged_in_before_is_not_slowed_by_its_network() -> None:
    brake = LoginBrake(limit=300)
    brake.start("198.51.100.9", "admin", 0.0)
    brake.succeeded("198.51.100.9", "admin")
    for number in range(50, 150):
        brake.start(f"198.51.100.{number}", "admin", 0.0)
    assert brake.wait_s("198.51.100.8", "admin", 0.0) > 0
    assert brake.wait_s("198.51.100.9", "admin", 0.0) == 0.0
    for _ in range(20):
        brake.start("198.51.100.9", "admin", 0.0)
    assert brake.wait_s("198.51.100.9", "admin", 0.0) > 0, "it has no more tries than others"
    for number in range(1000):
        brake.succeeded(f"10.0.{number // 250}.{number % 250}", "admin")
    assert len(brake._known) <= 300


@given(st.lists(st.tuples(st.integers(0, 65535), st.sampled_from([0.0, 0.1, 60.0])), max_size=200))
def test_who_changes_its_address_within_a_network_has_few_guesses_an_hour(
    moves: list[tuple[int, float]],
) -> None:
    brake, now = LoginBrake(), 0.0
    guesses: list[float] = []
    for number, rest_s in moves:
        address, name = f"2001:db8:7:{number:x}::1", f"user{number}"
        now += rest_s
        now += brake.wait_s(address, name, now)
        brake.start(address, name, now)
        guesses.append(now)
    # Forty are free, nine pauses double to 512 s, the others are of a quarter of an hour.
    assert all(later - first > 3600 for first, later in zip(guesses, guesses[52:], strict=False))


@pytest.mark.parametrize("kept", [kept_hash, kept_hash_apart])
def test_a_hash_of_another_cost_is_replaced_once_its_password_is_shown(
    kept: KeptHash, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_process.sys, "executable", PYTHON)
    word = "a pass\u00e9 word"
    old = PasswordHasher(time_cost=1, memory_cost=64, parallelism=4).hash(word)
    new = kept(QUICK, word, old)
    assert new is not None
    assert ",p=1$" in new
    assert QUICK.verify(new, word)
    assert kept(QUICK, word, new) == new
    assert kept(QUICK, "another", old) is None
    assert kept(QUICK, "another", "no hash") is None
    fresh = kept(QUICK, "another", None)
    assert fresh is not None
    assert QUICK.verify(fresh, "another")


def test_a_process_that_cannot_hash_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_process.sys, "executable", PYTHON)
    with pytest.raises(HashingError, match="HashingError"):
        kept_hash_apart(PasswordHasher(memory_cost=1, parallelism=1), "a password", None)


def test_an_upgraded_hash_is_kept_and_the_password_still_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch)
    operator(site)
    accounts = site.admin.accounts
    old = PasswordHasher(time_cost=1, memory_cost=64, parallelism=4).hash(PASSWORD)
    accounts.users["admin"] = replace(accounts.users["admin"], password_hash=old)
    for _ in range(2):
        assert Browser(site).login("admin", PASSWORD).status == 303
        assert ",p=1$" in accounts.users["admin"].password_hash
    stop(site)


def test_a_login_forgives_its_own_failures_and_not_those_of_its_network() -> None:
    brake, now = LoginBrake(), 0.0
    for number in range(TUNING.free_tries_network):
        brake.start(f"192.0.2.{number}", "admin", now)
    assert brake.wait_s("192.0.2.200", "admin", now) > 0
    now = TUNING.pause_s
    brake.start("192.0.2.201", "admin", now)
    brake.succeeded("192.0.2.201", "admin")
    now += TUNING.pause_max_s
    assert brake.wait_s("192.0.2.200", "admin", now) == 0
    brake.start("192.0.2.200", "admin", now)
    assert brake.wait_s("192.0.2.202", "admin", now) > 0


def test_failures_are_forgotten_after_an_hour_without_a_try() -> None:
    brake = LoginBrake()
    for _ in range(TUNING.free_tries_name):
        brake.start("192.0.2.1", "admin", 0.0)
    assert brake.wait_s("192.0.2.1", "admin", 0.0) == TUNING.pause_s
    later_s = TUNING.forget_s + 1
    brake.start("192.0.2.1", "admin", later_s)
    assert brake.wait_s("192.0.2.1", "admin", later_s) == 0

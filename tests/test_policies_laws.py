"""`check_laws` finds faulty policies in seconds, names the law and says what to do."""

from __future__ import annotations

import pytest

from tidegate.policies import registry
from tidegate.policies.fair import FairPolicy
from tidegate.policies.hooks import Policy
from tidegate.policies.leases import Lease
from tidegate.policies.testing import LAWS, LawBroken, check_laws

Ids = tuple[int, ...]


class ForgetsPaused(FairPolicy):
    """Decides nothing while the line is unknown, as a first version of a small policy did."""

    def preempt(self, now: float) -> tuple[Ids, Ids]:
        return super().preempt(now) if self.admission.capacity.known else ((), ())


class PausesAll(Policy):
    """Pauses each download as it starts."""

    def starts(self, lease: Lease, row: int | None, now: float) -> None:
        self.started = [*getattr(self, "started", []), lease]

    def preempt(self, now: float) -> tuple[Ids, Ids]:
        pause = [lease for lease in getattr(self, "started", []) if not lease.paused]
        self.started = []
        pause = [lease for lease in pause if lease.id in self.admission.pool.leases]
        for lease in pause:
            self.admission.pool.pause(lease, now)
        return tuple(lease.id for lease in pause), ()


class PausesTwice(Policy):
    """Pauses without a look at what is paused."""

    def preempt(self, now: float) -> tuple[Ids, Ids]:
        return tuple(self.admission.pool.leases), ()


class CallsEverybody(Policy):
    """Calls who waits, but lets start in turn."""

    def call(self, now: float) -> tuple[Ids, bool]:
        return tuple(number for _, number in self.admission.queue.here), False


class StartsEverybody(Policy):
    def may_start(self, row: int, now: float) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (ForgetsPaused, "paused downloads go on"),
        (PausesAll, "paused downloads go on"),
        (PausesTwice, "pauses alternate"),
        (CallsEverybody, "who is called may start"),
        (StartsEverybody, "slots are kept"),
    ],
)
def test_a_faulty_policy_is_told_its_law_and_what_to_do(
    kind: type[Policy], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "name", "faulty")
    monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, "faulty": kind})
    with pytest.raises(LawBroken) as broken:
        check_laws("faulty", examples=200)
    assert str(broken.value).startswith(f"broken: {law}")
    assert LAWS[law] in str(broken.value)

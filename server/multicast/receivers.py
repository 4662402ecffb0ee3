"""The receivers of a session as the sender knows them. Pure.

A receiver that joined before the first datagram is *on time*, others are *late*. The late get all
they want from what the others leave, and have no word on how the session goes, so that a stream of
them, or one that joins again and again, costs those on time nothing. Once nobody on time is left,
the late are those on time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ...protocol.session_report import ReceiverReport
from .schedule_steps import CarouselSettings

#: Over so many offers the gaps between them are looked at.
_GAPS = 8


@dataclass(slots=True)
class _Receiver:
    address: str = ""
    late: bool = False
    offered_at: float = 0.0
    joined: bool = False
    heard_at: float = 0.0
    loss: float = 0.0
    #: Where the counts stood when the loss was last judged, and since when they are looked at.
    judged: tuple[int, int] = (0, 0)
    judged_at: float | None = None


class Receivers:
    """Who is expected to report, what they said, and who is gone."""

    def __init__(self, settings: CarouselSettings, now: float) -> None:
        self._settings = settings
        self._members: dict[str, _Receiver] = {}
        self.done = 0
        #: The addresses of all who ever joined on time, and of those who came later.
        self.addresses: set[str] = set()
        self.late_addresses: set[str] = set()
        #: When the last offers were given, and how long those who joined on time took.
        self._offers: list[float] = []
        self._took_s: list[float] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: str) -> bool:
        """Whether it joined and is not gone."""
        return name in self._members

    def join(
        self,
        name: str,
        now: float,
        *,
        address: str = "",
        late: bool = False,
    ) -> None:
        """A receiver was given the offer; `address` is what counts as one ("": its name)."""
        address = address or name
        (self.late_addresses if late else self.addresses).add(address)
        if not late:
            self._offers = [*self._offers, now][-_GAPS:]
        self._members[name] = _Receiver(address, late, now, heard_at=now)

    def is_late(self, name: str) -> bool:
        """Whether it came after the first datagram, and others that did not are still here."""
        member = self._members.get(name)
        return member is not None and member.late

    @property
    def on_time(self) -> int:
        """How many of those who joined on time are still expected to report."""
        return sum(1 for _ in self._punctual())

    @property
    def punctual(self) -> Sequence[str]:
        """Those who joined on time and are still expected to report."""
        return [name for name, member in self._members.items() if not member.late]

    def _punctual(self) -> Iterator[_Receiver]:
        return (member for member in self._members.values() if not member.late)

    def promote(self) -> bool:
        """With nobody on time left, the late are; whether that happened now."""
        if not self._members or any(True for _ in self._punctual()):
            return False
        for member in self._members.values():
            member.late = False
        self.addresses |= self.late_addresses
        self.late_addresses.clear()
        return True

    def ready_at(self, latest: float) -> float:
        """When pass 0 may begin, `latest` at most: once everybody is in, and nobody else follows.

        One that was offered and has not joined yet is waited for as long as the others lead one
        to expect; one address with several members is waited for once.
        """
        settings = self._settings
        if not self._members or settings.settle_s == float("inf"):
            return latest
        least, usual = settings.least_patience_s, 4 * median(self._took_s or [settings.lead_s])
        ready = self._offers[-1] + self._settle_s() if self._offers else latest
        here = {member.address for member in self._members.values() if member.joined}
        for member in self._members.values():
            if not member.joined and member.address not in here:
                ready = max(ready, member.offered_at + max(least, usual))
        return min(latest, ready)

    def _settle_s(self) -> float:
        """How long to wait for one more, after the last: a few times the usual gap between them.

        A receiver that comes later than that is not worth the wait for all.
        """
        least, most = self._settings.settle_s, self._settings.most_settle_s
        offers = self._offers
        if len(offers) < 2:
            return least
        wait = 3 * (offers[-1] - offers[0]) / (len(offers) - 1)
        return max(least, wait) if wait <= most else least

    def worst_loss(self) -> float:
        """The greatest loss in the last reports of those on time that may stay."""
        worst = self._settings.worst_loss
        return max((m.loss for m in self._punctual() if m.loss <= worst), default=0.0)

    def report(self, report: ReceiverReport, now: float) -> str:
        """Take a report; the action to answer with: continue, unicast or closed."""
        member = self._members.get(report.member)
        if member is None:
            return "closed"
        member.heard_at = now
        if not member.joined:
            member.joined = True
            if not member.late:
                self._took_s.append(now - member.offered_at)
        member.loss = report.loss
        if report.state in ("done", "left"):
            del self._members[report.member]
            self.done += report.state == "done"
            return "closed"
        if self._too_lossy(member, report, now):
            del self._members[report.member]
            return "unicast"
        return "continue"

    def _too_lossy(self, member: _Receiver, report: ReceiverReport, now: float) -> bool:
        """Judge what was lost since the last time, once that is enough to go by.

        A download that starts on the same line takes most of it for half a second, so many
        datagrams alone say little: time must have passed as well.
        """
        settings = self._settings
        if member.judged_at is None:
            if report.expected:
                member.judged_at = now
            return False
        sent = report.expected - member.judged[0]
        if sent < settings.judge_after_datagrams or now - member.judged_at < settings.judge_after_s:
            return False
        loss = 1 - (report.received - member.judged[1]) / sent
        member.judged, member.judged_at = (report.expected, report.received), now
        return loss > settings.worst_loss

    def send_away(self, name: str) -> None:
        """A receiver was told to go to unicast."""
        del self._members[name]

    def forget_silent(self, since: float, now: float) -> None:
        """A receiver not heard for long, `since` not being counted before, is lost."""
        timeout = self._settings.member_timeout_s
        for name, member in list(self._members.items()):
            if now - max(member.heard_at, since) > timeout:
                del self._members[name]

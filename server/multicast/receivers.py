"""The receivers of a session. Pure.

A receiver that joined before the first datagram is *on time*; others are *late*. Late receivers get
repair from the capacity that the others leave, and do not vote on the rate: however many join, or
join repeatedly, those on time lose nothing. When no receiver on time is left, the late ones become
receivers on time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ...protocol.session import Action, ReceiverReport
from .schedule_steps import CarouselSettings


@dataclass(slots=True)
class _Receiver:
    address: str = ""
    late: bool = False
    offered_at: float = 0.0
    joined: bool = False
    reported_at: float = 0.0
    loss: float = 0.0
    #: (expected, received) when the loss was last judged, and that time.
    judged: tuple[int, int] = (0, 0)
    judged_at: float | None = None


class Receivers:
    """The receivers whose reports are expected, and what they reported."""

    def __init__(self, settings: CarouselSettings, now: float) -> None:
        self._settings = settings
        self._members: dict[str, _Receiver] = {}
        self.done = 0
        #: The addresses of all receivers that ever joined on time, and of the late ones.
        self.addresses: set[str] = set()
        self.late_addresses: set[str] = set()
        #: The times of the last offers.
        self._offers: list[float] = []
        #: The times from offer to join of receivers on time.
        self._took_s: list[float] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: str) -> bool:
        """Whether this receiver's reports are expected."""
        return name in self._members

    def join(
        self,
        name: str,
        now: float,
        *,
        address: str = "",
        late: bool = False,
    ) -> None:
        """Add a receiver that got the offer. `address` is what counts as one ("": its name)."""
        address = address or name
        (self.late_addresses if late else self.addresses).add(address)
        if not late:
            # The last offers whose intervals predict the next one.
            self._offers = [*self._offers, now][-8:]
        self._members[name] = _Receiver(address, late, now, reported_at=now)

    def is_late(self, name: str) -> bool:
        member = self._members.get(name)
        return member is not None and member.late

    @property
    def on_time(self) -> int:
        """The number of receivers on time."""
        return sum(1 for _ in self._punctual())

    @property
    def punctual(self) -> Sequence[str]:
        return [name for name, member in self._members.items() if not member.late]

    def _punctual(self) -> Iterator[_Receiver]:
        return (member for member in self._members.values() if not member.late)

    def promote(self) -> bool:
        """If no receiver on time is left, the late ones become such. Whether that happened now."""
        if not self._members or any(True for _ in self._punctual()):
            return False
        for member in self._members.values():
            member.late = False
        self.addresses |= self.late_addresses
        self.late_addresses.clear()
        return True

    def ready_at(self, latest: float) -> float:
        """The time at which pass 0 may start, `latest` at most.

        It is after the last join, and after `_settle_s` without a further offer. A receiver that
        has not joined yet is waited for by the joins of the others; an address with a joined
        receiver is not waited for.
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
        """The wait after the last offer: three times the mean interval between offers.

        A longer wait would cost all members more than a late receiver costs.
        """
        least, most = self._settings.settle_s, self._settings.most_settle_s
        offers = self._offers
        if len(offers) < 2:
            return least
        wait = 3 * (offers[-1] - offers[0]) / (len(offers) - 1)
        return max(least, wait) if wait <= most else least

    def worst_loss(self) -> float:
        """The highest loss in the last reports of receivers on time, up to the settings' limit."""
        worst = self._settings.worst_loss
        return max((m.loss for m in self._punctual() if m.loss <= worst), default=0.0)

    def report(self, report: ReceiverReport, now: float) -> Action:
        """Add a report. Returns the answer's action: continue, unicast or closed."""
        member = self._members.get(report.member)
        if member is None:
            return "closed"
        member.reported_at = now
        if not member.joined:
            member.joined = True
            if not member.late:
                self._took_s.append(now - member.offered_at)
        member.loss = report.loss
        if report.state in ("done", "left"):
            del self._members[report.member]
            self.done += report.state == "done"
            return "closed"
        if self._is_too_lossy(member, report, now):
            del self._members[report.member]
            return "unicast"
        return "continue"

    def _is_too_lossy(self, member: _Receiver, report: ReceiverReport, now: float) -> bool:
        """Judge the loss since the last judgement, over enough datagrams and enough time.

        A download that starts on the same line takes most of it for 0.5 s: the number of datagrams
        alone is not enough.
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
        """Remove a receiver that was told to use unicast."""
        del self._members[name]

    def forget_silent(self, since: float, now: float) -> None:
        """Remove receivers without a report for `member_timeout_s` after `since`."""
        timeout = self._settings.member_timeout_s
        for name, member in list(self._members.items()):
            if now - max(member.reported_at, since) > timeout:
                del self._members[name]

"""The receivers of a session as the sender knows them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.session_report import Report
from server.multicast.schedule_steps import CarouselSettings


@dataclass(slots=True)
class _Member:
    joined: bool = False
    heard_at: float = 0.0
    loss: float = 0.0
    #: Where the counts stood when the loss was last judged, and since when they are looked at.
    judged: tuple[int, int] = (0, 0)
    judged_at: float | None = None
    declared_bytes_s: float = float("inf")


class Members:
    """Who is expected to report, what they said, and who is gone."""

    def __init__(self, settings: CarouselSettings, now: float) -> None:
        self._settings = settings
        self._members: dict[str, _Member] = {}
        self.done = 0
        #: How many ever joined, and when the last one did.
        self.joins = 0
        self.last_join = now

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: str) -> bool:
        """Whether it joined and is not gone."""
        return name in self._members

    def join(self, name: str, now: float, declared_bytes_s: float) -> None:
        """A receiver was given the offer."""
        self.joins += 1
        self.last_join = now
        self._members[name] = _Member(heard_at=now, declared_bytes_s=declared_bytes_s)

    @property
    def all_joined(self) -> bool:
        """Somebody is here, and everybody said so."""
        return bool(self._members) and all(m.joined for m in self._members.values())

    def slowest_declared_bytes_s(self) -> float:
        """The least rate a member said it can take."""
        return min((m.declared_bytes_s for m in self._members.values()), default=float("inf"))

    def worst_loss(self) -> float:
        """The greatest loss in the members' last reports, of those that may stay."""
        worst = self._settings.worst_loss
        return max((m.loss for m in self._members.values() if m.loss <= worst), default=0.0)

    def report(self, report: Report, now: float) -> str:
        """Take a report; the action to answer with: continue, unicast or closed."""
        member = self._members.get(report.member)
        if member is None:
            return "closed"
        member.heard_at = now
        member.joined = True
        member.loss = report.loss
        if report.state in ("done", "left"):
            del self._members[report.member]
            self.done += report.state == "done"
            return "closed"
        if self._too_lossy(member, report, now):
            del self._members[report.member]
            return "unicast"
        return "continue"

    def _too_lossy(self, member: _Member, report: Report, now: float) -> bool:
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

    def forget_silent(self, since: float, now: float) -> None:
        """Who was not heard for long, `since` not being counted before, is lost."""
        timeout = self._settings.member_timeout_s
        for name, member in list(self._members.items()):
            if now - max(member.heard_at, since) > timeout:
                del self._members[name]

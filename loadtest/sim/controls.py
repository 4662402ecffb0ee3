"""What the policies are measured against, and what no server of ours runs.

`ProcessorSharing` admits all clients at once and lets the link sort it out: what nginx does. The
paper's FTP is no policy but a way of asking (one connection for all files): `Conditions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...policies.contract import (
    ONE_LINE,
    Admit,
    Advance,
    Decision,
    Estimate,
    Job,
    LeaseView,
    LineSeen,
    Snapshot,
    TicketRow,
)


class ProcessorSharing:
    """Unlimited slots: every offer is admitted, nothing is ever queued."""

    name = "ps"

    def __init__(self, small_below_bytes: int) -> None:
        self._small_below = small_below_bytes
        self._leases: dict[int, LeaseView] = {}
        self._next = 0
        self._small = 0
        self._large = 0
        self._completed = 0
        self._waker = Advance()

    def admit_small(self, now: float) -> bool:
        """Always."""
        self._small += 1
        return True

    def close(self, closed: bool) -> None:
        """Never."""

    def admit_single_write(self, now: float) -> bool:
        """Always."""
        self._large += 1
        self._completed += 1
        return True

    def can_admit_single_write(self, now: float) -> bool:
        """Always."""
        return True

    def offer(self, job: Job, now: float, ticket: int | None = None) -> Decision:
        """Always, on a lease of its own."""
        self._next += 1
        large = job.size_bytes >= self._small_below
        if large:
            self._large += 1
        else:
            self._small += 1
        self._leases[self._next] = LeaseView(
            lease=self._next,
            ticket=None,
            client=job.client,
            file=job.file,
            size_bytes=job.size_bytes,
            remaining_bytes=job.remaining_bytes,
            large=large,
            started_s=now,
            connections=1,
            paused=False,
            rate_bytes_s=job.rate_bytes_s,
        )
        return Admit(self._next)

    def progress(
        self,
        lease: int,
        now: float,
        remaining_bytes: int,
        rate_bytes_s: float,
        held_back: bool | None = False,
        reads_bytes_s: float = 0.0,
    ) -> None:
        """Nothing depends on it."""

    def detach(self, lease: int, now: float, remaining_bytes: int) -> None:
        """Without its one connection a lease is over."""
        self._leases.pop(lease, None)

    def release(self, lease: int, now: float, done: bool) -> None:
        """Over."""
        self._leases.pop(lease, None)
        self._completed += done

    def withdraw(self, ticket: int, now: float) -> None:
        """There are no tickets."""

    def present(self, ticket: int, now: float, line: str = "") -> None:
        """There are no tickets."""

    def absent(self, ticket: int, now: float) -> None:
        """There are no tickets."""

    def promote(self, ticket: int, now: float) -> bool:
        """There are no tickets."""
        return False

    def observe(
        self,
        goodput_bytes_s: float,
        link_busy: bool,
        now: float,
        line_bytes_s: float | None = None,
        lines: Mapping[str, LineSeen] = ONE_LINE,
    ) -> None:
        """Nothing depends on it."""

    def advance(self, now: float) -> Advance:
        """Nothing ever happens by itself."""
        return self._waker

    def estimate(self, ticket: int, now: float) -> Estimate | None:
        """There are no tickets."""
        return None

    def ticket(self, number: int) -> TicketRow | None:
        """There are no tickets."""
        return None

    def holds(self, client: str, file: str) -> bool:
        """There are no tickets."""
        return False

    def ticket_of(self, lease: int) -> int | None:
        """There are no tickets."""
        return None

    def issued_s(self, number: int) -> float | None:
        """There are no tickets."""
        return None

    def place(self, ticket: int) -> int | None:
        """It keeps no places."""
        return None

    def tickets(self, start: int = 0) -> Iterable[TicketRow]:
        """There are no tickets."""
        return ()

    def anybody_waits(self) -> bool:
        """None."""
        return False

    def leases(self) -> Sequence[LeaseView]:
        """All running downloads."""
        return tuple(self._leases.values())

    def done(self, lease: int, now: float) -> Estimate | None:
        """It tells nothing."""
        return None

    def changes(self) -> list[TicketRow]:
        """There are no tickets."""
        return []

    def restore(self, rows: Iterable[TicketRow], now: float, next_number: int) -> None:
        """There are no tickets."""

    def snapshot(self, now: float) -> Snapshot:
        """The state at a glance; slots are counted as those in use."""
        active = len(self._leases)
        large = sum(view.large for view in self._leases.values())
        offers = self._small + self._large
        return Snapshot(
            policy=self.name,
            mode="open",
            slots=active,
            large_slots=active,
            small_active=active - large,
            large_active=large,
            paused=0,
            waiting=0,
            ready=0,
            ready_target=0,
            offers_total=offers,
            admitted_small_total=self._small,
            admitted_large_total=self._large,
            completed_total=self._completed,
            tickets_issued_total=0,
            tickets_expired_total=0,
            no_show_fraction=0.0,
            early_polls_total=0,
            refused_total=0,
            last_wait=None,
            eta_within_p90=None,
            eta_median_error=None,
        )

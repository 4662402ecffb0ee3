"""What the admin pages need of a running server, and nothing more: the seam to `server.service`.

All methods are called in the reactor's thread and return quickly; those that read the store are
coroutines. Times are Unix seconds, rates bytes per second. Nothing here answers HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from policies.job import LeaseView, Snapshot, TicketRow
from policies.settings import PolicySettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Health:
    """What the server says of itself beside its policy. `goodput_bytes_s` is measured."""

    version: str
    started_s: float
    draining: bool = False
    store_degraded: bool = False
    store_fault: str = ""
    goodput_bytes_s: float = 0.0
    capacity_bytes_s: float | None = None
    connections: int = 0
    held: int = 0
    held_limit: int = 0
    connections_total: int = 0
    errors_total: int = 0
    forged_total: int = 0
    sent_bytes_total: int = 0
    multicast_cohorts: int = 0
    multicast_receivers: int = 0
    listeners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TicketView:
    """A waiting ticket as the operator sees it; `place` counts from 1 where it is known."""

    row: TicketRow
    place: int | None
    expected_s: float | None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class TicketPage:
    """One page of tickets in the order of their turn; `total` counts all that match."""

    rows: tuple[TicketView, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Block:
    """An address (or network) that is refused, until `until_s` or for good."""

    network: str
    since_s: float
    until_s: float | None
    who: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Revision:
    """One state of the policy: its name and all settings, who set it, when and why."""

    number: int
    at_s: float
    who: str
    note: str
    policy: str
    settings: Mapping[str, Any]
    restored_from: int | None = None


class StaleRevision(Exception):
    """The caller changed a revision that is no longer the current one."""


class StoreSilent(Exception):
    """The database does not answer, and without it there is nothing to show."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth remembering: an operator's act, a fault, a change of mode."""

    number: int
    at_s: float
    kind: str
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class FileView:
    """One served file. `digest_state` is one of none, computing, known."""

    path: str
    size_bytes: int
    modified_s: float
    sha256: str | None
    digest_state: str
    downloads: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class FilePage:
    """One page of files; `total` counts all that match, `busy` how many wait for a digest."""

    rows: tuple[FileView, ...]
    total: int
    busy: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for the files whose URL path matches the pattern `path` (shell wildcards).

    Of several rules that match, what the last one says counts; what it leaves empty it leaves.
    `treat_as` is "", "small" or "large"; `multicast` None leaves the server's choice. Files are
    hidden until `hidden_until_s`; with `prequeue_from_s` clients may register before it, and
    their order is drawn when it opens.
    """

    path: str
    require_class: str = ""
    treat_as: str = ""
    multicast: bool | None = None
    hidden_until_s: float | None = None
    prequeue_from_s: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PrequeueView:
    """A pre-queue: its published commitment, and after the draw the seed that opens it."""

    path: str
    opens_s: float
    entered: int
    commitment: str
    seed: str | None
    audit_url: str


@dataclass(frozen=True, slots=True)
class PassView:
    """A preference ticket as issued; `token` is known only in the answer that issued it."""

    serial: str
    kind: str
    weight: float
    path: str
    not_before_s: float
    expires_s: float
    max_uses: int
    used: int
    revoked: bool
    issued_s: float
    who: str
    note: str = ""
    token: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingLook:
    """The operator's own words and picture on the waiting page. `logo` is a PNG or SVG."""

    title: str = ""
    text: str = ""
    logo: bytes = b""
    logo_type: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """Series on one time axis; a missing value is None."""

    t: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One recorded wish, for the preview."""

    t_s: float
    client: str
    file: str
    size_bytes: int
    rate_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a state table (mirrors, multicast cohorts): a name, a state word, facts."""

    name: str
    state: str
    facts: Mapping[str, str] = field(default_factory=dict)


class AdminContext(Protocol):
    """A running server, seen by its operator."""

    def now(self) -> float: ...

    async def off(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread; for passwords and other slow pure work."""
        ...

    # -- the state now
    def snapshot(self) -> Snapshot: ...
    def health(self) -> Health: ...
    def may_scrape(self, peer: str) -> bool:
        """Whether this address may read the metrics without an API token."""
        ...

    def leases(self) -> Sequence[LeaseView]: ...
    async def tickets(self, search: str, state: str, offset: int, limit: int) -> TicketPage: ...
    def ticket(self, number: int) -> TicketView | None: ...
    async def history(self, since_s: float, until_s: float, points: int) -> History:
        """The series of `server.admin.charts.SERIES` on one axis of at most `points` steps."""
        ...

    # -- acts on the queue
    def cancel_lease(self, lease: int) -> bool: ...
    def expire_ticket(self, ticket: int) -> bool: ...
    def promote_ticket(self, ticket: int) -> bool: ...
    def blocks(self) -> Sequence[Block]: ...
    def block(self, block: Block) -> None: ...
    def unblock(self, network: str) -> bool: ...

    # -- the policy
    def policies(self) -> Sequence[str]: ...
    def current(self) -> Revision: ...
    async def revisions(self, before: int | None, limit: int) -> Sequence[Revision]: ...
    async def revision(self, number: int) -> Revision | None: ...
    def apply(
        self,
        policy: str,
        settings: PolicySettings,
        who: str,
        note: str,
        expected: int,
        restored_from: int | None = None,
    ) -> Revision:
        """Make this the policy now, without dropping a download or a place.

        Raises StaleRevision when `expected` is not the current revision's number.
        """
        ...

    async def arrivals(self, since_s: float, limit: int) -> Sequence[Arrival]: ...

    # -- events
    def log(self, kind: str, who: str, text: str) -> None: ...
    async def events(
        self, before: int | None, limit: int, kind: str, search: str
    ) -> Sequence[Event]: ...

    # -- files, tickets given ahead, waiting page
    async def files(self, search: str, sort: str, offset: int, limit: int) -> FilePage: ...
    def rules(self) -> Sequence[Rule]: ...
    def set_rules(self, rules: Sequence[Rule]) -> None: ...
    def prequeues(self) -> Sequence[PrequeueView]: ...
    def issue_passes(
        self,
        count: int,
        kind: str,
        path: str,
        not_before_s: float,
        expires_s: float,
        max_uses: int,
        note: str,
        who: str,
    ) -> Sequence[PassView]: ...
    async def passes(
        self, search: str, offset: int, limit: int
    ) -> tuple[Sequence[PassView], int]: ...

    def revoke_pass(self, serial: str) -> bool: ...
    def waiting_look(self) -> WaitingLook: ...
    def set_waiting_look(self, look: WaitingLook) -> None: ...
    def waiting_preview(self, state: str, language: str, look: WaitingLook) -> bytes:
        """The waiting page as HTML in one of the states of `WAITING_STATES`."""
        ...

    # -- neighbours
    def mirrors(self) -> Sequence[Row]: ...
    def multicast(self) -> Sequence[Row]: ...
    def metrics(self) -> bytes:
        """The Prometheus exposition of this server."""
        ...


WAITING_STATES = ("waiting", "ready", "closed", "pre-queue")

Off = Callable[[Callable[[], Any]], Awaitable[Any]]

"""The figures of a running server, read from the live objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ...protocol.version import __version__
from ..admission.gate import Gate
from ..store.store import Store
from .events import FaultCount

if TYPE_CHECKING:
    from ..gate.room import GateRoom
    from ..multicast.service import MulticastRoom
    from ..torrent.room import TorrentRoom


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Figures of a node that its leader knows."""

    name: str
    connections: int
    bodies: int
    goodput_bytes_s: float
    sent_bytes_total: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all processes that serve.

    `listeners` are the URLs of the files. `goodput_bytes_s` is measured, `capacity_bytes_s` is the
    limit (None: unlimited). `epoch` counts the leaders (0 in a single server). `fleet_fault` says
    what is wrong among processes and machines. Only a single process counts `transfers_misplaced`
    and `transfers_starved_total`.
    """

    listeners: tuple[str, ...] = ()
    connections: int = 0
    connections_total: int = 0
    sent_bytes_total: int = 0
    goodput_bytes_s: float = 0.0
    capacity_bytes_s: float | None = None
    transfers_misplaced: int = 0
    transfers_starved_total: int = 0
    nodes: tuple[NodeFigures, ...] = ()
    epoch: int = 0
    fleet_fault: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """Figures that do not come from the policy."""

    version: str
    started_s: float
    totals: Totals = Totals()
    draining: bool = False
    store_degraded: bool = False
    store_fault: str = ""
    held: int = 0
    errors_total: int = 0
    forged_total: int = 0
    multicast_cohorts: int = 0
    multicast_receivers: int = 0
    torrent_peers: int = 0
    torrent_peers_complete: int = 0
    torrent_announces_total: int = 0
    moved_bodies: int = 0
    mover_reports_total: int = 0
    mover_reports_lost_total: int = 0
    mover_unclaimed_total: int = 0
    mover_unknown_total: int = 0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the server admits downloads. `text` names faults, `free` says whether a large
    download would start at once, `refusal` is the problem's code if none is admitted.
    """

    text: str
    free: bool
    refusal: str = ""


def unready(*, draining: bool, deleted: bool) -> Readiness | None:
    """Why a server admits no download; None if it does. `deleted`: the served folder is gone."""
    if draining:
        return Readiness("The server is being stopped or restarted.", False, "closed")
    return Readiness("The served folder was deleted.", False, "overloaded") if deleted else None


@dataclass(slots=True)
class Vitals:
    """Reads the figures of a running server."""

    started_s: float
    gate: Gate
    totals: Callable[[], Totals]
    store: Store
    multicast: MulticastRoom | None
    torrents: TorrentRoom | None
    movers: GateRoom | None
    #: None without a certificate, or where its file cannot be read.
    certificate_left_s: Callable[[], float | None] = lambda: None
    is_folder_deleted: Callable[[], bool] = lambda: False
    #: How long everything had to wait for one turn of the loop, in seconds.
    loop_lag_s: Callable[[], float] = lambda: 0.0
    faults: FaultCount = field(default_factory=FaultCount)

    def readiness(self) -> Readiness:
        """The answer of `/-/ready`."""
        found = unready(draining=self.gate.draining, deleted=self.is_folder_deleted())
        if found is not None:
            return found
        seen, ill, fault = self.gate.snapshot(), self.store.state.reason, self.totals().fleet_fault
        # Downloads continue without a database: a balancer should still send clients here.
        text = f"ready, but the database takes no writes: {ill}\n" if ill else "ready\n"
        if fault:
            text += f"{fault}\n"
        return Readiness(text, not seen.waiting and seen.large_used < seen.large_slots)

    def figures(self) -> dict[str, Any]:
        """All figures by name, as charts, metrics and the API read them."""
        snapshot, health = self.gate.snapshot(), asdict(self.read())
        totals, wait = health.pop("totals"), snapshot.last_wait
        return {
            **health,
            **totals,
            **asdict(snapshot),
            "admitted_total": snapshot.admitted_small_total + snapshot.admitted_large_total,
            "begun_downloads_total": self.gate.parts.popularity.begun_total,
            "complete_downloads_total": self.gate.parts.popularity.complete_total,
            "certificate_left_s": self.certificate_left_s(),
            "loop_lag_s": self.loop_lag_s(),
            "last_wait_s": wait.expected_s if wait else None,
            "last_wait_p90_s": wait.p90_s if wait else None,
            "people_waiting": snapshot.people_waiting,
        }

    def read(self) -> Health:
        state = self.store.state
        multicast = self.multicast.sessions.figures() if self.multicast is not None else (0, 0)
        torrents = self.torrents
        peers = torrents.census() if torrents is not None else None
        moves = self.movers.moves if self.movers is not None else None
        return Health(
            version=__version__,
            started_s=self.started_s,
            totals=self.totals(),
            draining=self.gate.draining,
            store_degraded=not state.ok,
            store_fault=state.reason,
            held=len(self.gate.parked),
            errors_total=self.faults.total + self.store.failures_total,
            forged_total=self.gate.reception.forged_total,
            multicast_cohorts=multicast[0],
            multicast_receivers=multicast[1],
            torrent_peers=peers.complete + peers.incomplete if peers is not None else 0,
            torrent_peers_complete=peers.complete if peers is not None else 0,
            torrent_announces_total=torrents.announces_total if torrents is not None else 0,
            moved_bodies=len(moves) if moves is not None else 0,
            mover_reports_total=moves.counts.reported if moves is not None else 0,
            mover_reports_lost_total=moves.counts.unreported if moves is not None else 0,
            mover_unclaimed_total=moves.counts.unclaimed if moves is not None else 0,
            mover_unknown_total=moves.counts.unknown if moves is not None else 0,
        )

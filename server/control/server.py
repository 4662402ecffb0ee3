"""The objects of a running server that pages and API work on, in the reactor's thread.

Times are Unix seconds, rates are bytes per second.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from twisted.logger import globalLogPublisher

from ...protocol.units import format_duration
from ..admission.actions import QueueActions
from ..admission.gate import Gate
from ..admission.rules import Rule
from ..files.site import Site
from ..http.clock import Reactor
from ..store.records import RevisionRecord
from ..store.store import Store
from .alert_settings import AlertSettings
from .alerting import Alerting, descriptors_part
from .branding import LOGO_ROUTE, STYLE_ROUTE, Branding
from .events import EventLog
from .file_index import FileIndex
from .history import Arrivals, History
from .key_values import KeyValues
from .revisions import Revisions
from .set_up import BlockedNetworks, Doors, RuleKeeper
from .vitals import Totals, Vitals

if TYPE_CHECKING:
    from ..gate.room import GateRoom
    from ..mirror.registry import Registry
    from ..multicast.service import MulticastRoom
    from ..torrent.room import TorrentRoom


@dataclass(frozen=True, slots=True)
class StatusLine:
    """A line of a table of mirrors or multicast sessions."""

    name: str
    state: str
    facts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Rooms:
    """The rooms of a running server that operators see and change; None: not configured.

    `alerts` and `behind_proxy` stay as the configuration had them at the start.
    """

    gate: Gate
    site: Site
    store: Store
    documents: KeyValues
    arrivals: Arrivals
    totals: Callable[[], Totals]
    multicast: MulticastRoom | None
    torrents: TorrentRoom | None
    movers: GateRoom | None
    mirrors: Registry | None
    alerts: AlertSettings
    behind_proxy: bool


@dataclass(frozen=True, slots=True)
class ControlTerms:
    """What a configuration that is read again changes: its policy is `configured`.

    Tickets are kept for `kept_s`. The networks of `scrapers` may read the metrics.
    """

    configured: RevisionRecord
    rules: Sequence[Rule]
    kept_s: float
    scrapers: Sequence[str]


class Server:
    """The server as operators see it. `off` runs slow work on a thread, `send` what may hang.

    `current` is the policy in force.
    """

    def __init__(
        self,
        rooms: Rooms,
        reactor: Reactor,
        now: Callable[[], float],
        off: Callable[[Callable[[], Any]], Any],
        send: Callable[[Callable[[], Any]], Any],
        terms: ControlTerms,
        current: RevisionRecord,
    ) -> None:
        gate, site, store, documents = rooms.gate, rooms.site, rooms.store, rooms.documents
        self.now, self.off = now, off
        self.gate, self.site, self.store = gate, site, store
        self.mirrors, self.multicast = rooms.mirrors, rooms.multicast
        self.passes, self.prequeue = gate.parts.passes, gate.parts.prequeue
        self._terms, self._behind_proxy, self.documents = terms, rooms.behind_proxy, documents
        self.desk = QueueActions(gate)
        self.events = events = EventLog(store, now)
        self.vitals = vitals = Vitals(
            started_s=now(),
            gate=gate,
            totals=rooms.totals,
            store=store,
            multicast=rooms.multicast,
            torrents=rooms.torrents,
            movers=rooms.movers,
            is_folder_deleted=lambda: site.tree.is_deleted,
            loop_lag_s=getattr(reactor, "loop_lag_s", lambda: 0.0),
        )
        self.history = History(
            reactor, now, store, vitals, gate.parts.popularity, rooms.arrivals, terms.kept_s
        )
        self.alerting = Alerting(rooms.alerts, reactor, now, self._alert_figures, send, events)
        self.revisions = Revisions(gate, store, events, now, current, terms.configured)
        self.rules = RuleKeeper(
            gate, self.prequeue, documents, now, terms.rules, site.tree.real_url
        )
        self.blocks = BlockedNetworks(self.desk, documents, now)
        self.branding = Branding(gate.parts.waiting, documents)
        self.doors = Doors(gate, self.branding, documents)
        self.files = FileIndex(reactor, site, gate, store, now)
        site.add_route(LOGO_ROUTE, self.branding.answer_logo)
        site.add_route(STYLE_ROUTE, self.branding.answer_style)

    def start(self) -> None:
        """Apply what operators have set up, and begin to record."""
        observer: Any = self.vitals.faults
        globalLogPublisher.addObserver(observer)
        self.rules.put_in_force()
        self.blocks.open()
        self.doors.put_in_force()
        self.history.start()
        self.alerting.timer.start()

    def stop(self) -> None:
        self.alerting.timer.stop()
        self.history.stop()
        observer: Any = self.vitals.faults
        globalLogPublisher.removeObserver(observer)

    def reconfigure(self, terms: ControlTerms) -> None:
        """Follow a configuration that was read again: rules, scrapers, policy."""
        self._terms = terms
        self.rules.configure(terms.rules)
        self.revisions.reconfigure(terms.configured)

    def _alert_figures(self) -> dict[str, Any]:
        return {
            **self.vitals.figures(),
            "mirror_states": self.mirror_states(),
            "descriptors_part": descriptors_part(),
        }

    def may_scrape(self, peer: str, host: str, forwarded: bool) -> bool:
        """Whether this address may read the metrics without an API token.

        This machine may, unless the request may come through a proxy on it. `host` must be an
        address or localhost: any site can point its own name to this machine (DNS rebinding).
        """
        direct = not self._behind_proxy and not forwarded
        if not peer:  # a Unix socket
            return direct
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        named = any(
            address in ipaddress.ip_network(word, strict=False) for word in self._terms.scrapers
        )
        here = address.is_loopback and _names_this_machine(host)
        return named or (here and direct)

    def mirror_rows(self) -> list[StatusLine]:
        """All mirrors: those of the configuration, then the followers with their reports."""
        rows = [
            StatusLine(source.url, "configured", {"priority": str(source.priority)})
            for source in self.site.fields.mirrors
        ]
        for mirror in self.mirrors.standings(self.now()) if self.mirrors is not None else ():
            facts = {
                "url": mirror.url,
                "channel": mirror.channel,
                "version": str(mirror.version),
                "seen": f"{format_duration(mirror.seen_s)} ago",
            }
            if mirror.free is not None:
                facts["free"] = "yes" if mirror.free else "no"
            if mirror.trouble:
                facts["trouble"] = mirror.trouble
            rows.append(StatusLine(mirror.name, mirror.condition, facts))
        return rows

    def mirror_states(self) -> list[str]:
        """The condition of every mirror, for the metrics."""
        return [row.state for row in self.mirror_rows()]

    def multicast_rows(self) -> list[StatusLine]:
        rows = self.multicast.sessions.lines() if self.multicast else []
        return [StatusLine(*row) for row in rows]


def _names_this_machine(host: str) -> bool:
    """Whether a Host field has an address or `localhost`."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False

"""The objects of a running server that pages and API work on, in the reactor's thread.

Times are Unix seconds, rates are bytes per second.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...protocol.units import format_duration
from ..admission.actions import QueueActions
from ..admission.draw import Prequeue
from ..admission.gate import Gate
from ..admission.passes import PassBook
from ..files.site import Site
from ..store.store import Store
from .alerting import Alerting
from .blocks import BlockedNetworks
from .branding import Branding
from .doors import Doors
from .events import EventLog
from .file_index import FileIndex
from .history import History
from .revisions import Revisions
from .rule_keeper import RuleKeeper
from .vitals import Vitals

if TYPE_CHECKING:
    from ..mirror.registry import Registry
    from ..multicast.service import MulticastRoom


@dataclass(frozen=True, slots=True)
class StatusLine:
    """A line of a table of mirrors or multicast sessions."""

    name: str
    state: str
    facts: dict[str, str]


@dataclass(slots=True)
class Server:
    """The server as operators see it. `off` runs slow pure work on a thread."""

    now: Callable[[], float]
    off: Callable[[Callable[[], Any]], Any]
    gate: Gate
    desk: QueueActions
    store: Store
    site: Site
    passes: PassBook
    prequeue: Prequeue
    mirrors: Registry | None
    multicast: MulticastRoom | None
    vitals: Vitals
    history: History
    events: EventLog
    alerting: Alerting
    revisions: Revisions
    rules: RuleKeeper
    blocks: BlockedNetworks
    doors: Doors
    branding: Branding
    files: FileIndex
    scrapers: Sequence[str]
    behind_proxy: bool

    def reconfigure(self, scrapers: Sequence[str]) -> None:
        """Let these networks read the metrics from now on."""
        self.scrapers = scrapers

    def may_scrape(self, peer: str, host: str, forwarded: bool) -> bool:
        """Whether this address may read the metrics without an API token.

        This machine may, unless the request may come through a proxy on it. `host` must be an
        address or localhost: any site can point its own name to this machine (DNS rebinding).
        """
        if not peer:  # a Unix socket
            return not self.behind_proxy and not forwarded
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        named = any(address in ipaddress.ip_network(word, strict=False) for word in self.scrapers)
        here = address.is_loopback and _names_this_machine(host)
        return named or (here and not self.behind_proxy and not forwarded)

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
        """Multicast sessions that send."""
        rows = self.multicast.sessions.lines() if self.multicast else []
        return [StatusLine(*row) for row in rows]


def _names_this_machine(host: str) -> bool:
    """Whether a Host field has an address or `localhost`."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False

"""All sessions of a server: opens and ends them, and shares the rate among them."""

from __future__ import annotations

import ipaddress
import math
import random
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from twisted.logger import Logger

from ...protocol.errors import BadHeader, ProtocolError
from ...protocol.fec import BlockLayout, FecParameters, available_schemes, block_symbols_for
from ...protocol.packet import PAYLOAD_OFFSET
from ...protocol.session import HEADER_NAME, Capability, parse_capability
from ...protocol.units import format_rate, format_size
from ..http.clock import Clock, cancel
from ..http.request import Request
from .live import LiveSession, SentContent, SessionPlace
from .rate import RateControl, shares
from .schedule_steps import CarouselSettings
from .settings import MulticastSettings
from .udp import GroupSender, Interface, find_interface, interface_mtu, is_wireless


def fixed_parity(loss: float, k: int) -> int:
    """Parity symbols for k source symbols with which one receiver in 10 000 fails at that loss.

    It is for sessions without a return channel. Normal approximation with continuity correction.
    """
    z = NormalDist().inv_cdf(1 - 1e-4)
    parity = 1
    while parity < (k + parity) * loss + z * math.sqrt((k + parity) * loss * (1 - loss)) + 0.5:
        parity += 1
    return parity


def choose(
    allowed: Sequence[str], layout: BlockLayout, *, return_channel: bool = True
) -> FecParameters:
    """The first code of `allowed`, which begins with the best one.

    RaptorQ costs least at any loss: with 8 receivers that lose 5 % it sends 1.07 passes of the
    source, XOR 1.20, no code 1.36. Without a return channel it gets fixed parity.
    """
    scheme, k, group, parity = allowed[0] if allowed else "none", layout.block_symbols, 0, 0
    if scheme == "xor":
        # For losses of 1 to 10 % this costs within a tenth of a pass of the best size.
        group = 16
        parity = -(-k // group)
    elif scheme == "raptorq" and not return_channel:
        # RaptorQ decodes K + 2 symbols all but once in a million (RFC 6330, 1).
        # The loss that fixed parity covers: a quiet wired network with one weak receiver.
        parity = fixed_parity(0.01, k) + 2
    return FecParameters(scheme, layout.symbol_bytes, k, group, parity)


class SessionTuning(NamedTuple):
    """When a session begins, and for how long it is remembered."""

    #: Ended sessions answer repair requests and late reports for this time.
    linger_s: float = 30.0
    #: The longest wait for joins before pass 0, as a share of the pass ...
    lead_share: float = 0.3
    #: ... within these bounds. To repeat what one receiver missed costs more.
    least_lead_s: float = 0.5
    most_lead_s: float = 3.0
    #: The least wait for further members after the last join.
    settle_s: float = 0.01
    #: Its upper bound as a share of the pass.
    settle_share: float = 0.04
    #: How often the rate is shared again among several sessions.
    look_s: float = 0.1
    #: The least rate of a session in bytes/s: receivers leave a silent one.
    least_rate: float = 6_000.0
    #: Bounds the sessions that gather members: each has a socket and an open file.
    most_waiting: int = 64


TUNING = SessionTuning()


def usable_interface(settings: MulticastSettings) -> Interface:
    """The interface that sends. Raises ProtocolError."""
    found = find_interface(settings.interface)
    if is_wireless(found) and not settings.wifi:
        raise ProtocolError(
            f"{settings.interface} is on Wi-Fi, which sends multicast at its lowest rate: use "
            "a wired interface, or set multicast.wifi"
        )
    return found


class Sessions:
    """The sessions of one server.

    `charge(bytes)` is called for all bytes sent, `ended(session, reason)` at the end of a session.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Clock,
        settings: MulticastSettings,
        rng: random.Random,
        charge: Callable[[int], None] = lambda size: None,
        ended: Callable[[LiveSession, str], None] = lambda session, reason: None,
    ) -> None:
        self._reactor = reactor
        self.settings = settings
        self._rng = rng
        self._charge = charge
        self._interface = usable_interface(settings)
        self._running: dict[int, LiveSession] = {}
        self._by_key: dict[str, LiveSession] = {}
        self._lingering: OrderedDict[int, LiveSession] = OrderedDict()
        #: The codes that this server can send, best first.
        self.schemes = available_schemes()
        self._tell_end = ended
        self.closed = False
        self._look: Any = None
        self.sent_bytes_total = 0

    # --- parameters of a session ----------------------------------------------------------------

    def layout(self, size_bytes: int) -> BlockLayout:
        """The blocks of a file of this size, by the interface's present MTU.

        They do not depend on the code, so that hashes can be made before it is chosen.
        """
        mtu = interface_mtu(self._interface, str(self.settings.group_network()[1]))
        symbol_bytes = self.settings.symbol_bytes(PAYLOAD_OFFSET, mtu)
        return BlockLayout(size_bytes, symbol_bytes, block_symbols_for(symbol_bytes))

    def capability_of(self, request: Request) -> Capability | None:
        """The capability of a client that can be in a session of this server; else None."""
        value = request.headers.get(HEADER_NAME.lower().encode())
        if value is None or self.closed:
            return None
        try:
            capability = parse_capability(value.decode("latin-1"))
        except BadHeader:
            return None
        return capability if capability is not None and self.suits(capability) else None

    def suits(self, capability: Capability) -> bool:
        """Whether a client with this capability can be in a session of this server."""
        family = "6" if self._interface.is_ipv6 else "4"
        # A client allows groups of its link (TTL 1), its site or its organisation (RFC 2365, 6).
        in_scope = capability.scope != "link" or self.settings.ttl <= 1
        if family not in capability.families or not in_scope:
            return False
        return RateControl(self.settings.rate).acceptable(capability.rate_bytes_s)

    def choose_fec(
        self,
        capabilities: Sequence[Capability],
        layout: BlockLayout,
        *,
        return_channel: bool = True,
    ) -> FecParameters:
        """The code for a cohort: the setting's, or the best that all members have."""
        allowed = [
            name
            for name in self.schemes
            if all(name in capability.fec for capability in capabilities)
        ]
        if self.settings.fec != "auto":
            allowed = [name for name in allowed if name == self.settings.fec]
        return choose(allowed, layout, return_channel=return_channel)

    # --- life -----------------------------------------------------------------------------------

    def get(self, session_id: int) -> LiveSession | None:
        """A running or just ended session."""
        return self._running.get(session_id) or self._lingering.get(session_id)

    def by_key(self, key: str) -> LiveSession | None:
        """The running session of an object."""
        return self._by_key.get(key)

    @property
    def running(self) -> Sequence[LiveSession]:
        return tuple(self._running.values())

    def figures(self) -> tuple[int, int]:
        """The number of sessions that have their members, and of their receivers."""
        running = [session for session in self.running if not session.waiting]
        return len(running), sum(session.counters.members for session in running)

    def lines(self) -> list[tuple[str, str, dict[str, str]]]:
        """The running sessions for the admin page: name, state, facts."""
        return [
            (
                session.url_path,
                session.stage,
                {
                    "group": f"{session.place.group} port {session.place.port}",
                    "code": session.fec.scheme,
                    "rate": format_rate(session.transmitter.rate_bytes_s),
                    "receivers": str(len(session.carousel.receivers)),
                    "done": str(session.carousel.receivers.done),
                    "loss": f"{100 * session.carousel.receivers.worst_loss():.1f} %",
                    "sent": format_size(session.transmitter.sent_bytes),
                    "saved": format_size(session.saved_bytes),
                    "reports": str(session.counters.reports),
                },
            )
            for session in self.running
        ]

    def open(
        self,
        content: SentContent,
        *,
        lead_s: float | None = None,
        passes: int = 1,
        repair: bool = True,
        needed: int = 0,
    ) -> LiveSession | None:
        """Open a session. None if the network does not allow it (the log says why).

        It starts `lead_s` from now, or by default with its members' joins. With `needed` it first
        gathers that many members; None if too many sessions do.
        """
        if needed and sum(session.waiting for session in self.running) >= TUNING.most_waiting:
            return None
        place = self._place()
        pass_s = content.layout.size_bytes / self.settings.rate
        longest_lead_s = min(
            TUNING.most_lead_s, max(TUNING.least_lead_s, TUNING.lead_share * pass_s)
        )
        settings = CarouselSettings(
            lead_s=longest_lead_s if lead_s is None else lead_s,
            settle_s=TUNING.settle_s if lead_s is None else float("inf"),
            most_settle_s=TUNING.settle_share * pass_s,
            parity=content.fec.parity,
            repair=repair,
            fixed_passes=passes,
            needed=needed,
            gather_s=self.settings.window_s,
        )
        try:
            sender = GroupSender(
                self._interface, place.group, place.port, place.ttl, self.settings.rate
            )
        except ProtocolError as error:
            self.log.warn("no multicast session: {error}", error=error)
            return None
        session = LiveSession(
            self._reactor,
            secrets.randbits(64),
            content,
            place,
            sender,
            RateControl(self.settings.rate),
            settings,
            self._ended,
            charge=self._sent,
            complete=self._complete,
        )
        self._running[session.id] = session
        self._by_key[content.key] = session
        self._share()
        if not needed:
            self._log_start(session)
        session.start()
        return session

    def _log_start(self, session: LiveSession) -> None:
        self.log.info(
            "multicast session {id:016x} for {key} to {group}:{port}, code {code}",
            id=session.id,
            key=session.object_key,
            group=session.place.group,
            port=session.place.port,
            code=session.fec.scheme,
        )

    def _complete(self, session: LiveSession) -> None:
        """A session that gathered members has enough."""
        self._share()
        self._log_start(session)

    def close(self) -> None:
        """End all sessions, and open no more."""
        self.closed = True
        for session in list(self._running.values()):
            session.stop("the server stops")

    def _place(self) -> SessionPlace:
        source = self._interface.address
        ttl = self.settings.ttl
        network = self.settings.group_network()
        number = self._rng.randrange(1, network.num_addresses)
        group = str(ipaddress.ip_address(int(network.network_address) + number))
        family = "6" if self._interface.is_ipv6 else "4"
        # The dynamic ports (RFC 6335).
        return SessionPlace(group, self._rng.randint(49_152, 65_535), source, ttl, family)

    def _share(self) -> None:
        """Share the rate among all sessions, see `rate.shares`."""
        begun = [session for session in self._running.values() if not session.waiting]
        # One that was announced for an hour must not take the rate of those that send before it.
        sending = [one for one in begun if one.starts_in_s <= TUNING.most_lead_s]
        cancel(self._look)
        if len(begun) > 1:
            self._look = self._reactor.callLater(TUNING.look_s, self._share)
        parts = shares([session.carousel.first_pass_left_bytes for session in sending])
        for session, part in zip(sending, parts, strict=True):
            with self.log.failuresHandled("A multicast session was not given its rate"):
                session.rate.configure(max(TUNING.least_rate, part * self.settings.rate))
                session.adapt()

    def _sent(self, size: int) -> None:
        self.sent_bytes_total += size
        self._charge(size)

    def _ended(self, session: LiveSession, reason: str) -> None:
        del self._running[session.id]
        if self._by_key.get(session.object_key) is session:
            del self._by_key[session.object_key]
        self._lingering[session.id] = session
        self._reactor.callLater(TUNING.linger_s, self._lingering.pop, session.id, None)
        self._share()
        if session.waiting:
            self._tell_end(session, reason)
            return
        self.log.info(
            "multicast session {id:016x} ended ({reason}): {bytes} bytes in {datagrams} "
            "datagrams for {members} receivers, {done} done",
            id=session.id,
            reason=reason,
            bytes=session.transmitter.sent_bytes,
            datagrams=session.transmitter.sent_datagrams,
            members=session.counters.members,
            done=session.carousel.receivers.done,
        )
        self._tell_end(session, reason)

"""Where clients connect to one process: listeners, TLS, bounds on connections, access log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ..admission.denylist import BlockList
from ..files.pacer import Pacer
from ..files.site import Site
from ..http.accesslog import AccessLog
from ..http.clock import Reactor
from ..http.factory import AddressCounts, HttpFactory
from ..http.front import Front, Port
from ..http.limits import HttpLimits
from ..http.request import Request
from ..http.tls import TlsServer
from ..http.unarrived import UnarrivedAnswers
from .config import CannotStart
from .listeners import CertificateWatch, OpenListener, adopt_port, trusted_proxies
from .log_format import parse_format
from .log_outlets import InThread, LineWriter, open_outlet
from .parts import Part
from .resources import affordable, raise_limit
from .settings import ServerConfig


class Connections:
    """The `ServerRoom` of the connections that `site` answers where it is `opened`.

    The `processes` of one machine that serve count connections `per_address` together. Raises
    `CannotStart`.
    """

    def __init__(
        self,
        config: ServerConfig,
        reactor: Reactor,
        site: Site,
        *,
        pacer: Pacer,
        blocked: BlockList,
        answers: UnarrivedAnswers,
        goes_first: Callable[[Request], bool],
        tls: TlsServer | None,
        opened: Sequence[OpenListener] = (),
        processes: int = 1,
        per_address: AddressCounts | None = None,
    ) -> None:
        self._open_files = raise_limit()
        self._log = log = open_access_log(config)
        self._processes = processes
        self.factory = HttpFactory(
            site,
            reactor,
            limits=self._limits(config),
            proxies=trusted_proxies(config),
            hsts_s=config.tls_hsts_s,
            access_log=None if log is None else AccessLog(log.write),
            charge=pacer.charge_answers,
            requests=pacer.requests,
            goes_first=goes_first,
            denylist=blocked,
            per_address=per_address or AddressCounts(),
            answers=answers,
            shortcut=site,
        )
        self._front = Front(reactor, self.factory)
        self._tls = tls
        self._certificate = CertificateWatch(reactor, tls) if tls is not None else None
        self._opened = opened
        #: The URLs that are served, and what listens there.
        self.ports: list[tuple[str, Port]] = []

    def _limits(self, config: ServerConfig) -> HttpLimits:
        found = config.limits.http_limits()
        if found.max_connections:
            # The kernel divides connections evenly among the processes.
            found = replace(found, max_connections=-(-found.max_connections // self._processes))
        return affordable(found, self._open_files)

    def log_part(self) -> Part:
        """The access log, which outlasts the connections."""
        return Part("access log", end=lambda: self._end_lines(InThread.close))

    def parts(self) -> Iterator[Part]:
        if self._certificate is not None:
            yield Part("certificate", self._certificate.start, self._certificate.stop)
        yield Part("connections", end=self.close)

    def listening(self) -> Iterator[Part]:
        """The listeners: the last parts to start and the first to stop."""
        for one in self._opened:
            yield Part(f"listener {one.url}", partial(self._adopt, one), self.stop_listening)

    def _adopt(self, one: OpenListener) -> None:
        self.ports.append((one.url, adopt_port(self._front, one, self._tls)))

    def stop_listening(self) -> None:
        ports, self.ports = self.ports, []
        for _, port in ports:
            port.stopListening()

    def reconfigure(self, config: ServerConfig) -> None:
        self.reopen_log()
        self.factory.limits = self._limits(config)
        self._front.bound_silence()
        if self._certificate is not None:
            self._certificate.read_now()

    def reopen_log(self) -> None:
        """Begin a new access log: the old one was renamed."""
        self._end_lines(InThread.reopen)

    def _end_lines(self, then: Callable[[InThread], None]) -> None:
        if self._log is not None and self.factory.access_log is not None:
            self.factory.access_log.flush()
            then(self._log)

    async def close(self) -> None:
        """Answer what has come, let complete answers leave for a second, cut all connections."""
        self.factory.drain()
        # A client whose request is here would see a reset.
        self._front.doRead()
        await self.factory.close(1.0)


def open_access_log(config: ServerConfig) -> InThread | None:
    """The access log, or None. Raises CannotStart."""
    place = config.access_log
    if place is None:
        return None
    try:
        outlet = open_outlet(place)
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else fault
        raise CannotStart(f"The access log {place} cannot be opened: {reason}.") from fault
    form = parse_format(config.access_log_format)
    return InThread(LineWriter(outlet, form, config.access_log_most))

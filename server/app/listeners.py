"""Sockets: TCP on IPv4 and IPv6, TLS, unix sockets for a proxy in front, and those of systemd.

systemd passes sockets by sd_listen_fds(3).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from twisted.logger import Logger

from ..http.clock import Clock, Repeat
from ..http.front import BACKLOG, Front, Port, tcp_socket
from ..http.proxies import TrustedProxies
from ..http.tls import BadCertificate, TlsServer
from .config import CannotStart
from .settings import HANDED_OVER, ServerConfig, split_address

#: `FileDescriptorName=` of the admin page's socket; all others are for files.
ADMIN_SOCKET = "admin"
_log = Logger()


def places(config: ServerConfig) -> list[str]:
    """The configured places, without `[::]` on a machine without IPv6.

    A package configures both families for all machines.
    """
    found = [place for place in config.listen if not place.startswith("[::]:") or _has_ipv6()]
    if not found:
        # The only place: opening it reports the fault.
        return list(config.listen)
    for place in config.listen:
        if place not in found:
            _log.warn("No IPv6 on this machine: {place} is left out.", place=place)
    return found


def _has_ipv6() -> bool:
    try:
        with tcp_socket("::") as probe:
            probe.bind(("::", 0))
    except OSError as fault:
        return fault.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
    return True


def tls_server(config: ServerConfig) -> TlsServer | None:
    """TLS for all listeners, where it is configured. Raises `CannotStart`."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    try:
        oldest, ciphers = config.tls_min_version, config.tls_ciphers
        return TlsServer(config.tls_cert, config.tls_key, oldest=oldest, ciphers=ciphers)
    except BadCertificate as fault:
        raise CannotStart(str(fault)) from fault


@dataclass(frozen=True, slots=True)
class OpenListener:
    """A place that is open: its URL, and one socket for each process that serves there.

    One process alone removes the file of its unix socket at its end.
    """

    url: str
    sockets: Sequence[socket.socket]
    file: str | None = None


def open_early(
    config: ServerConfig, handed: Sequence[socket.socket], count: int
) -> Iterator[OpenListener]:
    """Open all places for `count` processes; `handed` are those of systemd.

    Raises `CannotStart`.
    """
    tls = config.tls_cert is not None
    for place in places(config):
        if place == HANDED_OVER:
            for one in handed:
                yield OpenListener(url_of(one, tls), [one, *(one.dup() for _ in range(count - 1))])
        else:
            yield _open(place, count, tls, "--listen")


def open_admin_early(config: ServerConfig, handed: socket.socket | None) -> OpenListener | None:
    """Open the admin page's place, where there is one; `handed` is that of systemd.

    Raises `CannotStart`.
    """
    tls = config.tls_cert is not None
    if handed is not None:
        return OpenListener(url_of(handed, tls), [handed])
    return None if config.admin == "off" else _open(config.admin, 1, tls, "--admin")


def _open(place: str, count: int, tls: bool, flag: str) -> OpenListener:
    """Open `HOST:PORT`, `[IPv6]:PORT` or `unix:PATH` (never TLS), which `flag` names.

    The kernel spreads connections over TCP sockets (SO_REUSEPORT); all processes wait at one unix
    socket. Raises `CannotStart`.
    """
    try:
        if place.startswith("unix:"):
            path = Path(place.removeprefix("unix:"))
            _remove_stale(path)
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            one.bind(str(path))
            path.chmod(0o666)
            one.listen(BACKLOG)
            sockets = [one, *(one.dup() for _ in range(count - 1))]
            return OpenListener(url_of(one, tls), sockets, str(path) if count == 1 else None)
        host, number = split_address(place)
        # Two servers with SO_REUSEPORT would share a port silently: this finds the other one.
        one = _bound(host, number, shared=False)
        number = one.getsockname()[1]
        if count == 1:
            return OpenListener(_url(host, number, tls), [one])
        one.close()
        sockets = [_bound(host, number, shared=True) for _ in range(count)]
    except OSError as fault:
        raise _unfit_place(place, flag, fault) from fault
    return OpenListener(_url(host, number, tls), sockets)


def _unfit_place(place: str, flag: str, fault: OSError) -> CannotStart:
    return CannotStart(
        f"Cannot listen on {place}: {fault.strerror or fault}; choose another address with {flag}."
    )


def find_addresses(config: ServerConfig) -> None:
    """Whether this machine has the addresses, used or not. Raises `CannotStart`."""
    for place, flag in (*((one, "--listen") for one in places(config)), (config.admin, "--admin")):
        if place not in (HANDED_OVER, "off") and not place.startswith("unix:"):
            host = split_address(place)[0]
            try:
                with tcp_socket(host) as probe:
                    probe.bind((host, 0))
            except OSError as fault:
                raise _unfit_place(place, flag, fault) from fault


def adopt_port(front: Front, opened: OpenListener, tls: TlsServer | None) -> Port:
    one = opened.sockets[0]
    return front.listen_on(one, None if one.family == socket.AF_UNIX else tls, opened.file)


def url_of(one: socket.socket, tls: bool) -> str:
    if one.family == socket.AF_UNIX:
        return f"http+unix://{str(one.getsockname()).replace('/', '%2F')}"
    host, number = one.getsockname()[:2]
    return _url(host, number, tls)


def _url(host: str, number: int, tls: bool) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{number}"


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    one = tcp_socket(host)
    try:
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind((host, port))
        # Only listening shows whether another program listens there.
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a killed server, which would prevent listening."""
    try:
        if stat.S_ISSOCK(path.stat().st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass


def handed_over(listen: bool, admin: bool) -> tuple[list[socket.socket], socket.socket | None]:
    """The sockets that systemd opened for this process: for files, and for the admin page.

    `listen` and `admin` say which settings have `systemd:`. Call it before
    `twisted.internet.endpoints` is imported, which removes the same environment variables. Raises
    `CannotStart`.
    """
    if not (listen or admin):
        return [], None
    for_whom = os.environ.pop("LISTEN_PID", "")
    count = os.environ.pop("LISTEN_FDS", "")
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if for_whom != str(os.getpid()) or not count.isdecimal() or int(count) == 0:
        raise CannotStart(
            f"listen or admin has {HANDED_OVER}, but systemd has passed no socket: start "
            "tidegate.socket, or name an address with --listen and --admin."
        )
    files: list[socket.socket] = []
    admins: list[socket.socket] = []
    # The first descriptor that systemd passes is 3.
    for number, name in enumerate([*names, *[""] * int(count)][: int(count)], 3):
        try:
            os.set_inheritable(number, False)
            one = socket.socket(fileno=number)
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as fault:
            raise _unfit(number) from fault
        if not listens or one.type != socket.SOCK_STREAM:
            raise _unfit(number)
        (admins if admin and name == ADMIN_SOCKET else files).append(one)
    if admin and len(admins) != 1:
        raise CannotStart(
            f"admin has {HANDED_OVER}, but systemd has passed {len(admins)} sockets of the name "
            f"{ADMIN_SOCKET}: give one unit FileDescriptorName={ADMIN_SOCKET}, as "
            "tidegate-admin.socket has."
        )
    if listen != bool(files):
        raise CannotStart(
            f"systemd has passed {len(files)} sockets for files: write listen = "
            f'["{HANDED_OVER}"] and start tidegate.socket, or do neither.'
        )
    return files, admins[0] if admins else None


def _unfit(number: int) -> CannotStart:
    return CannotStart(
        f"Descriptor {number} from systemd is no listening stream socket: give its unit "
        "ListenStream= and Accept=no."
    )


def trusted_proxies(config: ServerConfig) -> TrustedProxies:
    networks, header = config.trusted_proxies, config.proxy_header
    return TrustedProxies(networks, header, preface=config.proxy_protocol)


class CertificateWatch:
    """Has a renewed certificate read when its files change; running connections keep the old.

    Once a day it warns of one that expires within a week, or has expired.
    """

    def __init__(
        self, reactor: Clock, server: TlsServer, wall: Callable[[], float] = time.time
    ) -> None:
        self._server = server
        self._wall = wall
        self._timer = Repeat(reactor, 10.0, self._look)
        self._days = Repeat(reactor, 86_400.0, self._warn)

    def start(self) -> None:
        """Look every ten seconds."""
        self._warn()
        self._timer.start()
        self._days.start()

    def stop(self) -> None:
        self._timer.stop()
        self._days.stop()

    def _warn(self) -> None:
        left_s = self._server.left_s(self._wall())
        # Where it cannot be read, the next look tells what is wrong with the files.
        if left_s is not None and left_s <= 0.0:
            _log.error("The certificate has expired, and clients refuse it: renew it.")
        elif left_s is not None and left_s <= 7 * 86_400:
            _log.warn("The certificate expires in {days:.1f} days: renew it.", days=left_s / 86_400)

    def read_now(self) -> None:
        """Read the files now; a fault is logged, and the old certificate goes on."""
        try:
            self._server.reload()
        except BadCertificate as fault:
            # Perhaps only one of the two files is there yet: the next look sees to it.
            _log.error("The old certificate goes on: {fault}", fault=fault)
        else:
            _log.info("The certificate was read again.")

    def _look(self) -> None:
        if self._server.has_changed:
            self.read_now()

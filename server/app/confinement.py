"""What a serving process gives up for good: root, and by Landlock all writing but its own.

A bug in a parser could otherwise change the served tree. Landlock (Linux 5.13, landlock(7)) covers
the process and all that it starts. Newer kernels also refuse TCP connections (6.7), commands to
devices (6.10), signals and abstract sockets (6.12). Reading is not restricted. Where the kernel has
no Landlock, the log says so. `system_calls` refuses what Landlock does not govern.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import struct
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from .config import CannotStart
from .log_outlets import log_file
from .settings import ServerConfig, split_address
from .system_calls import close_system_calls


class _Call(IntEnum):
    """System calls of Landlock, and the values that they take (linux/landlock.h)."""

    CREATE_RULESET = 444
    ADD_RULE = 445
    RESTRICT_SELF = 446
    #: Flag of CREATE_RULESET: return the version instead.
    ASK_VERSION = 1
    #: Kinds of a rule.
    PATH_BENEATH = 1
    NET_PORT = 2
    #: prctl(2).
    SET_NO_NEW_PRIVILEGES = 38


class _Right(IntFlag):
    """Rights to files (LANDLOCK_ACCESS_FS_*)."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_DEVICE = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REGULAR = 1 << 8
    MAKE_SOCKET = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_LINK = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEVICE = 1 << 15
    #: What a server does in a folder of its own.
    IN_FOLDER = WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REGULAR | REFER


class _NetRight(IntFlag):
    """Rights to the network (LANDLOCK_ACCESS_NET_*)."""

    BIND_TCP = 1 << 0
    CONNECT_TCP = 1 << 1


#: Long DNS answers use TCP.
_DNS_PORT = 53


@dataclass(frozen=True, slots=True)
class Writable:
    """A file or folder with the rights that the process keeps to it."""

    path: Path
    rights: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What a serving process does besides writing its files."""

    #: Ports that it opens once it is confined, 0 for any that is free.
    listens: frozenset[int]
    #: TCP ports to which it connects; None: any.
    connects: frozenset[int] | None
    #: Whether it connects to unix sockets.
    unix_sockets: bool
    #: Whether it starts other programs, all of which are this Python.
    programs: bool
    #: Whether it sets the mode of a unix socket that it makes.
    modes: bool


def needs_of(config: ServerConfig, *, several: bool, asks: bool = False) -> Needs | None:
    """The needs of a process; None if the configuration does not confine it.

    `several`: it is one of several processes. `asks`: another process has the queue.
    """
    if not config.confine:
        return None
    clustered = config.cluster is not None
    # The places of files and pages are open already.
    listens = {0} if clustered else set()
    if config.cluster_address is not None:
        listens.add(split_address(config.cluster_address)[1])
    connects: frozenset[int] | None = frozenset()
    database_socket = False
    if clustered:
        # The database says where other machines listen.
        connects = None
    elif not asks and config.database is not None:
        connects, database_socket = database_ports(config.database)
    ports = config.alerts.ports() | config.gate.ports() | config.oidc.ports()
    if connects is not None and ports and not asks:
        connects |= ports | {_DNS_PORT}
    log_socket = config.access_log is not None and (
        config.access_log in ("journal", "syslog") or config.access_log.startswith("syslog:/")
    )
    helped = config.admin != "off" or config.torrent.enabled
    return Needs(
        listens=frozenset(listens),
        connects=connects,
        unix_sockets=several or clustered or database_socket or log_socket,
        programs=helped and not asks,
        modes=clustered and not asks,
    )


def writable(config: ServerConfig) -> list[Writable]:
    # Several processes connect through a socket there.
    meeting = _Right.MAKE_SOCKET if config.worker_count() > 1 or config.cluster is not None else 0
    found = [Writable(config.state, _Right.IN_FOLDER | meeting)]
    if config.database is not None and config.database.startswith("sqlite:///"):
        found.append(
            Writable(Path(config.database.removeprefix("sqlite:///")).parent, _Right.IN_FOLDER)
        )
    log = log_file(config.access_log)
    if log is not None:
        found.append(Writable(log, _Right.WRITE_FILE))
        folder = log.absolute().parent.resolve()
        if not config.directory.resolve().is_relative_to(folder):
            # After a renaming the log is created again.
            found.append(Writable(folder, _Right.WRITE_FILE | _Right.MAKE_REGULAR))
    found += [
        Writable(Path(place.removeprefix("unix:")).parent, _Right.MAKE_SOCKET | _Right.REMOVE_FILE)
        for place in (*config.listen, *([config.gate.report] if config.gate.enabled else []))
        if place.startswith("unix:")
    ]
    found.append(Writable(Path("/dev/null"), _Right.WRITE_FILE))
    return found


def database_ports(url: str) -> tuple[frozenset[int] | None, bool]:
    """TCP ports of a database's URL (None: any), and whether it may use a unix socket."""
    parts, options = urlsplit(url), parse_qs(urlsplit(url).query).keys()
    if parts.scheme == "sqlite":
        return frozenset(), False
    # These also name the server in PostgreSQL's URL.
    named = options & {"host", "hostaddr", "port", "service"}
    if not parts.hostname or "," in parts.netloc or named:
        return None, True
    return frozenset({parts.port or int(os.environ.get("PGPORT", 5432)), _DNS_PORT}), False


def programs() -> list[Path]:
    """The files that the kernel opens to start this Python: the program and its loader."""
    python = Path(sys.executable).resolve()
    found = [python]
    with contextlib.suppress(OSError, struct.error):
        loader = _loader(python)
        if loader is not None:
            found.append(loader)
    return found


def _loader(program: Path) -> Path | None:
    """The loader that a 64 bit ELF file names (PT_INTERP, elf(5))."""
    with program.open("rb") as file:
        head = file.read(64)
        (at,) = struct.unpack_from("=Q", head, 32)
        size, count = struct.unpack_from("=HH", head, 54)
        file.seek(at)
        table = file.read(size * count)
        for start in range(0, len(table), size):
            kind, _, offset, _, _, length = struct.unpack_from("=IIQQQQ", table, start)
            # The program header that names the loader (PT_INTERP).
            if kind == 3:
                file.seek(offset)
                return Path(os.fsdecode(file.read(length).rstrip(b"\0"))).resolve()
    return None


def confine(places: Iterable[Writable], needs: Needs) -> bool:
    """Keep only these rights, in this thread and all that it starts.

    Call this before another thread runs. False if the kernel has no Landlock.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_Call.CREATE_RULESET, None, ctypes.c_size_t(0), _Call.ASK_VERSION)
    if version < 1:
        return False
    # The first version knows these, but for reading.
    files: int = sum(right for right in _Right if right < _Right.REFER)
    newer = ((2, _Right.REFER), (3, _Right.TRUNCATE), (5, _Right.IOCTL_DEVICE))
    files |= sum(right for since, right in newer if version >= since)
    network = _NetRight.BIND_TCP | (_NetRight.CONNECT_TCP if needs.connects is not None else 0)
    # LANDLOCK_SCOPE_*: abstract unix sockets of others, and signals to them.
    scopes = 1 << 0 | 1 << 1
    # An older kernel refuses unknown fields.
    fields = [files, *([network] if version >= 4 else []), *([scopes] if version >= 6 else [])]
    handled = struct.pack(f"={len(fields)}Q", *fields)
    rules = libc.syscall(_Call.CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if rules < 0:
        return False
    started = [Writable(path, _Right.EXECUTE) for path in (programs() if needs.programs else [])]
    try:
        for place in (*places, *started):
            with contextlib.suppress(OSError):
                _allow(libc, rules, place, files)
        if version >= 4:
            binds, connects = _NetRight.BIND_TCP, _NetRight.CONNECT_TCP
            for right, ports in ((binds, needs.listens), (connects, needs.connects or ())):
                for port in ports:
                    libc.syscall(
                        _Call.ADD_RULE, rules, _Call.NET_PORT, struct.pack("=QQ", right, port), 0
                    )
        if libc.prctl(_Call.SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_Call.RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def refuse_system_calls(needs: Needs) -> bool:
    """Refuse system calls that Landlock does not govern; False if the kernel has no filter."""
    kept = {"execve"} if needs.programs else set()
    if needs.modes:
        kept |= {"chmod", "fchmodat"}
    return close_system_calls(frozenset(kept), needs.unix_sockets)


def _allow(libc: ctypes.CDLL, rules: int, place: Writable, handled: int) -> None:
    handle = os.open(place.path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", place.rights & handled, handle)
        if libc.syscall(_Call.ADD_RULE, rules, _Call.PATH_BENEATH, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), f"no Landlock rule for {place.path}")
    finally:
        os.close(handle)


def prepare(config: ServerConfig) -> None:
    """Create the state folder and the log, to which rights are then given; faults appear later."""
    with contextlib.suppress(OSError):
        config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = log_file(config.access_log)
    if log is not None:
        with contextlib.suppress(OSError):
            # Opening a named pipe would wait for its reader, see `log_outlets`.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
            os.close(os.open(log, flags, 0o640))


def user_to_become(name: str | None) -> str | None:
    """The user to become, by the setting `user`; None: the one that started the server.

    Raises `CannotStart` if root would serve without being named.
    """
    if os.geteuid() != 0:
        return name
    if name is None:
        raise CannotStart(
            "This is root, and a bug in the server would have root's rights: give --user NAME with "
            "the user that serves (useradd --system NAME makes one), or --user root to stay root."
        )
    return None if name == "root" else name


def _entry_of(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError as fault:
        raise CannotStart(
            f"There is no user {name}: create one (useradd --system {name}), or name another in "
            "`user`."
        ) from fault


def make_folders(name: str, config: ServerConfig) -> None:
    """Create the missing folders of state and unix sockets for this user. Raises `CannotStart`."""
    entry = _entry_of(name)
    sockets = (Path(place[5:]).parent for place in config.listen if place.startswith("unix:"))
    for folder, mode in ((config.state, 0o700), *((one, 0o755) for one in sockets)):
        # A fault here appears where the folder is used.
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True)
            folder.chmod(mode)
            os.chown(folder, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def become(name: str) -> None:
    """Become this user for good. Call this before another thread runs. Raises `CannotStart`."""
    entry = _entry_of(name)
    if os.geteuid() == entry.pw_uid:
        return
    if os.geteuid() != 0:
        raise CannotStart(
            f"Only root can become {name}: leave `user` out, or start the server as root."
        )
    os.initgroups(name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    # Otherwise later imports fail with a misleading message.
    for path in _program_paths():
        if not os.access(path, os.R_OK | os.X_OK):
            raise CannotStart(
                f"The user {name} cannot read the program at {path}: install Python and Tidegate "
                "where every user can read them, such as /opt or /usr/local and not below /root."
            )


def try_user(name: str | None) -> None:
    """Become the user of the setting `user` if this is root. Raises `CannotStart`."""
    if name is not None and name != "root":
        become(name) if os.geteuid() == 0 else _entry_of(name)


def _program_paths() -> list[str]:
    """What a serving process reads and runs: Python, its library and Tidegate."""
    library = sysconfig.get_paths()
    package = Path(__file__).resolve().parents[2]
    return [sys.executable, library["stdlib"], library["platlib"], str(package)]

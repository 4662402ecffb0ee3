"""Socket activation, sd_listen_fds(3): systemd opens the sockets and passes them to the server."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from .config import CannotStart
from .settings import HANDED_OVER

#: The first descriptor that systemd passes.
_FIRST = 3
#: `FileDescriptorName=` of the admin page's socket; what has any other name is for the files.
ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What systemd opened: where files are served, and where the admin page is."""

    files: list[socket.socket]
    admin: socket.socket | None


def handed_over(listen: bool, admin: bool) -> HandedOver:
    """The sockets that systemd opened for this very process; children shall not think so too.

    `listen` and `admin` say which settings have `systemd:`.

    Call it before `twisted.internet.endpoints` is imported, which takes the same words out of the
    environment. Raises `CannotStart`.
    """
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
    for number in range(_FIRST, _FIRST + int(count)):
        try:
            os.set_inheritable(number, False)
            one = socket.socket(fileno=number)
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as fault:
            raise _unfit(number) from fault
        if not listens or one.type != socket.SOCK_STREAM:
            raise _unfit(number)
        is_admin = admin and names[number - _FIRST : number - _FIRST + 1] == [ADMIN]
        (admins if is_admin else files).append(one)
    if admin and len(admins) != 1:
        raise CannotStart(
            f"admin has {HANDED_OVER}, but systemd has passed {len(admins)} sockets of the name "
            f"{ADMIN}: give one unit FileDescriptorName={ADMIN}, as tidegate-admin.socket has."
        )
    if listen != bool(files):
        raise CannotStart(
            f"systemd has passed {len(files)} sockets for files: write listen = "
            f'["{HANDED_OVER}"] and start tidegate.socket, or do neither.'
        )
    return HandedOver(files, admins[0] if admins else None)


def _unfit(number: int) -> CannotStart:
    return CannotStart(
        f"Descriptor {number} from systemd is no listening stream socket: give its unit "
        "ListenStream= and Accept=no."
    )

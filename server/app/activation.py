"""Socket activation, sd_listen_fds(3): systemd opens the sockets and passes them to the server."""

from __future__ import annotations

import os
import socket

from server.app.config import CannotStart
from server.app.settings import HANDED_OVER

#: The first descriptor that systemd passes.
_FIRST = 3


def handed_over() -> list[socket.socket]:
    """The sockets that systemd opened for this very process; children shall not think so too.

    Call it before `twisted.internet.endpoints` is imported, which takes the same words out of the
    environment. Raises `CannotStart`.
    """
    for_whom = os.environ.pop("LISTEN_PID", "")
    count = os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if for_whom != str(os.getpid()) or not count.isdecimal() or int(count) == 0:
        raise CannotStart(
            f"listen has {HANDED_OVER}, but systemd has passed no socket: start tidegate.socket, "
            "or name an address with --listen."
        )
    found = []
    for number in range(_FIRST, _FIRST + int(count)):
        try:
            os.set_inheritable(number, False)
            one = socket.socket(fileno=number)
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as fault:
            raise _unfit(number) from fault
        if not listens or one.type != socket.SOCK_STREAM:
            raise _unfit(number)
        found.append(one)
    return found


def _unfit(number: int) -> CannotStart:
    return CannotStart(
        f"Descriptor {number} from systemd is no listening stream socket: give its unit "
        "ListenStream= and Accept=no."
    )

"""Machines know each other by certificates that are renewed while both ends go on."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from OpenSSL import SSL

from tidegate.server.cluster.identity import MutualTls, make_identity

# Twisted hands OpenSSL certificates of its own kind.
pytestmark = pytest.mark.filterwarnings("ignore:Passing pyOpenSSL:DeprecationWarning")

HOUR_S = 3600.0


def shakes_hands(client: MutualTls, server: MutualTls) -> bool:
    """Whether these two ends accept each other."""
    ends = [client.clientConnectionForTLS(None), server.serverConnectionForTLS(None)]
    ends[0].set_connect_state()
    ends[1].set_accept_state()
    try:
        for _ in range(5):
            for here, there in (ends, ends[::-1]):
                with contextlib.suppress(SSL.WantReadError):
                    here.do_handshake()
                with contextlib.suppress(SSL.WantReadError):
                    there.bio_write(here.bio_read(65536))
        for here, there in (ends, ends[::-1]):
            here.send(b"hello")
            there.bio_write(here.bio_read(65536))
            assert there.recv(5) == b"hello"
    except SSL.Error:
        return False
    return True


def test_a_renewed_certificate_parts_nobody() -> None:
    made_s = 1_800_000_000.0
    old, new = make_identity(made_s), make_identity(made_s + 1000 * HOUR_S)
    at_once, later = new.made_s + 60.0, new.made_s + HOUR_S + 60.0
    has_not_read, has_read = MutualTls([old], at_once), MutualTls([new, old], at_once)
    for client, server in itertools.product((has_not_read, has_read), repeat=2):
        assert shakes_hands(client, server)
    # By now all have read it, and show it as soon as they look.
    shows_old, shows_new = has_read, MutualTls([new, old], later)
    for client, server in itertools.product((shows_old, shows_new), repeat=2):
        assert shakes_hands(client, server)


def test_a_stranger_is_no_member() -> None:
    now = 1_800_000_000.0
    member, stranger = make_identity(now), make_identity(now)
    for client, server in ((member, stranger), (stranger, member)):
        assert not shakes_hands(MutualTls([client], now), MutualTls([server], now))

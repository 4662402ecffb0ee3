"""Machines know each other by certificates that are renewed while both ends go on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from OpenSSL import SSL
from sqlalchemy import Connection, delete

from tests.databases import Postgres, postgres
from tidegate.protocol.errors import BadToken
from tidegate.protocol.ticket import KeyRing, Ticket
from tidegate.server.app import shared
from tidegate.server.app.shared import open_shared
from tidegate.server.cluster.identity import SETTLED_S, MutualTls, NodeIdentity, make_identity
from tidegate.server.store.cluster import SECRETS, take_turns
from tidegate.server.store.database import Database, sqlite_url

__all__ = ["postgres"]

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


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database that machines share."""
    database = Database(sqlite_url(tmp_path_factory.mktemp("shared") / "db"))
    database.migrate()
    yield database
    database.close()


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([0.0, 1.0, 600.0, 1700.0, 1900.0, 3500.0, 3700.0, 90_000.0]),
    ),
    max_size=16,
)


@given(
    _STEPS,
    st.lists(st.sampled_from([0.0, 600.0, 1700.0]), min_size=3, max_size=3),
    st.sampled_from([HOUR_S, 24 * HOUR_S]),
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_state_of_the_keys_makes_a_good_ticket_forged(
    secrets: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[int, float]],
    ahead_s: list[float],
    rotate_s: float,
) -> None:
    """One machine reads the keys at each step; then all sign and judge, also by what they read long
    ago."""
    monkeypatch.setattr(shared, "make_identity", lambda now: NodeIdentity("", now))
    with secrets.begin() as session:
        session.execute(delete(SECRETS))
    now, rings, tokens, codes = 1e9, dict[int, KeyRing](), set[str](), set[str]()
    for reads, later_s in steps:
        now += later_s
        rings[reads] = open_shared(secrets, tmp_path, now + ahead_s[reads], rotate_s).keys
        for ring in rings.values():
            tokens.add(ring.write_ticket(Ticket(1, "a", "c", "/f", 1, 1, 1.0, now)))
        for (machine, ring), token in itertools.product(rings.items(), tokens):
            try:
                ring.read_ticket(token, "a", "/f", now + ahead_s[machine], 30 * 86_400.0)
            except BadToken as fault:
                codes.add(fault.code)
    assert codes <= {"no-leader"}


def test_a_renewed_key_signs_once_every_machine_has_read_it(
    secrets: Database, tmp_path: Path
) -> None:
    with secrets.begin() as session:
        session.execute(delete(SECRETS))
    ticket = Ticket(1, "a", "c", "/f", 1, 1, 1.0, 0.0)

    def read(now: float) -> KeyRing:
        return open_shared(secrets, tmp_path, now, HOUR_S).keys

    def key_of(ring: KeyRing) -> str:
        return ring.write_ticket(ticket).split(".")[1]

    first = read(0.0)
    renewed = read(HOUR_S)
    assert len(renewed.derived()) == 2
    assert key_of(renewed) == key_of(first)
    late = read(HOUR_S + SETTLED_S)
    assert key_of(late) == renewed.derived()[1][0]
    token = late.write_ticket(ticket)
    assert renewed.read_ticket(token, "a", "/f", 0.0) == ticket
    # A machine whose reading is an hour old cannot tell; a fresh one refuses a stranger's.
    with pytest.raises(BadToken) as caught:
        first.read_ticket(token, "a", "/f", HOUR_S + SETTLED_S)
    assert (caught.value.status, caught.value.code) == (503, "no-leader")
    with pytest.raises(BadToken) as refused:
        late.read_ticket(token.replace(key_of(late), "another"), "a", "/f", HOUR_S + SETTLED_S)
    assert (refused.value.status, refused.value.code) == (403, "ticket-forged")


def test_two_machines_that_find_no_keys_at_once_have_the_same_ones(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.make()
    first, second = Database(url), Database(url)
    found: list[KeyRing] = []

    def late(connection: Connection) -> None:
        """Both have read nothing; the other one comes first."""
        monkeypatch.setattr(shared, "take_turns", take_turns)
        found.append(open_shared(second, tmp_path / "second", 0.0, HOUR_S).keys)
        take_turns(connection)

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(shared, "take_turns", late)
    found.append(open_shared(first, tmp_path / "first", 0.0, HOUR_S).keys)
    assert found[0].derived() == found[1].derived()
    for one in (first, second):
        one.close()
    postgres.drop(url)

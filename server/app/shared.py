"""The keys that all machines of a cluster share in its database, and a machine's name.

The first machine brings its own keys: its tickets stay valid when a server becomes a cluster.
"""

from __future__ import annotations

import enum
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

from ...protocol.disk.durable import write_whole
from ...protocol.ticket import Key, KeyRing
from ..cluster.identity import SETTLED_S, NodeIdentity, make_identity, settled
from ..store.cluster import Secret, read_secrets, take_turns, write_secrets
from ..store.database import Database
from .keys import Entries, read_keys, renewed, session_key


class _Kind(enum.StrEnum):
    """What a shared key is for."""

    TICKETS = "tickets"
    LINKS = "links"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Shared:
    """The keys of tickets, the certificates of machines, and the key of admin sessions."""

    keys: KeyRing
    identities: tuple[NodeIdentity, ...]
    admin_key: bytes = field(repr=False)


def open_shared(database: Database, state: Path, now: float, rotate_after_s: float) -> Shared:
    """Read the shared keys, and make or renew those whose time has come; blocks.

    Raises StoreUnavailable and CannotStart.
    """
    with database.begin() as session:
        found = {kind: read_secrets(session, kind) for kind in _Kind}
        fresh = _renewed(found, state, now, rotate_after_s)
        if fresh != found:
            # Again while other machines wait: two may have read the same.
            take_turns(session)
            found = {kind: read_secrets(session, kind) for kind in found}
            fresh = _renewed(found, state, now, rotate_after_s)
            for kind, rows in fresh.items():
                if rows != found[kind]:
                    write_secrets(session, kind, rows)
    # A key signs once every machine has read it. So for half as long a ring has each key that may
    # have signed, where clocks differ by less than that.
    tickets = _entries(fresh[_Kind.TICKETS])
    signs_s = settled([made_s for _, made_s in tickets], now)
    tickets.sort(key=lambda entry: entry[1] != signs_s)
    return Shared(
        KeyRing([key for key, _ in tickets], now + SETTLED_S / 2),
        tuple(NodeIdentity(one.text, one.made_s) for one in fresh[_Kind.LINKS]),
        bytes.fromhex(fresh[_Kind.ADMIN][-1].text),
    )


def _renewed(
    found: dict[_Kind, list[Secret]], state: Path, now: float, rotate_after_s: float
) -> dict[_Kind, list[Secret]]:
    entries = _entries(found[_Kind.TICKETS]) or read_keys(state / "keys.json")
    links = found[_Kind.LINKS]
    if not links or now - links[0].made_s >= rotate_after_s:
        made = make_identity(now)
        # Two older certificates are kept beside the newest one.
        links = [Secret(secrets.token_hex(4), made.pem, now), *links[:2]]
    return {
        _Kind.TICKETS: [
            Secret(key.name, key.secret.hex(), made_s)
            for key, made_s in renewed(entries, now, rotate_after_s)
        ],
        _Kind.LINKS: links,
        _Kind.ADMIN: found[_Kind.ADMIN]
        or [Secret("session", session_key(state / "admin.key").hex(), now)],
    }


def _entries(rows: list[Secret]) -> Entries:
    return [(Key(one.name, bytes.fromhex(one.text)), one.made_s) for one in rows]


def machine_name(state: Path) -> str:
    """What tells this machine from all others, also after a restart: it lies in the state folder.

    Raises OSError.
    """
    file = state / "machine"
    try:
        name = file.read_text("ascii").strip()
    except (FileNotFoundError, ValueError):
        name = ""
    if not name:
        host = "".join(c for c in socket.gethostname().split(".")[0] if c.isalnum() or c == "-")
        name = f"{host[:40] or 'machine'}-{secrets.token_hex(4)}"
        write_whole(file, f"{name}\n".encode("ascii", "replace"), mode=0o600)
    return name

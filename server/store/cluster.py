"""What the machines of a cluster share in PostgreSQL: leader lease, fence, secrets, nodes.

The lease is a row with an expiry by the database's clock, and an epoch that grows with every
leader. A session lock would not do: a session that hangs would keep it. A leader checks its epoch
in each transaction that writes, with a lock for which its successor waits (fencing). So the
successor reads everything that the old leader wrote, and nothing follows. All functions block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Float,
    Integer,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from .models import METADATA
from .rows import put

#: The lease: a table with one row.
LEASE = Table(
    "cluster_lease",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", String(128), nullable=False),
    Column("place", String(255), nullable=False),
    Column("expires_s", Double, nullable=False),
)

#: Keys that all machines must have.
SECRETS = Table(
    "cluster_secrets",
    METADATA,
    Column("kind", String(16), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("secret", Text, nullable=False),
    Column("made_s", Double, nullable=False),
)

#: Nodes that were connected to the leader when it wrote them.
NODES = Table(
    "cluster_nodes",
    METADATA,
    Column("name", String(160), primary_key=True),
    Column("machine", String(128), nullable=False),
    Column("since_s", Double, nullable=False),
)


class Fenced(Exception):
    """Another machine leads: this one must not write."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The leader in the database: its machine, its address and its epoch."""

    epoch: int = 0
    holder: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Secret:
    """A shared key; the meaning of `text` depends on its kind."""

    name: str
    text: str = field(repr=False)
    made_s: float


def campaign(
    connection: Connection, holder: str, place: str, lease_s: float, now_s: float | None = None
) -> Seat:
    """Take the lease if it has expired, or if this machine holds it already.

    Returns the leader: the caller leads if it is `holder`. `now_s` replaces the database's clock.
    """
    now = _clock(now_s)
    taken = connection.execute(
        update(LEASE)
        .where(or_(LEASE.c.expires_s <= now, LEASE.c.holder == holder))
        .values(epoch=LEASE.c.epoch + 1, holder=holder, place=place, expires_s=now + lease_s)
        .returning(LEASE.c.epoch)
    ).scalar()
    return Seat(taken, holder, place) if taken is not None else read_seat(connection)


def read_seat(connection: Connection) -> Seat:
    """The present leader, or the last one."""
    return Seat(*connection.execute(select(LEASE.c.epoch, LEASE.c.holder, LEASE.c.place)).one())


def renew(connection: Connection, epoch: int, lease_s: float, now_s: float | None = None) -> Seat:
    """Extend the lease of this epoch, even if it has expired and is free; returns the leader."""
    connection.execute(
        update(LEASE).where(LEASE.c.epoch == epoch).values(expires_s=_clock(now_s) + lease_s)
    )
    return read_seat(connection)


def release(connection: Connection, epoch: int) -> None:
    """Give up the lease, so that another machine can take it at once."""
    connection.execute(update(LEASE).where(LEASE.c.epoch == epoch).values(expires_s=0.0, holder=""))


def check_epoch(connection: Connection, epoch: int) -> None:
    """Raises Fenced if the epoch has ended; otherwise none begins before the commit."""
    found = connection.scalar(select(LEASE.c.epoch).with_for_update(read=True))
    if found != epoch:
        raise Fenced(f"another machine leads (epoch {found} instead of {epoch})")


def _clock(now_s: float | None) -> Any:
    if now_s is not None:
        return literal(now_s, Float)
    return func.extract("epoch", func.clock_timestamp()).cast(Float)


def take_turns(connection: Connection) -> None:
    """Wait until no other machine is between this call and its commit."""
    connection.execute(select(LEASE.c.id).with_for_update())


def read_secrets(connection: Connection, kind: str) -> list[Secret]:
    """All shared keys of one kind, newest first."""
    query = select(SECRETS.c.name, SECRETS.c.secret, SECRETS.c.made_s)
    query = query.where(SECRETS.c.kind == kind).order_by(SECRETS.c.made_s.desc())
    return [Secret(*row) for row in connection.execute(query)]


def write_secrets(connection: Connection, kind: str, secrets: Iterable[Secret]) -> None:
    """Replace all keys of one kind."""
    connection.execute(delete(SECRETS).where(SECRETS.c.kind == kind))
    for one in secrets:
        values = {"kind": kind, "name": one.name, "secret": one.text, "made_s": one.made_s}
        connection.execute(insert(SECRETS).values(values))


def read_nodes(connection: Connection) -> dict[str, str]:
    """The machine of each known node, by node name."""
    query = select(NODES.c.name, NODES.c.machine)
    return {row.name: row.machine for row in connection.execute(query)}


def add_node(connection: Connection, name: str, machine: str, now: float) -> None:
    """Remember a node that connected."""
    put(connection, NODES, {"name": name, "machine": machine, "since_s": now})


def remove_node(connection: Connection, name: str) -> None:
    """Forget a node that left for good."""
    connection.execute(delete(NODES).where(NODES.c.name == name))

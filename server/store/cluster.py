"""What the machines of a cluster share in PostgreSQL: the lease of the one that leads, the fence
before every write, secrets, and which nodes there are. All functions block.

The lease is a row with an expiry by the database's own clock, and an epoch that grows with every
leader. It is no session lock: a session that hangs would keep it. A leader checks its epoch in each
transaction that writes, with a lock that a successor must wait for; so whatever the old one wrote
is there when the new one reads, and nothing comes after.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BigInteger, Float, String, Text, delete, func, literal, or_, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from server.store.models import Base
from server.store.rows import insert_for


class LeaseRow(Base):
    """The only row of its table."""

    __tablename__ = "cluster_lease"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int] = mapped_column(BigInteger)
    holder: Mapped[str] = mapped_column(String(128))
    place: Mapped[str] = mapped_column(String(255))
    expires_s: Mapped[float]


class SecretRow(Base):
    """A key that all machines must have."""

    __tablename__ = "cluster_secrets"

    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    secret: Mapped[str] = mapped_column(Text)
    made_s: Mapped[float]


class NodeRow(Base):
    """A node that was connected with the leader when it was written."""

    __tablename__ = "cluster_nodes"

    name: Mapped[str] = mapped_column(String(160), primary_key=True)
    machine: Mapped[str] = mapped_column(String(128))
    since_s: Mapped[float]


class Fenced(Exception):
    """Another machine leads: nothing may be written any more."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Who leads, by what the database says: a machine, where it is reached, and in which epoch."""

    epoch: int = 0
    holder: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Secret:
    """A shared key; `text` is what its kind makes of it."""

    name: str
    text: str = field(repr=False)
    made_s: float


def campaign(
    session: Session,
    holder: str,
    place: str,
    lease_s: float,
    now_s: float | None = None,
    early_s: float = 0.0,
) -> Seat:
    """Take the lease if it runs out within `early_s`, or if an earlier process of this machine
    had it.

    Returns the leader; the caller leads if it is `holder`. `now_s` stands for the database's clock.
    """
    now = _clock(now_s)
    taken = session.execute(
        update(LeaseRow)
        .where(or_(LeaseRow.expires_s <= now + early_s, LeaseRow.holder == holder))
        .values(epoch=LeaseRow.epoch + 1, holder=holder, place=place, expires_s=now + lease_s)
        .returning(LeaseRow.epoch)
        .execution_options(synchronize_session=False)
    ).scalar()
    if taken is not None:
        return Seat(taken, holder, place)
    return read_seat(session)


def read_seat(session: Session) -> Seat:
    """Who leads, or led last."""
    row = session.execute(select(LeaseRow.epoch, LeaseRow.holder, LeaseRow.place)).one()
    return Seat(*row)


def renew(session: Session, epoch: int, lease_s: float, now_s: float | None = None) -> Seat:
    """Keep the lease of this epoch, also after it ran out if nobody has taken it; who leads now."""
    session.execute(
        update(LeaseRow)
        .where(LeaseRow.epoch == epoch)
        .values(expires_s=_clock(now_s) + lease_s)
        .execution_options(synchronize_session=False)
    )
    return read_seat(session)


def release(session: Session, epoch: int) -> None:
    """Give the lease back, so that another machine takes it at once."""
    session.execute(
        update(LeaseRow)
        .where(LeaseRow.epoch == epoch)
        .values(expires_s=0.0, holder="")
        .execution_options(synchronize_session=False)
    )


#: Of the table, not of its class: every batch of the journal asks it, and by the ORM it takes as
#: long as writing twenty rows.
_EPOCH = select(LeaseRow.__table__.c.epoch).with_for_update(read=True)


def check_epoch(session: Session, epoch: int) -> None:
    """Let this transaction write only if the epoch is still this one. Raises Fenced."""
    found = session.connection().execute(_EPOCH).scalar()
    if found != epoch:
        raise Fenced(f"another machine leads (epoch {found} instead of {epoch})")


def _clock(now_s: float | None) -> Any:
    if now_s is not None:
        return literal(now_s, Float)
    return func.extract("epoch", func.clock_timestamp()).cast(Float)


def take_turns(session: Session) -> None:
    """Go on only when no other machine is between this and its commit."""
    session.execute(select(LeaseRow.id).with_for_update())


def read_secrets(session: Session, kind: str) -> list[Secret]:
    """All shared keys of a kind, newest first."""
    query = select(SecretRow).where(SecretRow.kind == kind).order_by(SecretRow.made_s.desc())
    return [Secret(row.name, row.secret, row.made_s) for row in session.scalars(query)]


def write_secrets(session: Session, kind: str, secrets: Iterable[Secret]) -> None:
    """Make these the keys of a kind."""
    session.execute(delete(SecretRow).where(SecretRow.kind == kind))
    for one in secrets:
        values = {"kind": kind, "name": one.name, "secret": one.text, "made_s": one.made_s}
        statement = insert_for(session)(SecretRow).values(**values)
        session.execute(statement)


def read_nodes(session: Session) -> dict[str, str]:
    """The machine of each node that was there."""
    return {row.name: row.machine for row in session.scalars(select(NodeRow))}


def keep_node(session: Session, name: str, machine: str, now: float) -> None:
    """A node has come."""
    statement = insert_for(session)(NodeRow).values(name=name, machine=machine, since_s=now)
    changed = {"machine": statement.excluded.machine, "since_s": statement.excluded.since_s}
    session.execute(statement.on_conflict_do_update(index_elements=[NodeRow.name], set_=changed))


def drop_node(session: Session, name: str) -> None:
    """A node has left."""
    session.execute(delete(NodeRow).where(NodeRow.name == name))

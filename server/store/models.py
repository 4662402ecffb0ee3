"""The tables. Only this room knows them; helpers of other rooms see the values in `records`.

Times are Unix seconds as floats, sizes are bytes. What changes here brings a migration.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Index, Integer, SmallInteger, String, Text, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

#: SQLite numbers its rows only in a column that says INTEGER.
BigId = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """All tables of one Tidegate database."""


class TicketRecord(Base):
    """One row of the journal: a place in the queue, or the memory that it was used."""

    __tablename__ = "tickets"

    number: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    client: Mapped[str] = mapped_column(String(128))
    file: Mapped[str] = mapped_column(Text)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    remaining_bytes: Mapped[int] = mapped_column(BigInteger)
    weight: Mapped[float]
    issued_s: Mapped[float]
    state: Mapped[str] = mapped_column(String(12))
    changed_s: Mapped[float]
    polls: Mapped[int]
    early_polls: Mapped[int]
    priority_class: Mapped[str] = mapped_column(String(32), server_default="")
    network: Mapped[str] = mapped_column(String(64), server_default="")
    stands_back: Mapped[bool] = mapped_column(server_default=false())

    __table_args__ = (Index("tickets_by_turn", "state", "number"),)


class Counter(Base):
    """A named number that only grows: the high-water mark of ticket numbers."""

    __tablename__ = "counters"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class Digest(Base):
    """The digests of one file as it was: device, inode, size and mtime name the very bytes."""

    __tablename__ = "digests"

    key: Mapped[str] = mapped_column(String(128), primary_key=True)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    used_s: Mapped[float] = mapped_column(index=True)


class Revision(Base):
    """One applied change of the policy or its settings."""

    __tablename__ = "revisions"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at_s: Mapped[float]
    author: Mapped[str] = mapped_column(String(128))
    note: Mapped[str] = mapped_column(Text, default="")
    policy: Mapped[str] = mapped_column(String(32))
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    restored_from: Mapped[int | None] = mapped_column(BigInteger)


class SampleRow(Base):
    """One point of one series at one resolution (0: raw, 60: minutes, 3600: hours)."""

    __tablename__ = "history"

    resolution_s: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    series: Mapped[str] = mapped_column(String(64), primary_key=True)
    at_s: Mapped[float] = mapped_column(primary_key=True)
    mean: Mapped[float]
    peak: Mapped[float]

    __table_args__ = (
        Index("history_by_age", "resolution_s", "at_s"),
        Index("history_for_charts", "resolution_s", "series", "at_s", "mean"),
    )


class EventRow(Base):
    """Something that an operator may want to read later."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at_s: Mapped[float] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(String(64), index=True)
    level: Mapped[str] = mapped_column(String(12))
    text: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)


class ArrivalRow(Base):
    """One large job that asked for the first time: what previews of a policy replay."""

    __tablename__ = "arrivals"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at_s: Mapped[float] = mapped_column(index=True)
    client: Mapped[str] = mapped_column(String(128))
    file: Mapped[str] = mapped_column(Text)
    size_bytes: Mapped[int] = mapped_column(BigInteger)


class Usage(Base):
    """How popular one file is, counted since it was first asked for."""

    __tablename__ = "usage"

    file: Mapped[str] = mapped_column(Text, primary_key=True)
    downloads: Mapped[int] = mapped_column(BigInteger)
    sent_bytes: Mapped[int] = mapped_column(BigInteger)
    at_s: Mapped[float]


class UsageHour(Base):
    """How often a file was begun within one hour, and what was delivered in it."""

    __tablename__ = "usage_hours"

    hour_s: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    file: Mapped[str] = mapped_column(Text, primary_key=True)
    downloads: Mapped[int] = mapped_column(BigInteger)
    sent_bytes: Mapped[int] = mapped_column(BigInteger)


class PassRow(Base):
    """A signed priority pass that an operator issued; the signature lives in the token."""

    __tablename__ = "passes"

    serial: Mapped[str] = mapped_column(String(64), primary_key=True)
    priority_class: Mapped[str] = mapped_column("class_name", String(64))
    weight: Mapped[float]
    path: Mapped[str] = mapped_column(Text)
    issued_s: Mapped[float]
    not_before_s: Mapped[float]
    expires_s: Mapped[float]
    max_uses: Mapped[int]
    uses: Mapped[int] = mapped_column(default=0)
    revoked: Mapped[bool] = mapped_column(default=False)
    note: Mapped[str] = mapped_column(Text, default="")


class UserRow(Base):
    """One user of the administration."""

    __tablename__ = "admin_users"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))
    password_hash: Mapped[str] = mapped_column(Text)
    created_s: Mapped[float]
    must_change: Mapped[bool]
    totp_secret: Mapped[str | None] = mapped_column(String(64))
    totp_step: Mapped[int]


class TokenRow(Base):
    """One API token, by the digest of its secret."""

    __tablename__ = "admin_tokens"

    serial: Mapped[str] = mapped_column(String(16), primary_key=True)
    label: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[str] = mapped_column(Text, server_default="read")
    digest: Mapped[str] = mapped_column(String(64))
    owner: Mapped[str] = mapped_column(String(64))
    created_s: Mapped[float]
    expires_s: Mapped[float | None]
    used_s: Mapped[float | None]
    parent: Mapped[str | None] = mapped_column(String(16))


class SessionRow(Base):
    """One login, by the digest of its id."""

    __tablename__ = "admin_sessions"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str] = mapped_column(String(64))
    created_s: Mapped[float]
    seen_s: Mapped[float]


class DocumentRow(Base):
    """A document of the operator's: rules for files, blocked networks, the waiting page."""

    __tablename__ = "operator_state"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)

"""The tables. Only this room knows them; helpers of other rooms see the values in `records`.

Times are Unix seconds as floats, sizes are bytes. What changes here brings a migration.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    false,
)

#: All tables of one Tidegate database.
METADATA = MetaData()
#: SQLite numbers its rows only in a column that says INTEGER.
_BIG_ID = BigInteger().with_variant(Integer, "sqlite")


def _key(name: str, kind: Any, **more: Any) -> Column[Any]:
    return Column(name, kind, primary_key=True, **more)


def _numbered(name: str = "id", **more: Any) -> Column[Any]:
    return _key(name, _BIG_ID, autoincrement=True, **more)


def _column(name: str, kind: Any, **more: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **more)


#: The journal: a ticket's place in the queue, or the memory that it was used.
TICKETS = Table(
    "tickets",
    METADATA,
    _key("number", _BIG_ID, autoincrement=False),
    _column("client", String(128)),
    _column("file", Text),
    _column("size_bytes", BigInteger),
    _column("remaining_bytes", BigInteger),
    _column("weight", Double),
    _column("issued_s", Double),
    _column("state", String(12)),
    _column("changed_s", Double),
    _column("polls", Integer),
    _column("early_polls", Integer),
    _column("priority_class", String(32), server_default=""),
    _column("network", String(64), server_default=""),
    _column("stands_back", Boolean, server_default=false()),
    Index("tickets_by_turn", "state", "number"),
)

#: Named numbers that only grow: the high-water mark of ticket numbers.
COUNTERS = Table(
    "counters",
    METADATA,
    _key("name", String(64)),
    _column("value", BigInteger),
)

#: The digests of a file as it was: device, inode, size and mtime name the very bytes.
DIGESTS = Table(
    "digests",
    METADATA,
    _key("key", String(128)),
    _column("body", JSON),
    _column("used_s", Double, index=True),
)

#: Applied changes of the policy or its settings.
REVISIONS = Table(
    "revisions",
    METADATA,
    _numbered(key="number"),
    _column("at_s", Double),
    _column("author", String(128), key="who"),
    _column("note", Text),
    _column("policy", String(32)),
    _column("settings", JSON),
    Column("restored_from", BigInteger),
)

#: Points of a series at a resolution (0: raw, 60: minutes, 3600: hours).
HISTORY = Table(
    "history",
    METADATA,
    _key("resolution_s", SmallInteger),
    _key("series", String(64)),
    _key("at_s", Double),
    _column("mean", Double),
    _column("peak", Double),
    Index("history_by_age", "resolution_s", "at_s"),
    Index("history_for_charts", "resolution_s", "series", "at_s", "mean"),
)

#: What an operator may want to read later.
EVENTS = Table(
    "events",
    METADATA,
    _numbered(key="number"),
    _column("at_s", Double, index=True),
    _column("kind", String(64), index=True),
    _column("level", String(12)),
    _column("text", Text),
    _column("data", JSON),
)

#: Large jobs that asked for the first time: what previews of a policy replay.
ARRIVALS = Table(
    "arrivals",
    METADATA,
    _numbered(),
    _column("at_s", Double, index=True),
    _column("client", String(128)),
    _column("file", Text),
    _column("size_bytes", BigInteger),
)

#: How popular a file is, counted since it was first asked for.
USAGE = Table(
    "usage",
    METADATA,
    _key("file", Text),
    _column("downloads", BigInteger, key="begun"),
    _column("complete", BigInteger, server_default="0"),
    _column("sent_bytes", BigInteger),
    _column("at_s", Double),
)

#: A file's begun and complete downloads within an hour, and the bytes delivered in it.
USAGE_HOURS = Table(
    "usage_hours",
    METADATA,
    _key("hour_s", BigInteger),
    _key("file", Text),
    _column("downloads", BigInteger, key="begun"),
    _column("complete", BigInteger, server_default="0"),
    _column("sent_bytes", BigInteger),
)

#: Signed priority passes that operators issued; the signature lives in the token.
PASSES = Table(
    "passes",
    METADATA,
    _key("serial", String(64)),
    _column("class_name", String(64), key="priority_class"),
    _column("weight", Double),
    _column("path", Text),
    _column("issued_s", Double),
    _column("not_before_s", Double),
    _column("expires_s", Double),
    _column("max_uses", Integer),
    _column("uses", Integer),
    _column("revoked", Boolean),
    _column("note", Text),
)

#: Users of the administration.
USERS = Table(
    "admin_users",
    METADATA,
    _key("name", String(64)),
    _column("role", String(16)),
    _column("password_hash", Text),
    _column("created_s", Double),
    _column("must_change", Boolean),
    Column("totp_secret", String(64)),
    _column("totp_step", Integer),
)

#: API tokens, by the digests of their secrets.
TOKENS = Table(
    "admin_tokens",
    METADATA,
    _key("serial", String(16)),
    _column("label", String(64)),
    _column("scopes", Text, server_default="read"),
    _column("digest", String(64)),
    _column("owner", String(64)),
    _column("created_s", Double),
    Column("expires_s", Double),
    Column("used_s", Double),
    Column("parent", String(16)),
)

#: Logins, by the digests of their ids.
SESSIONS = Table(
    "admin_sessions",
    METADATA,
    _key("key", String(64)),
    _column("user", String(64)),
    _column("created_s", Double),
    _column("seen_s", Double),
)

#: Documents of the operator's: rules for files, blocked networks, the waiting page.
DOCUMENTS = Table(
    "operator_state",
    METADATA,
    _key("name", String(64)),
    _column("body", JSON),
)

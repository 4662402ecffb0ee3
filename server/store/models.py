"""The tables. Other rooms see their values as `records`.

Times are Unix seconds, sizes are bytes. A change here needs a migration.
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


def _key(name: str, kind: Any, **more: Any) -> Column[Any]:
    return Column(name, kind, primary_key=True, **more)


def _numbered(name: str = "id", *, autoincrement: bool = True, **more: Any) -> Column[Any]:
    # SQLite numbers its rows only in a column that says INTEGER.
    kind = BigInteger().with_variant(Integer, "sqlite")
    return _key(name, kind, autoincrement=autoincrement, **more)


def _column(name: str, kind: Any, **more: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **more)


#: The journal: one row for each ticket, waiting or finished.
TICKETS = Table(
    "tickets",
    METADATA,
    _numbered("number", autoincrement=False),
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

#: Named numbers, such as the highest ticket number that may have been issued.
COUNTERS = Table(
    "counters",
    METADATA,
    _key("name", String(64)),
    _column("value", BigInteger),
)

#: Digests of files; the key has device, inode, size and times of the file.
DIGESTS = Table(
    "digests",
    METADATA,
    _key("key", String(128)),
    _column("body", JSON),
    _column("used_s", Double, index=True),
)

#: All policies and settings that were in force.
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

#: The operator's log.
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

#: First requests for large files; previews of a policy replay them.
ARRIVALS = Table(
    "arrivals",
    METADATA,
    _numbered(),
    _column("at_s", Double, index=True),
    _column("client", String(128)),
    _column("file", Text),
    _column("size_bytes", BigInteger),
    _column("program", String(48), server_default=""),
)

#: Downloads of each file since its first request.
USAGE = Table(
    "usage",
    METADATA,
    _key("file", Text),
    _column("downloads", BigInteger, key="begun"),
    _column("complete", BigInteger, server_default="0"),
    _column("sent_bytes", BigInteger),
    _column("at_s", Double),
)

#: Downloads of each file by hour.
USAGE_HOURS = Table(
    "usage_hours",
    METADATA,
    _key("hour_s", BigInteger),
    _key("file", Text),
    _column("downloads", BigInteger, key="begun"),
    _column("complete", BigInteger, server_default="0"),
    _column("sent_bytes", BigInteger),
)

#: Priority passes that operators issued; the token has the signature.
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

# Users of the administration.
Table(
    "admin_users",
    METADATA,
    _key("name", String(64)),
    _column("role", String(16)),
    _column("password_hash", Text),
    _column("created_s", Double),
    _column("must_change", Boolean),
    Column("totp_secret", String(64)),
    _column("totp_step", Integer),
    Column("subject", Text),
)

# API tokens; `digest` is of their secret.
Table(
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

# Logins; the key is the digest of their id.
Table(
    "admin_sessions",
    METADATA,
    _key("key", String(64)),
    _column("user", String(64)),
    _column("created_s", Double),
    _column("seen_s", Double),
)

# The operator's documents: rules, blocked networks, waiting page.
Table(
    "operator_state",
    METADATA,
    _key("name", String(64)),
    _column("body", JSON),
)

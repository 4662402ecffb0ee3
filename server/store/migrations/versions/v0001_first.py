"""The first tables: journal, counters, digests, revisions, history, events, arrivals, passes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "tickets",
        sa.Column("number", BIG_ID, primary_key=True, autoincrement=False),
        sa.Column("client", sa.String(128), nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("remaining_bytes", sa.BigInteger, nullable=False),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("issued_s", sa.Float, nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("changed_s", sa.Float, nullable=False),
        sa.Column("polls", sa.Integer, nullable=False),
        sa.Column("early_polls", sa.Integer, nullable=False),
    )
    op.create_index("tickets_by_state", "tickets", ["state", "changed_s"])
    op.create_table(
        "counters",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "digests",
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("used_s", sa.Float, nullable=False, index=True),
    )
    op.create_table(
        "revisions",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("author", sa.String(128), nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("policy", sa.String(32), nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
    )
    op.create_table(
        "history",
        sa.Column("resolution_s", sa.SmallInteger, primary_key=True),
        sa.Column("series", sa.String(64), primary_key=True),
        sa.Column("at_s", sa.Float, primary_key=True),
        sa.Column("mean", sa.Float, nullable=False),
        sa.Column("peak", sa.Float, nullable=False),
    )
    op.create_index("history_by_age", "history", ["resolution_s", "at_s"])
    op.create_table(
        "events",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("at_s", sa.Float, nullable=False, index=True),
        sa.Column("kind", sa.String(64), nullable=False, index=True),
        sa.Column("level", sa.String(12), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
    )
    op.create_table(
        "arrivals",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("at_s", sa.Float, nullable=False, index=True),
        sa.Column("client", sa.String(128), nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "passes",
        sa.Column("serial", sa.String(64), primary_key=True),
        sa.Column("class_name", sa.String(64), nullable=False),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("issued_s", sa.Float, nullable=False),
        sa.Column("not_before_s", sa.Float, nullable=False),
        sa.Column("expires_s", sa.Float, nullable=False),
        sa.Column("max_uses", sa.Integer, nullable=False),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.Column("revoked", sa.Boolean, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Undo."""
    for table in (
        "passes",
        "arrivals",
        "events",
        "history",
        "revisions",
        "digests",
        "counters",
        "tickets",
    ):
        op.drop_table(table)

"""Tables of the administration, and which revision a restored one came from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "admin_users",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("password_hash", sa.Text, nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("must_change", sa.Boolean, nullable=False),
        sa.Column("totp_secret", sa.String(64), nullable=True),
        sa.Column("totp_step", sa.Integer, nullable=False),
    )
    op.create_table(
        "admin_tokens",
        sa.Column("serial", sa.String(16), primary_key=True),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("expires_s", sa.Float, nullable=True),
        sa.Column("used_s", sa.Float, nullable=True),
    )
    op.create_table(
        "admin_sessions",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("seen_s", sa.Float, nullable=False),
    )
    op.create_table(
        "operator_state",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.add_column("revisions", sa.Column("restored_from", sa.BigInteger, nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("revisions", "restored_from")
    for table in ("operator_state", "admin_sessions", "admin_tokens", "admin_users"):
        op.drop_table(table)

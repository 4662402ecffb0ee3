"""API tokens have scopes and know who issued them; downloads are counted by the hour, too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ALL = "accounts files policy queue read"


def upgrade() -> None:
    """Apply; a token keeps what its role was good for."""
    op.add_column(
        "admin_tokens", sa.Column("scopes", sa.Text, nullable=False, server_default="read")
    )
    op.add_column("admin_tokens", sa.Column("parent", sa.String(16), nullable=True))
    op.execute(f"UPDATE admin_tokens SET scopes = '{_ALL}' WHERE role = 'operator'")
    op.drop_column("admin_tokens", "role")
    op.create_table(
        "usage_hours",
        sa.Column("hour_s", sa.BigInteger, primary_key=True),
        sa.Column("file", sa.Text, primary_key=True),
        sa.Column("downloads", sa.BigInteger, nullable=False),
        sa.Column("sent_bytes", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_table("usage_hours")
    op.add_column(
        "admin_tokens", sa.Column("role", sa.String(16), nullable=False, server_default="viewer")
    )
    op.execute(f"UPDATE admin_tokens SET role = 'operator' WHERE scopes = '{_ALL}'")
    op.drop_column("admin_tokens", "parent")
    op.drop_column("admin_tokens", "scopes")

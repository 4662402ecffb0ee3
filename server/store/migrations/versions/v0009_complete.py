"""Complete downloads are counted beside begun ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TABLES = ("usage", "usage_hours")


def upgrade() -> None:
    """Apply; how many of the earlier downloads were complete is not known, so none count."""
    for table in _TABLES:
        op.add_column(
            table, sa.Column("complete", sa.BigInteger, nullable=False, server_default="0")
        )


def downgrade() -> None:
    """Take it back."""
    for table in _TABLES:
        op.drop_column(table, "complete")

"""A ticket knows the crowd that it counts with, and whether it stands back there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply; the crowds of tickets that wait by now are not known."""
    op.add_column("tickets", sa.Column("network", sa.String(64), nullable=False, server_default=""))
    back = sa.Column("stands_back", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("tickets", back)


def downgrade() -> None:
    """Take it back."""
    op.drop_column("tickets", "stands_back")
    op.drop_column("tickets", "network")

"""A ticket knows the priority class that its weight is of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply; the class of tickets that wait by now is not known."""
    op.add_column(
        "tickets", sa.Column("priority_class", sa.String(32), nullable=False, server_default="")
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_column("tickets", "priority_class")

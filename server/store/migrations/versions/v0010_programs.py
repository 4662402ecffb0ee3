"""Arrivals say which program came."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "arrivals", sa.Column("program", sa.String(48), nullable=False, server_default="")
    )


def downgrade() -> None:
    op.drop_column("arrivals", "program")

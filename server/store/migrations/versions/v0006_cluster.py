"""Several machines on one database: who leads, what they share, who is there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply; nobody has led yet."""
    lease = op.create_table(
        "cluster_lease",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.Column("place", sa.String(255), nullable=False),
        sa.Column("expires_s", sa.Double, nullable=False),
    )
    op.bulk_insert(lease, [{"id": 1, "epoch": 0, "holder": "", "place": "", "expires_s": 0.0}])
    op.create_table(
        "cluster_secrets",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("secret", sa.Text, nullable=False),
        sa.Column("made_s", sa.Double, nullable=False),
    )
    op.create_table(
        "cluster_nodes",
        sa.Column("name", sa.String(160), primary_key=True),
        sa.Column("machine", sa.String(128), nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Take it back."""
    for table in ("cluster_nodes", "cluster_secrets", "cluster_lease"):
        op.drop_table(table)

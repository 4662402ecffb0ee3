"""How often each file was downloaded, small ones too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply; what is known of earlier days are the arrivals of large downloads."""
    op.create_table(
        "usage",
        sa.Column("file", sa.Text, primary_key=True),
        sa.Column("downloads", sa.BigInteger, nullable=False),
        sa.Column("sent_bytes", sa.BigInteger, nullable=False),
        sa.Column("at_s", sa.Float, nullable=False),
    )
    op.execute(
        'INSERT INTO "usage" (file, downloads, sent_bytes, at_s) '
        "SELECT file, count(*), 0, max(at_s) FROM arrivals GROUP BY file"
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_table("usage")

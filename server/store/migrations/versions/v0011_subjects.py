"""Users may be known by a subject at an OpenID Connect provider."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("admin_users", sa.Column("subject", sa.Text))


def downgrade() -> None:
    op.drop_column("admin_users", "subject")

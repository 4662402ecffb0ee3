"""The tables of version 0.1.0, which `Database.migrate` makes: later changes begin here."""

from __future__ import annotations

revision = "0009"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing."""


def downgrade() -> None:
    """Change nothing."""

"""Indexes for what pages ask: charts without look-ups, searches that stop when a page is full."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index("history_for_charts", "history", ["resolution_s", "series", "at_s", "mean"])
    op.create_index("tickets_by_turn", "tickets", ["state", "number"])
    op.drop_index("tickets_by_state", "tickets")


def downgrade() -> None:
    """Take it back."""
    op.create_index("tickets_by_state", "tickets", ["state", "changed_s"])
    op.drop_index("tickets_by_turn", "tickets")
    op.drop_index("history_for_charts", "history")

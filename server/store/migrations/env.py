"""Alembic's entry: migrates on the connection that the store hands over."""

from __future__ import annotations

from alembic import context

from tidegate.server.store.models import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=METADATA,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()

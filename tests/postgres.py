"""A PostgreSQL of the tests' own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import bench.postgres


@contextlib.contextmanager
def postgres_running() -> Iterator[str]:
    """Its URL; the test is skipped where PostgreSQL is not installed."""
    pytest.importorskip("psycopg")
    try:
        running = bench.postgres.postgres_running()
        url = running.__enter__()
    except bench.postgres.NoPostgres as fault:
        pytest.skip(str(fault))
    try:
        yield url
    finally:
        running.__exit__(None, None, None)

"""The cluster's composition, run as processes: see `bench.composition`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bench.composition import main

pytestmark = pytest.mark.e2e


def test_the_clusters_composition_serves_through_its_balancer_and_bears_a_lost_machine() -> None:
    done = CliRunner().invoke(main, ["--count", "3"])
    assert done.exit_code == 0, done.output
    assert "3 machines and the database are healthy; 3 of 3" in done.output
    assert "3 of 3 after a machine was lost" in done.output

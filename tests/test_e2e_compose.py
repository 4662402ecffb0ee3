"""The cluster's composition, run as processes: see `tests.composition`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.composition import Composition, downloads

pytestmark = pytest.mark.e2e


def test_the_clusters_composition_serves_through_its_balancer_and_bears_a_lost_machine(
    tmp_path: Path,
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    composition = Composition(tmp_path)
    content = os.urandom(3_000_000)
    (tmp_path / "release" / "big.iso").write_bytes(content)
    with contextlib.closing(composition):
        composition.network()
        composition.start("postgres")
        composition.wait_for("postgres")
        machines = [name for name in composition.services if name not in ("postgres", "balancer")]
        assert len(machines) == 3
        for name in machines:
            composition.start(name)
        for name in machines:
            composition.wait_for(name)
        composition.start("balancer")
        before = downloads(composition, content, 3, "before")
        composition.lose(machines[1])
        after = downloads(composition, content, 3, "after")
    logs = "\n".join(composition.log(name) for name in composition.services)
    assert (before, after) == (3, 3), logs
    assert "Traceback" not in logs, logs

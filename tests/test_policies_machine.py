"""Every policy keeps the laws under random use."""

from __future__ import annotations

import pytest

from policies.registry import POLICIES
from policies.testing import check_laws


@pytest.mark.parametrize("name", POLICIES)
def test_laws_hold_under_random_use(name: str) -> None:
    check_laws(name)


def test_laws_hold_while_policies_change() -> None:
    check_laws("ticket", switches=True)

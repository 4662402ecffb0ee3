"""Every policy keeps the laws under random use."""

from __future__ import annotations

import pytest

from tests.kernel_laws import KernelLaws
from tidegate.policies.registry import POLICIES
from tidegate.policies.testing import check_laws


@pytest.mark.parametrize("name", POLICIES)
def test_laws_hold_under_random_use(name: str) -> None:
    check_laws(name, laws=KernelLaws)


def test_laws_hold_while_policies_change() -> None:
    class Switching(KernelLaws):
        switches = True

    check_laws("ticket", laws=Switching)


def test_who_had_a_turn_before_a_restart_does_not_stand_back_for_the_crowd() -> None:
    """Its key stayed the first, while its crowd counted it among those that stand back."""

    class Case(KernelLaws):
        start_with = "ticket"

    case = Case()
    # One of a priority class is asked for each time, so it has a ticket.
    case.ask(client="c0", file="archive", part=1.0, present=False, weight=4.0)
    case.crash()
    case.lose_a_start(pick=1, times=2)
    case.the_laws_keep_their_books()
    assert next(row.number for row in case.policy.tickets()) == 1


def test_large_ones_beside_doubted_slots_outlive_the_doubt() -> None:
    """Also where slots for small ones are free."""

    class Case(KernelLaws):
        start_with = "reserve"

    case = Case()
    case.lose_a_start(pick=0, times=1)
    case.slots_are_kept()
    case.end(pick=0, done=False)
    case.slots_are_kept()
    for client in ("c0", "c1"):
        case.ask_with_any_ticket(client=client, ticket=1)
        case.slots_are_kept()
    case.wait(passed=1.0)
    case.slots_are_kept()

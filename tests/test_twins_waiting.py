"""Those who wait are told the same in every form: fields, problem document, page, status."""

from __future__ import annotations

import html
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import Asked, House
from tidegate.server.http.phrases import Phrases

PROGRAM = {"agent": "tidegate/1"}
BROWSER = {"agent": "Mozilla/5.0 Firefox/140.0", "accept": "text/html,*/*;q=0.8"}


def queue(policy: str, before: int, sent_bytes: int) -> tuple[House, Asked]:
    """A client that waits behind others, and its house."""
    house = House(policy, slots=1, slots_max=1, bandwidth_bytes_s=1e6, early_penalty_s=0)
    house.ask("192.0.2.1").transfer.send(sent_bytes)
    for number in range(before):
        house.ask(f"192.0.3.{number + 1}")
    return house, house.ask("192.0.2.9", **PROGRAM)


def of_page(body: str, name: str) -> str:
    found = re.search(rf'<dd data-live="{name}">(.*?)</dd>', body, re.DOTALL)
    assert found, name
    return html.unescape(re.sub(r"<[^>]*>", "", found[1])).strip()


@given(
    st.sampled_from(["ticket", "fair", "adaptive"]), st.integers(0, 9), st.integers(0, 9_000_000)
)
def test_a_wait_is_told_the_same_in_every_form(policy: str, before: int, sent_bytes: int) -> None:
    house, first = queue(policy, before, sent_bytes)
    if first.started:
        return
    token = first.token
    fields, document = first.connection.fields, json.loads(first.connection.body)
    # Nothing passes between these, so they tell of one moment.
    page = house.ask("192.0.2.9", **BROWSER, token=token)
    status = json.loads(house.watch("192.0.2.9", token, 0).connection.body)
    assert first.connection.status == page.connection.status == 503
    shown = page.connection.body.decode()
    told = page.connection.fields

    assert document["place"] == status["place"] == int(fields["tidegate-place"])
    assert told["tidegate-place"] == fields["tidegate-place"]
    assert document["queue_status"] == status["state"] == fields["tidegate-status"]
    assert document["expected_wait_s"] == status["expected_wait_s"]
    assert document["p90_wait_s"] == status["p90_wait_s"]
    assert document["expected_done_s"] == status["expected_done_s"] > document["expected_wait_s"]
    assert document["p90_done_s"] == status["p90_done_s"]
    # A field is whole seconds; a bound is rounded up.
    for name, member in (
        ("tidegate-wait-expected", "expected_wait_s"),
        ("tidegate-wait-p90", "p90_wait_s"),
        ("tidegate-done", "expected_done_s"),
        ("tidegate-done-p90", "p90_done_s"),
    ):
        assert document[member] <= int(fields[name]) <= document[member] + 1, name
        assert told[name] == fields[name]

    assert document["retry_after_s"] == int(fields["retry-after"])
    assert f'data-visit="{told["retry-after"]}"' in shown
    words = Phrases("en")
    expected = words.time(document["expected_wait_s"])
    assert of_page(shown, "expected") == words("expected_value", time=expected)
    has = words.time(document["expected_done_s"])
    assert of_page(shown, "has") == words("expected_value", time=has)


@pytest.mark.parametrize("policy", ["ticket", "fair"])
def test_a_page_without_a_script_comes_back_when_a_program_does(policy: str) -> None:
    """By `Refresh`, no sooner than `Retry-After` says and hardly later."""
    house, first = queue(policy, 3, 1_000_000)
    page = house.ask("192.0.2.9", **BROWSER, token=first.token)
    fields = page.connection.fields
    refresh = int(fields["refresh"].partition(";")[0])
    assert 0 <= refresh - int(fields["retry-after"]) <= 2

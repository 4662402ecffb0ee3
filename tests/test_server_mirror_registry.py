"""Which mirrors are offered: admitted, fresh, well and current ones, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from tests.fakes import FakeConnection
from tidegate.protocol.errors import BadManifest, BadToken
from tidegate.protocol.mirror_report import MirrorReport, decode_report, encode_report
from tidegate.server.http.request import Request
from tidegate.server.mirror.registry import FORGET_S, FRESH_S, Admitted, MirrorDirectory, Registry
from tidegate.server.mirror.repository import RepositoryProblem
from tidegate.server.mirror.routes import MirrorOrigin, admit, read_admitted

SECRETS = {"one": "s1", "two": "s2"}


def registry() -> Registry:
    made = Registry(
        {
            "one": Admitted("one", "https://one.test/pub", "s1"),
            "two": Admitted("two", "https://two.test/", "s2"),
        }
    )
    made.publish({"main": 7})
    return made


def said(name: str, version: int = 7, at: float = 100.0, **more: object) -> MirrorReport:
    return MirrorReport(name, "main", version, at, **more)  # type: ignore[arg-type]


def test_current_mirrors_are_listed_with_free_ones_before() -> None:
    known = registry()
    known.add_report(said("one", free=False), 100)
    known.add_report(said("two", free=True), 100)
    urls = [source.url for source in known.sources("main", 101)]
    assert urls == ["https://two.test/", "https://one.test/pub/"]
    known.add_report(said("one", at=110, free=True), 110)
    known.add_report(said("two", at=110), 110)
    assert known.sources("main", 111)[0].url == "https://one.test/pub/"
    assert [s.url for s in known.sources("main", 111, only_free=True)] == ["https://one.test/pub/"]


@pytest.mark.parametrize(
    ("report", "at", "condition"),
    [
        (said("one"), 100, "current"),
        (said("one", version=6), 100, "behind"),
        (said("one", trouble="disk-full"), 100, "troubled"),
        (said("one"), 100 + FRESH_S + 1, "silent"),
    ],
)
def test_only_the_healthy_and_current_are_offered(report, at, condition) -> None:  # type: ignore[no-untyped-def]
    known = registry()
    known.add_report(report, 100)
    assert [standing.condition for standing in known.standings(at)] == [condition]
    assert bool(known.sources("main", at)) == (condition == "current")


def test_a_new_version_takes_the_others_off_until_they_have_it() -> None:
    known = registry()
    known.add_report(said("one"), 100)
    known.publish({"main": 8})
    assert known.sources("main", 101) == []
    known.add_report(said("one", version=8, at=102), 102)
    assert len(known.sources("main", 103)) == 1


def test_the_dead_and_the_expelled_are_forgotten() -> None:
    known = registry()
    known.add_report(said("one"), 100)
    known.add_report(said("two"), 100)
    known.admit({"two": Admitted("two", "https://two.test/", "s2")})
    assert [standing.name for standing in known.standings(101)] == ["two"]
    assert known.standings(100 + FORGET_S + 1) == []


def test_the_directory_maps_paths_below_its_prefix() -> None:
    known = registry()
    known.add_report(said("one"), 100)
    directory = MirrorDirectory(known, "main", lambda: 101.0, prefix="/pub/")
    assert [s.url for s in directory.urls_for("/pub/a b/c.iso")] == [
        "https://one.test/pub/a%20b/c.iso"
    ]
    assert directory.urls_for("/elsewhere") == []


def test_update_files_are_to_be_had_from_current_relays() -> None:
    known = registry()
    known.admit({"one": Admitted("one", "https://one.test/", "s1", relay_url="https://one.test/r")})
    known.add_report(said("one"), 100)
    directory = MirrorDirectory(known, "main", lambda: 101.0, "/pub/", "/updates/")
    path = "targets/main/abc.1-2.update"
    found = [source.url for source in directory.urls_for(f"/updates/{path}")]
    assert found == [f"https://one.test/r/{path}"]
    assert directory.urls_for("/updates/metadata/timestamp.json") == []
    assert directory.urls_for("/updates/targets/other/abc.1-2.update") == []


def test_a_replayed_report_does_not_count() -> None:
    known = registry()
    known.add_report(said("one"), 100)
    with pytest.raises(BadToken, match="before"):
        known.add_report(said("one"), 101)


@given(st.text(max_size=20), st.integers(0, 10**9), st.sampled_from([True, False, None]))
def test_reports_survive_the_wire(trouble: str, version: int, free: bool | None) -> None:
    report = MirrorReport("one", "main", version, 1000.0, trouble, free)
    body, signature = encode_report(report, "s1")
    if not trouble.isprintable():
        with pytest.raises(BadManifest):
            decode_report(body, signature, SECRETS.get, 1000.0)
    else:
        assert decode_report(body, signature, SECRETS.get, 1010.0) == report


def test_reports_that_prove_nothing_are_refused() -> None:
    body, signature = encode_report(said("one", at=1000.0), "s1")
    for now in (699.0, 1301.0):
        with pytest.raises(BadToken, match="clocks"):
            decode_report(body, signature, SECRETS.get, now)
    with pytest.raises(BadToken, match="not signed"):
        decode_report(body.replace(b'"one"', b'"two"'), signature, SECRETS.get, 1000.0)
    with pytest.raises(BadToken, match="not signed"):
        decode_report(body.replace(b'"one"', b'"nobody"'), signature, SECRETS.get, 1000.0)
    # It ended with a traceback.
    with pytest.raises(BadToken, match="not signed"):
        decode_report(body, "\xe9" * 64, SECRETS.get, 1000.0)
    with pytest.raises(BadManifest):
        decode_report(body[:-4], signature, SECRETS.get, 1000.0)
    for junk in (b"[]", b"null", json.dumps({"mirror": 1}).encode(), b"x" * 9999):
        with pytest.raises(BadManifest):
            decode_report(junk, signature, SECRETS.get, 1000.0)


@pytest.mark.parametrize("after", [b"%C2%B2", b"%D9%A3", b"9" * 5000, b"-1"])
def test_a_version_that_is_no_number_is_none(tmp_path: Path, after: bytes) -> None:
    """Digits of other scripts ended with a traceback."""
    origin = MirrorOrigin(registry(), tmp_path, Clock(), lambda: 1000.0)
    connection = FakeConnection()
    target = b"/-/mirrors/main/next?after=" + after
    origin.handle(Request(cast(Any, connection), b"GET", target, {}))
    assert (connection.status, json.loads(connection.body)["latest"]) == (200, 7)


def test_a_mirror_that_has_the_newest_version_waits_for_the_next(tmp_path: Path) -> None:
    clock = Clock()
    origin = MirrorOrigin(registry(), tmp_path, clock, lambda: 1000.0)
    connection = FakeConnection()
    target = b"/-/mirrors/main/next?after=7"
    origin.handle(Request(cast(Any, connection), b"GET", target, {}))
    clock.advance(24.0)
    assert not connection.status
    clock.advance(2.0)
    assert (connection.status, json.loads(connection.body)["latest"]) == (200, 7)


@pytest.mark.parametrize("sent_at", ['"1000"', "true", "null", "1" + "0" * 400, "[]", "{}"])
def test_a_time_that_is_none_is_refused(sent_at: str) -> None:
    body, signature = encode_report(said("one", at=1000.0), "s1")
    with pytest.raises(BadManifest):
        decode_report(body.replace(b"1000.0", sent_at.encode()), signature, SECRETS.get, 1000.0)


def test_a_mirror_that_moves_keeps_its_secret_and_no_url_is_taken_unseen(tmp_path: Path) -> None:
    (tmp_path / ".state").mkdir()
    secret = admit(tmp_path, "one", "https://one.test/pub")
    assert admit(tmp_path, "one", "https://new.test/pub", "https://relay.test/") == secret
    assert admit(tmp_path, "two", "https://two.test/") != secret
    with pytest.raises(RepositoryProblem, match="'relay' is not the"):
        admit(tmp_path, "one", "https://one.test/pub", "relay")
    assert read_admitted(tmp_path)["one"].url == "https://new.test/pub/"

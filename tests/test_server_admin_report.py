"""The report of a period: what the store knows of it, in figures, words, CSV and by a link."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.admin_site import Browser, Site, make_site, operator, stop
from tests.test_server_admin_pages import MEASURES, api, crowd
from tidegate.loadtest.sim import preview
from tidegate.policies.settings import PolicySettings
from tidegate.server.admin.policy import PAGE
from tidegate.server.admin.previews import _encoded
from tidegate.server.admin.render import moment
from tidegate.server.admission.client_programs import program_name
from tidegate.server.admission.rules import Rule
from tidegate.server.control import report
from tidegate.server.control.report import Beside, Peak, Report, sentences
from tidegate.server.store import reports
from tidegate.server.store.records import ArrivalRecord
from tidegate.server.store.reports import Count

PEAKS = ("peak_people", "peak_goodput", "longest_wait")
#: The files stand in the CSV as what they were begun, complete and sent.
NAMES = {field.name for field in fields(Report)} - {"files"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    found = make_site(tmp_path, monkeypatch)
    yield found
    stop(found)


@pytest.fixture
def browser(site: Site) -> Browser:
    return operator(site)


def rush(site: Site, count: int) -> str:
    """A crowd came and was recorded; the query of a report that has it."""
    since_s = site.server.now() - 1.0
    crowd(site, count)
    site.download("198.51.100.7", user_agent="curl/8.5.0")
    site.wait(70.0)
    site.settle()
    return f"since_s={since_s}&until_s={site.server.now() + 60.0}"


def test_a_period_is_told_in_figures_and_words(site: Site, browser: Browser) -> None:
    answer = api(browser, "GET", f"/report?{rush(site, 8)}")
    found = answer["figures"]
    assert (found["downloads"], found["clients"]) == (9, 9)
    assert found["programs"] == [{"name": "tidegate", "count": 8}, {"name": "curl", "count": 1}]
    assert [(one["name"], one["count"]) for one in found["networks"]] == [
        ("203.0.113.0/24", 8),
        ("198.51.100.0/24", 1),
    ]
    assert found["peak_people"]["value"] == 8
    assert [(one["path"], one["begun"]) for one in found["files"]] == [("/big.iso", 1)]
    assert answer["words"][0] == "9 clients asked for 9 downloads of large files."
    assert any("8 people were waiting." in one for one in answer["words"])
    assert answer["comparison"]["state"] == "too-few"
    day = f"since_s={site.server.now() - 86_400}&until_s={site.server.now() + 60}"
    page = browser.text(f"/report?{day}")
    assert "Too few arrivals to compare with nginx" in page
    line = max(re.findall(r'<polyline class="line c1" points="([^"]+)"', page), key=len)
    assert len(line.split()) > 5, "a young server's charts show more than a dot"


def test_a_report_is_of_the_files_that_fit(site: Site, browser: Browser) -> None:
    span = rush(site, 3)
    for path, downloads in (("/big*", 4), ("/43.0/", 0), ("/big.iso", 4)):
        found = api(browser, "GET", f"/report?{span}&path={path}")["figures"]
        assert (found["downloads"], len(found["files"])) == (downloads, bool(downloads)), path


def test_the_same_arrivals_are_simulated_once_beside_a_plain_server(
    site: Site, browser: Browser
) -> None:
    asked: list[dict[str, Any]] = []

    async def simulate(encode: Callable[[], bytes]) -> bytes:
        asked.append(json.loads(encode()))
        slow = MEASURES | {"session_mean_s": 1200.0, "abandoned": 0}
        return json.dumps({"jobs": 31, "sides": [MEASURES, slow]}).encode()

    site.admin.previews.runner = simulate
    span = rush(site, PAGE.compared_least)
    for _ in range(3):
        found = api(browser, "GET", f"/report?{span}")
    assert [len(one["arrivals"]) for one in asked] == [PAGE.compared_least + 1]
    assert [side["policy"] for side in asked[0]["sides"]] == ["ticket", "ps"]
    assert found["comparison"]["found"]["nginx_s"] == 1200.0
    assert found["words"][-1] == (
        "Simulated with the same 31 downloads: 5 min in the mean from arrival to the last byte "
        "here, 20 min with nginx, where all share the line at once. 3 leave without their file "
        "here, 0 there."
    )
    page = browser.text(f"/report?{span}")
    assert "Beside nginx, simulated" in page
    assert 'http-equiv="refresh"' not in page


def test_a_page_that_waits_for_the_simulator_renews_its_report(
    site: Site, browser: Browser
) -> None:
    over: Deferred[bytes] = Deferred()

    async def simulate(_encode: Callable[[], bytes]) -> bytes:
        return await over

    site.admin.previews.runner = simulate
    span = rush(site, PAGE.compared_least)
    page = browser.text(f"/report?{span}")
    assert 'hx-select="#report"' in page
    assert '<noscript><meta http-equiv="refresh"' in page, "a bare one takes the page from readers"
    over.callback(json.dumps({"jobs": 31, "sides": [MEASURES, MEASURES]}).encode())
    assert "hx-select" not in browser.text(f"/report?{span}")


def test_the_simulator_plays_a_plain_server() -> None:
    rows = [[float(at), f"192.0.2.{at}#a", "/a", 4_000_000, 1e6] for at in range(40)]
    settings = PolicySettings().model_dump()
    request = {"workload": "recorded", "arrivals": rows, "sides": [{"settings": settings}]}
    workload = preview.population(request)
    played = {name: preview.play(workload, name, settings, 1e6) for name in ("fair", "ps")}
    means = {name: one.figures["mean_session_s"] for name, one in played.items()}
    assert 4.0 < means["fair"] < means["ps"]


def test_a_link_shows_the_report_to_strangers_until_it_expires(
    site: Site, browser: Browser
) -> None:
    span = dict(pair.split("=") for pair in rush(site, 3).split("&"))
    page = browser.post("/report/share", {**span, "path": "", "days": "2"})
    assert page.status == 200
    link = api(browser, "POST", "/report/links", **{n: float(v) for n, v in span.items()}, days=2)
    assert link["path"] in page.body.decode()
    stranger = Browser(site, peer="192.0.2.99")
    shown = stranger.text(link["path"])
    assert "4 clients asked for 4 downloads" in shown
    assert "203.0.113.0" not in shown, "networks are only counted"
    assert "2 networks" in shown
    assert "/queue" not in shown, "it leads nowhere else"
    assert stranger.get("/report").status == 303, "the rest needs a login"
    forged = link["path"][:-3] + "abc"
    assert stranger.get(forged).status == 404
    assert stranger.get("/report/shared/x").status == 404
    site.reactor.advance(2 * 86_400 + 1)
    late = stranger.get(link["path"])
    assert late.status == 404
    assert b"expired" in late.body


def test_links_that_are_ended_show_nothing(site: Site, browser: Browser) -> None:
    old = api(browser, "POST", "/report/links", days=2)["path"]
    stranger = Browser(site, peer="192.0.2.99")
    assert stranger.get(old).status == 200
    assert browser.post("/report/links/end", {}).status == 303
    assert stranger.get(old).status == 404
    new = api(browser, "POST", "/report/links", days=2)["path"]
    assert stranger.get(new).status == 200
    api(browser, "DELETE", "/report/links")
    assert [stranger.get(link).status for link in (old, new)] == [404, 404]


def test_a_period_that_is_to_come_is_told_in_its_order(site: Site, browser: Browser) -> None:
    now = site.server.now()
    page = browser.text(f"/report?since_s={now + 86_400.0}&until_s={now + 2 * 86_400.0}")
    first, last = re.search(r'class="lead">(.*?) to (.*?), UTC', page).groups()  # type: ignore[union-attr]
    assert (first, last) == (moment(now + 86_400.0), moment(now + 2 * 86_400.0))


def test_a_report_leaves_as_csv(site: Site, browser: Browser) -> None:
    answer = browser.get(f"/report.csv?{rush(site, 3)}")
    rows = [tuple(row) for row in csv.reader(io.StringIO(answer.body.decode()))]
    assert rows[0] == ("what", "name", "value")
    assert ("programs", "curl", "1") in rows
    assert ("networks", "203.0.113.0/24", "3") in rows
    assert ("begun", "/big.iso", "1") in rows
    assert {row[0] for row in rows[3:]} - {f"{name}_at" for name in PEAKS} == NAMES


def test_lists_are_bounded_and_their_counts_are_of_all(
    site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients choose the names of their programs, and may come from any number of networks."""
    monkeypatch.setattr(reports, "LISTED", 2)
    since_s = site.server.now() - 1.0
    for number in range(5):
        site.download(f"198.51.{number}.7", user_agent=f"program{number}/1")
    rush(site, 0)
    found = api(browser, "GET", f"/report?since_s={since_s}&until_s={site.server.now()}")["figures"]
    assert (found["program_count"], found["network_count"]) == (6, 6)
    assert (len(found["programs"]), len(found["networks"])) == (2, 2)
    assert found["downloads"] == found["clients"] == 6


def test_a_report_that_is_loaded_again_is_read_once(
    site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = rush(site, 3)
    reads = []
    monkeypatch.setattr(
        report, "read_period", lambda *given: reads.append(1) or reports.read_period(*given)
    )
    for path in ("/report", "/api/v1/report", "/report.csv"):
        assert browser.get(f"{path}?{span}").status == 200
    assert len(reads) == 1
    site.wait(60.0)
    assert browser.get(f"/report?{span}").status == 200
    assert len(reads) == 2


def test_a_request_to_the_simulator_has_every_arrival() -> None:
    arrivals = [ArrivalRecord(float(at), f"192.0.2.{at}#a", "/ä", at) for at in range(1_201)]
    found = json.loads(_encoded({"workload": "recorded"}, arrivals))
    assert found.pop("arrivals") == [[a.at_s, a.client, "/ä", a.size_bytes, None] for a in arrivals]
    assert found == {"workload": "recorded"}
    assert json.loads(_encoded({"workload": "exp1"}, []))["arrivals"] == []


def test_a_release_that_had_its_hour_is_offered(site: Site, browser: Browser) -> None:
    hour_s = site.server.now() - 7200
    hour = datetime.fromtimestamp(hour_s, UTC)
    site.server.rules.configure([Rule(path="/43.0/*", hidden_until=hour)])
    api(browser, "PUT", "/rules", path="/44.0/*", hidden_until_s=site.server.now() + 7200)
    place = dict(browser.get("/report").headers)["location"]
    page = browser.text(place)
    assert f"/report?since_s={hour_s:.0f}" in page
    assert "Release /43.0/*" in page
    assert "/44.0/*" not in page
    assert "Nothing is recorded of this time." in page


def test_a_bad_period_is_refused_beside_what_was_typed(browser: Browser) -> None:
    answer = browser.post(
        "/report/share", {"since_s": "2000000000", "until_s": "1000000000", "days": "7"}
    )
    assert answer.status == 422
    assert b"The end must be after the start." in answer.body
    assert browser.get("/report?since_s=2000000000&until_s=1000000000").status == 422
    # A day before that is before 1970: no page may lead to itself.
    place = dict(browser.get("/report?until_s=60").headers)["location"]
    assert browser.get(place).status == 200


def test_words_count_one_and_none() -> None:
    quiet = Report(
        clients=1,
        downloads=1,
        begun=0,
        complete=0,
        sent_bytes=0,
        peak_people=None,
        peak_goodput=Peak(30.0, 1e6),
        longest_wait=None,
        ends_judged=4,
        ends_kept=3,
        end_error=None,
        small=0,
        refused=1,
        faults=0,
        file_count=0,
        program_count=1,
        network_count=1,
        files=[],
        programs=[Count("curl", 1)],
        networks=[Count("192.0.2.0/24", 1)],
    )
    assert sentences(quiet, Beside(30, 60.0, 90.0, 0, 0), moment) == [
        "1 client asked for 1 download of large files.",
        "Nobody waited in the queue.",
        "3 of 4 told ends were kept (75 %): the last byte came before the told bound.",
        "1 request was refused. No fault was logged.",
        "Simulated with the same 30 downloads: 60 s in the mean from arrival to the last byte "
        "here, 2 min with nginx, where all share the line at once.",
    ]
    assert Beside(30, 160.0, 185.0, 0, 0).spans == ("160 s", "185 s"), "both are 3 min"


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (b"curl/8.5.0", "curl"),
        (b"Debian APT-HTTP/1.3 (2.6.1)", "Debian APT-HTTP"),
        (b"ZYpp 17.31 (curl 8.0)", "ZYpp"),
        (b"Mozilla/5.0 (X11; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox"),
        (b"Mozilla/5.0 (KHTML, like Gecko) Chrome/126.0 Safari/537.36 Edg/126.0", "Edge"),
        (b"Mozilla/5.0 (KHTML, like Gecko) Version/17.0 Safari/605.1", "Safari"),
        (b"<b>x</b>/1", "unknown"),
        (b"", "unknown"),
        (b"A" * 200, "A" * 32),
    ],
)
def test_a_program_is_called_by_its_product(agent: bytes, name: str) -> None:
    assert program_name(agent) == name

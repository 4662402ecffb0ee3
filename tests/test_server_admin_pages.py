"""What the pages show and do on a real server, driven like a browser without scripts."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markupsafe import escape
from twisted.internet.defer import fail
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher

from tests.admin_site import NOW, Browser, Site, make_site, operator, stop
from tests.fakes import FakeConnection
from tidegate.loadtest.trace import from_trace
from tidegate.policies.contract import Estimate, Snapshot, Wait
from tidegate.policies.settings import PolicySettings, one_line
from tidegate.protocol.units import format_duration
from tidegate.server.admin.charts import (
    CHARTS,
    LEADING,
    from_first_value,
    recorded_since,
    show,
)
from tidegate.server.admin.forms import ADVANCED, MAIN, WORDS, in_words
from tidegate.server.admin.now import state_of
from tidegate.server.admin.policy import PAGE
from tidegate.server.admin.turns import LoopTurns
from tidegate.server.admission.leases import TICK_S
from tidegate.server.admission.responses import Notice
from tidegate.server.admission.rules import Rule
from tidegate.server.app.run import introduction
from tidegate.server.control.branding import STATES
from tidegate.server.control.history import SERIES, Series
from tidegate.server.control.revisions import diff
from tidegate.server.control.vitals import Health
from tidegate.server.gate.moves import Moves
from tidegate.server.http.phrases import LANGUAGES, Phrases
from tidegate.server.http.request import Request
from tidegate.server.store.store import StoreState

EVIL = "<img src=x onerror=alert(1)>\"'.iso"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    found = make_site(tmp_path, monkeypatch)
    yield found
    stop(found)


@pytest.fixture
def browser(site: Site) -> Browser:
    return operator(site)


def crowd(site: Site, count: int = 8) -> None:
    """One downloads, the others wait."""
    for number in range(count):
        site.download(f"203.0.113.{number + 1}")


def api(browser: Browser, method: str, path: str, /, **body: Any) -> Any:
    sent = {"content_type": "application/json", "x_csrf_token": browser.token, "if_match": "*"}
    given = json.dumps(body).encode() if body else b""
    answer = browser.ask(method, f"/api/v1{path}", body=given, headers=sent)
    assert answer.status < 400, answer.body
    return json.loads(answer.body) if answer.body else None


def test_a_server_without_its_folder_is_not_ready(site: Site, browser: Browser) -> None:
    def ready() -> list[int | None]:
        seen = FakeConnection("203.0.113.1")
        site.service.site(Request(seen, b"GET", b"/-/ready", {}))  # type: ignore[arg-type]
        return [seen.status, browser.ask("GET", "/-/ready").status]

    folder = Path(os.fsdecode(site.service.tree.root))
    assert ready() == [200, 200]
    shutil.rmtree(folder)
    assert ready() == [503, 503]
    folder.mkdir()
    assert ready() == [200, 200]


class Slow:
    """Tells the reactor's time; each look at it takes a millisecond."""

    def __init__(self, site: Site) -> None:
        self._reactor = site.reactor
        self.turns = 0

    def callLater(self, *call: Any) -> Any:
        self.turns += 1
        return self._reactor.callLater(*call)

    def seconds(self) -> float:
        self._reactor.rightNow += 0.001
        return self._reactor.seconds()


def test_others_have_turns_while_a_page_is_written_out(site: Site, browser: Browser) -> None:
    whole = browser.text("/queue")
    slow = Slow(site)
    site.admin.turns = LoopTurns(slow)
    assert browser.text("/queue") == whole
    # A piece takes a millisecond, a turn three.
    assert slow.turns > 20


def test_others_have_turns_while_a_crowd_is_counted(site: Site, browser: Browser) -> None:
    for number in range(40):
        site.download(f"192.0.2.{number}")
    slow = Slow(site)
    site.admin.turns = LoopTurns(slow)
    groups = api(browser, "GET", "/queue/groups")["groups"]
    assert sum(one["running"] + one["ready"] + one["waiting"] for one in groups) == 40
    assert slow.turns > 10


def test_others_have_turns_while_the_languages_are_read(
    site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, read_at = Slow(site), []
    site.admin.turns = LoopTurns(slow)

    class Counting(Phrases):
        def __init__(self, language: str = "en") -> None:
            read_at.append(slow.turns)
            super().__init__(language)

    monkeypatch.setattr("tidegate.server.admin.waiting.Phrases", Counting)
    browser.text("/waiting")
    assert len(read_at) >= len(LANGUAGES)
    assert len(set(read_at)) > 10


# -- the headline ----------------------------------------------------------------------------


def snapshot(**changes: Any) -> Snapshot:
    """A busy server's snapshot."""
    counts = dict.fromkeys(("paused", "early_polls_total", "refused_total"), 0)
    totals = ("offers", "admitted_small", "admitted_large", "completed")
    counts |= {f"{name}_total": 9 for name in (*totals, "tickets_issued", "tickets_expired")}
    found = Snapshot(
        policy="ticket",
        mode="ticket",
        slots=36,
        large_slots=30,
        small_active=2,
        large_active=30,
        waiting=212,
        ready=24,
        ready_target=33,
        no_show_fraction=0.05,
        last_wait=Estimate(840.0, 1020.0),
        eta_within_p90=0.91,
        eta_median_error=0.11,
        **counts,
    )
    return replace(found, **changes)


HEALTH = Health("1", NOW)


@pytest.mark.parametrize(
    ("changes", "tone", "headline", "more"),
    [
        (
            {},
            "queueing",
            "236 people are waiting. The last starts in about 14 min.",
            "24 of them are ready to start. 0 of 36 slots free, 4 kept for small files.",
        ),
        # Five people wait, four of them ready: nobody is "called and on the way".
        (
            {"waiting": 1, "ready": 4, "slots": 6, "large_slots": 6, "large_active": 2},
            "queueing",
            "5 people are waiting. The last starts in about 14 min.",
            "4 of them are ready to start. 0 of 6 slots free, 2 kept for those who are ready.",
        ),
        (
            {"waiting": 0, "ready": 2, "last_wait": None},
            "queueing",
            "2 people are waiting.",
            "2 of them are ready to start. 0 of 36 slots free, 4 kept for small files.",
        ),
        (
            {"waiting": 0, "ready": 0, "small_active": 0, "large_active": 0, "last_wait": None},
            "calm",
            "Quiet",
            "30 of 36 slots free, 6 kept for small files.",
        ),
        (
            {"waiting": 0, "ready": 0, "last_wait": None},
            "busy",
            "Full, and nobody waits",
            "0 of 36 slots free, 4 kept for small files. The next large download waits.",
        ),
        # Clients ask again and again, and no figure counts them.
        (
            {"waiting": 0, "ready": 0, "last_wait": None, "mode": "reserve"},
            "busy",
            "Full: clients are told to come back",
            "0 of 36 slots free, 4 kept for small files. This policy has no queue.",
        ),
        # Three downloads that use too little of a slot, or will, run beside the 30 that have one.
        (
            {"waiting": 1, "ready": 0, "large_active": 33, "slotless": 2, "doubted": 1},
            "queueing",
            "1 person is waiting. The last starts in about 14 min.",
            "0 of 36 slots free, 4 kept for small files.",
        ),
        (
            {"waiting": 27, "ready": 0, "link_bound": True, "paused": 31, "slots": 4096},
            "queueing",
            "58 people are waiting. The last starts in about 14 min.",
            "31 of them are paused after the start. 1 download is running.",
        ),
        (
            {"waiting": 0, "ready": 0, "link_bound": True, "paused": 26, "slots": 4096},
            "queueing",
            "26 people are waiting: all downloads have begun.",
            "26 of them are paused after the start. 6 downloads are running.",
        ),
    ],
)
def test_the_headline_counts_all_who_wait_and_only_slots_that_are_free(
    changes: dict[str, Any], tone: str, headline: str, more: str
) -> None:
    state = state_of(snapshot(**changes), HEALTH)
    assert (state.tone, state.headline, state.more) == (tone, headline, more)


def test_the_headline_says_what_is_wrong_and_what_multicast_does() -> None:
    ill = state_of(snapshot(), replace(HEALTH, store_degraded=True, store_fault="disk full"))
    assert ill.tone == "alarm"
    assert "disk full" in ill.more
    assert state_of(snapshot(), replace(HEALTH, draining=True)).headline == "Draining"
    quiet = snapshot(waiting=0, ready=0, small_active=0, large_active=0, last_wait=None)
    found = state_of(replace(quiet, link_bound=True), HEALTH)
    assert (found.headline, found.more) == ("Quiet", "No download is running.")
    sending = state_of(quiet, replace(HEALTH, multicast_receivers=3))
    assert sending.headline == "Sending by multicast"
    assert "Multicast reaches 3 receivers." in sending.more


def test_page_api_and_metrics_say_the_same(site: Site, browser: Browser) -> None:
    crowd(site)
    found = api(browser, "GET", "/state")
    assert found["headline"].startswith("7 people are waiting")
    assert found["headline"] in browser.text("/")
    text = Browser(site, peer="127.0.0.1", host="127.0.0.1").text("/metrics")
    tickets = {
        m[1]: float(m[2]) for m in re.finditer(r'tidegate_tickets{state="(\w+)"} (\S+)', text)
    }
    assert tickets == {"waiting": found["waiting"], "ready": found["ready"]}


@pytest.mark.parametrize("seconds", [0.2, 59, 89, 90, 100, 840, 5399, 5400, 7500, 172_799, 2e5])
def test_a_duration_is_the_same_for_visitor_and_operator(seconds: float) -> None:
    """The numbers and units are the same; the visitor's are written as the language has them."""
    told = Phrases("en").time(seconds)
    amounts = re.compile(r"(\d+)\s([a-z])")
    assert amounts.findall(told) == amounts.findall(format_duration(seconds)) != []
    # Only between two units may a line end.
    assert told.count(" ") == format_duration(seconds).count(" ") // 2
    assert show(seconds, "s") == format_duration(seconds)


def test_numbers_are_written_for_people() -> None:
    assert show(12.5e6, "bit_s") != show(12.5e6 * 8, "bit_s")
    assert show(100e6 / 8 * 8, "bit_s") == "100 Mbit/s"
    assert show(0.913, "share") == "91 %"
    assert show(None, "s") == "–"


# -- the overview ----------------------------------------------------------------------------


def test_the_overview_draws_every_chart_without_a_script(site: Site, browser: Browser) -> None:
    crowd(site)
    site.wait(30.0)
    page = browser.text("/")
    assert page.count("<svg viewBox") >= len(CHARTS)
    assert "7 people are waiting" in page
    assert all(name in SERIES for chart in CHARTS for name in chart.lines)


def test_downloads_without_a_slot_count_beside_the_slots(
    site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = snapshot(large_active=33, slotless=2, doubted=1)
    monkeypatch.setattr(site.service.gate, "snapshot", lambda: seen)
    page = browser.text("/now")
    assert "<dd>32 <small>of 36, and 3 without a slot</small></dd>" in page
    assert ">30 large (at most 30)</li>" in page
    assert ">3 without a slot</li>" in page
    assert ">4 not in use</li>" in page


def test_a_gate_shows_the_end_reports_that_it_lost(site: Site, browser: Browser) -> None:
    assert "End reports lost" not in browser.text("/now")
    moves = Moves(Clock(), lambda name: None, lambda count: None, random.Random(1), 15.0)
    moves.counts.reported, moves.counts.unreported = 40, 3
    site.server.vitals.movers = SimpleNamespace(moves=moves)  # type: ignore[assignment]
    assert "<dt>End reports lost</dt><dd>3 <small>of 43</small>" in browser.text("/now")


def test_an_empty_server_leads_until_somebody_came(site: Site, browser: Browser) -> None:
    page = browser.text("/")
    assert "First steps" in page
    assert re.search(r">\d files? (is|are) served</span>|>no file yet</span>", page)
    for state in ("not found yet", "nothing hidden", "not tried yet"):
        assert f">{state}</span>" in page, state
    assert "tidegate loadtest --host" in page
    api(browser, "PUT", "/rules", path="/43.0/*", hidden_until_s=NOW + 86_400)
    api(browser, "PATCH", "/settings", settings={"bandwidth_bytes_s": 5e6})
    steps = browser.text("/now")
    assert "/43.0/* opens 2030-" in steps
    assert ">at most 40 Mbit/s</span>" in steps
    site.download("203.0.113.1")
    assert "1 download so far" in browser.text("/now")
    site.download("203.0.113.2")
    assert "First steps" not in browser.text("/now"), "somebody waits"


def test_the_first_steps_tell_the_line_that_was_found(site: Site, browser: Browser) -> None:
    site.service._line.pacer.set_bandwidth(4e6)
    assert ">32 Mbit/s found</span>" in browser.text("/now")


def test_the_first_steps_do_not_come_back_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch)
    site.service.gate.parts.popularity.count("/big.iso", 30, 30, 30)
    site.wait(70.0)
    site.settle()
    browser = operator(site)
    stop(site)
    again = make_site(tmp_path, monkeypatch)
    try:
        browser.site = again
        assert "First steps" not in browser.text("/")
    finally:
        stop(again)


def test_what_is_empty_folds_and_what_matters_leads(site: Site, browser: Browser) -> None:
    crowd(site, 3)
    site.wait(30.0)
    page = browser.text("/")
    titles = [chart.title for chart in CHARTS]
    assert titles[:LEADING] == ["People in line", "Goodput"]
    assert page.index(">People in line") < page.index(">Goodput") < page.index(">Downloads<")
    shown, _, folded = page.partition('<details class="folded">')
    assert 'id="chart-held"' in folded
    assert 'id="chart-goodput"' in shown, "also while nothing is sent"
    assert 'id="chart-queue"' in shown
    assert "None yet: promises judged, clients held, multicast" in page


def test_the_queue_is_grouped_by_file_and_program_and_opens_to_rows(
    site: Site, browser: Browser
) -> None:
    crowd(site, 4)
    for number in range(6):
        site.download(f"198.51.100.{number + 1}", "/a%20b.iso", user_agent="curl/8.5.0")
    found = api(browser, "GET", "/queue/groups")
    counts = [
        (one["file"], one["program"], one["running"], one["ready"] + one["waiting"])
        for one in found["groups"]
    ]
    assert counts == [("/a%20b.iso", "curl", 0, 6), ("/big.iso", "tidegate", 1, 3)]
    page = browser.text("/queue")
    assert "/queue?tab=tickets&amp;q=/a%2520b.iso" in page
    zeros = len(re.findall('class="n zero">0<', page))
    assert (zeros, page.count('class="n">0<')) == (3, 0), "a phone shows no zeros"
    rows = browser.text("/queue?tab=tickets&q=/a%2520b.iso")
    assert "1–6 of 6" in rows
    assert ">Ready<" in page
    gate = site.service.gate
    gate.apply("fair", gate.settings)
    site.wait(2.0)
    # Without slots all who wait are ready, and start when the line has use for them.
    assert not re.search(r"\d ready|ready to start", browser.text("/"))
    for address in ("/queue", "/queue?tab=tickets", "/queue?tab=tickets&state=waiting"):
        page = browser.text(address)
        assert ">ready<" not in page.lower()
        assert "/a%20b.iso" in page, address
    state = api(browser, "GET", "/state")
    assert (state["waiting"], state["ready"]) == (9, 0)
    assert not site.server.vitals.readiness().free
    assert [one["file"] for one in api(browser, "GET", "/queue/groups?q=curl")["groups"]] == [
        "/a%20b.iso"
    ]


def test_a_line_that_is_never_above_zero_is_not_in_its_chart(site: Site, browser: Browser) -> None:
    crowd(site, 3)
    site.wait(20.0)
    site.settle()
    chart = browser.text("/").partition('id="chart-queue"')[2].partition("</figcaption>")[0]
    assert re.findall(r"<li class=.k\d.>([^<]+)<", chart) == ["waiting, begun or not", "ready"]
    assert not any(json.loads(browser.text("/history"))["queue"][3]), "nothing is paused"


def test_the_charts_are_fetched_as_columns(site: Site, browser: Browser) -> None:
    crowd(site, 3)
    site.wait(20.0)
    site.settle()
    columns = json.loads(browser.text("/history?span=15m"))
    assert set(columns) == {chart.name for chart in CHARTS}
    assert max(filter(None, columns["queue"][1])) == 2.0
    assert len({len(column) for column in columns["queue"]}) == 1


def test_the_past_leaves_as_csv(site: Site, browser: Browser) -> None:
    crowd(site)
    site.wait(60.0)
    site.settle()
    since, until = int(NOW), int(site.server.now())
    answer = browser.get(f"/api/v1/history.csv?since_s={since}&until_s={until}&points=10")
    assert dict(answer.headers)["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert set(rows[0]) == {"time", *SERIES}
    assert max(float(row["waiting"] or 0) for row in rows) > 0
    bad = browser.get(f"/api/v1/history.csv?since_s={until}&until_s={since}")
    assert bad.status == 422


def test_the_crowd_leaves_as_arrivals_that_name_nobody(site: Site, browser: Browser) -> None:
    crowd(site, 3)
    site.wait(20.0)
    site.settle()
    answer = browser.get("/api/v1/arrivals?span_s=3600")
    assert b"203.0.113" not in answer.body
    found = json.loads(answer.body)["arrivals"]
    assert [one["client"] for one in found] == ["c0", "c1", "c2"]
    assert {one["file"] for one in found} == {"big.iso"}
    lines = [json.dumps(one) for one in found]
    played = from_trace(lines, bandwidth_bytes_s=1e6)
    assert [visitor.files[0].name for visitor in played.visitors] == ["big.iso"] * 3
    assert len(json.loads(browser.get("/api/v1/arrivals?limit=1").body)["arrivals"]) == 1


def test_a_young_server_is_drawn_from_its_first_value() -> None:
    t = tuple(float(15 * step) for step in range(240))
    late = Series(t, {"waiting": (None,) * 200 + (1.0,) * 40, "ready": (None,) * 240})
    found = from_first_value(late)
    assert found.t == t[200:]
    assert found.series["waiting"] == (1.0,) * 40
    last = from_first_value(Series(t, {"waiting": (None,) * 239 + (1.0,)}))
    assert len(last.t) == len(last.series["waiting"]) == 8
    # "Recorded since" is not the beginning of the picture, which has some steps at least.
    assert Series(t, {"waiting": (None,) * 239 + (1.0,)}).first_value == 239
    assert from_first_value(Series(t, {"waiting": (1.0,) + (None,) * 239})).t == t
    assert from_first_value(Series(t, {"waiting": (None,) * 240})).t == t
    assert from_first_value(Series((), {})).t == ()


def test_recorded_since_is_not_before_the_server_started() -> None:
    t = tuple(3600.0 * step + 1800 for step in range(24))
    young = Series(t, {"waiting": (None,) * 23 + (1.0,)})
    # The last step reaches from 82 800 to 86 400.
    assert recorded_since(young, 85_000.0) == 85_000.0
    assert recorded_since(young, 83_000.0) == 83_000.0
    # It started anew, and an earlier run was recorded.
    earlier = Series(t, {"waiting": (None,) * 3 + (1.0,) * 21})
    assert recorded_since(earlier, 85_000.0) == t[3]
    assert recorded_since(Series(t, {"waiting": (1.0,) * 24}), 85_000.0) is None
    assert recorded_since(Series(t, {"waiting": (None,) * 24}), 85_000.0) is None


def test_a_fault_is_told_in_words(browser: Browser) -> None:
    bad = browser.post("/files/rule", {"path": "no-slash"})
    page = bad.body.decode()
    assert bad.status == 422
    assert "Does not fit: A pattern with * and ?; it starts with a slash" in page
    assert "x1f" not in page


def test_static_files_are_kept_by_browsers_for_ever(browser: Browser) -> None:
    page = browser.text("/")
    for part in page.split('"'):
        if part.startswith("/static/"):
            answer = browser.get(part)
            assert answer.status == 200
            assert "immutable" in dict(answer.headers)["cache-control"]
    assert browser.get("/static/..%2f..%2fsetup.cfg").status == 404


def test_stored_names_never_become_markup(site: Site, browser: Browser) -> None:
    for number in range(3):
        site.download(f"203.0.113.{number}", f"/{EVIL}", user_agent=EVIL)
    (site.service.config.directory / EVIL).write_bytes(b"x")
    api(browser, "PUT", "/rules", path=f"/{EVIL}", note=EVIL)
    site.server.events.add("x", EVIL, who=EVIL)
    site.settle()
    leases = api(browser, "GET", "/downloads")["leases"]
    pages = ["/", "/queue", "/queue?tab=tickets", "/files", "/log"]
    for path in (*pages, f"/queue/download/{leases[0]['lease']}/cancel"):
        page = browser.text(path)
        assert "<img src=x" not in page, path
        assert path == "/" or "&lt;img src=x" in page, path


# -- the queue -------------------------------------------------------------------------------


def test_search_and_paging_of_the_queue(site: Site, browser: Browser) -> None:
    crowd(site, 70)
    site.settle()
    assert "1–50 of 69" in browser.text("/queue?tab=tickets")
    assert "51–69 of 69" in browser.text("/queue?tab=tickets&offset=50")
    site.wait(1.0)
    number = api(browser, "GET", "/tickets")["tickets"][40]["number"]
    assert "1–1 of 1" in browser.text(f"/queue?tab=tickets&q={number}")
    assert "Nobody is waiting that fits" in browser.text("/queue?tab=tickets&q=nothing-such")
    places = [row["place"] for row in api(browser, "GET", "/tickets?offset=30")["tickets"]]
    assert places == list(range(31, 70))


@pytest.mark.parametrize("way", ["page", "api"])
@pytest.mark.parametrize("verb", ["cancel", "expire", "promote"])
def test_acts_on_the_queue_are_done_and_logged_once(
    site: Site, browser: Browser, verb: str, way: str
) -> None:
    crowd(site)
    lease = api(browser, "GET", "/downloads")["leases"][0]["lease"]
    number = api(browser, "GET", "/tickets")["tickets"][5]["number"]
    page, call = {
        "cancel": (f"/queue/download/{lease}/cancel", ("DELETE", f"/downloads/{lease}")),
        "expire": (f"/queue/ticket/{number}/expire", ("DELETE", f"/tickets/{number}")),
        "promote": (f"/queue/ticket/{number}/promote", ("POST", f"/tickets/{number}/promote")),
    }[verb]
    assert "No, go back" in browser.text(page)
    if way == "page":
        assert browser.post(page).status == 303
    else:
        api(browser, *call)
    tickets = [row["number"] for row in api(browser, "GET", "/tickets")["tickets"]]
    leases = [row["lease"] for row in api(browser, "GET", "/downloads")["leases"]]
    assert (lease in leases) is (verb != "cancel")
    if verb == "expire":
        assert number not in tickets
    if verb == "promote":
        assert tickets.index(number) <= 1
    if verb != "promote":
        assert browser.post(page).status == 404, "it is gone"
    assert site.kinds().count(verb) == 1


def test_blocking_an_address_cuts_it_and_lifting_lets_it_in(site: Site, browser: Browser) -> None:
    crowd(site)
    form = {"network": "203.0.113.77/24", "for_s": "2h", "note": "too fast"}
    assert browser.post("/queue/block", form).status == 303
    block = site.server.blocks.all()[0]
    assert block.network == "203.0.113.0/24"
    assert block.until_s == pytest.approx(site.server.now() + 7200, abs=1)
    assert api(browser, "GET", "/downloads")["total"] == 0
    assert api(browser, "GET", "/tickets")["total"] == 0
    assert "203.0.113.0/24" in browser.text("/queue?tab=blocks")
    assert site.download("203.0.113.9").status == 403
    assert browser.post("/queue/unblock", {"network": "203.0.113.0/24"}).status == 303
    assert site.server.blocks.all() == []
    site.server.blocks.add(replace(block, until_s=site.server.now() - 1.0))
    assert site.server.blocks.all() == [], "it is over"
    for bad in ({"network": "nowhere"}, {"network": "192.0.2.1", "for_s": "-3"}):
        refused = browser.post("/queue/block", bad)
        assert refused.status == 422
        assert b"Block an address" in refused.body, "the form is shown again"


@pytest.mark.parametrize("network", ["0.0.0.0/0", "64.0.0.0/7", "::/0", "2000::/3", "192.0.2.0/24"])
def test_a_block_of_everybody_or_of_oneself_is_asked_about(browser: Browser, network: str) -> None:
    form = {"network": network, "for_s": "2h", "note": ""}
    assert b"I am sure" not in browser.get("/queue/block").body
    refused = browser.post("/queue/block", form)
    assert refused.status == 422
    assert network in refused.body.decode()
    assert b'name="sure"' in refused.body
    assert api(browser, "GET", "/blocks") == {"blocks": []}
    assert browser.post("/queue/block", form | {"sure": "yes"}).status == 303
    assert api(browser, "GET", "/blocks")["blocks"][0]["network"] == network


@pytest.mark.parametrize("network", ["8.0.0.0/8", "2400::/12", "10.1.2.3"])
def test_a_block_of_one_provider_is_not_asked_about(browser: Browser, network: str) -> None:
    assert browser.post("/queue/block", {"network": network}).status == 303


def test_a_rule_that_hides_until_a_time_in_the_past_is_refused(
    site: Site, browser: Browser
) -> None:
    form = {"path": "/43.0/*", "hidden_until_s": "2001-06-01T12:00"}
    refused = browser.post("/files/rule", form)
    assert refused.status == 422
    assert b"This time is past" in refused.body
    assert api(browser, "GET", "/rules")["rules"] == []
    opens_s = site.server.now() + 5
    api(browser, "PUT", "/rules", path="/43.0/*", hidden_until_s=opens_s)
    site.wait(10)
    changed = api(browser, "PUT", "/rules", path="/43.0/*", hidden_until_s=opens_s, note="was out")
    assert changed["note"] == "was out", "an old rule can be changed"
    form["hidden_until_s"] = datetime.fromtimestamp(opens_s, UTC).strftime("%Y-%m-%dT%H:%M")
    assert browser.post("/files/rule", form).status == 303, "also by a form, which has no seconds"


def test_a_fault_is_told_once_and_in_words(browser: Browser) -> None:
    page = browser.get("/report?since_s=2000000000&until_s=1000000000").body.decode()
    assert page.count("The end must be after the start.") == 1
    assert "until_s" not in page


def test_closed_doors_queue_everybody_and_open_in_order(site: Site, browser: Browser) -> None:
    site.download("192.0.2.1")
    form = {"closed": "yes", "text": "New disks.\r\n\r\nThen soup.", "opens_s": "2031-01-31T12:00"}
    assert browser.post("/queue/doors", form).status == 303
    late = site.download("192.0.2.2", accept="text/html", user_agent="Mozilla/5.0 Firefox/140.0")
    assert late.status == 503
    assert b'<p dir="auto" data-while="waiting">New disks.</p>' in late.body
    assert b'<p dir="auto" data-while="waiting">Then soup.</p>' in late.body
    resumes = "Downloads are expected to start again at 31 Jan 2031, 12:00 UTC.</p>"
    assert resumes in late.body.decode().replace("\N{NO-BREAK SPACE}", " ")
    assert b'data-live="expected"' not in late.body, "no wait is told while nobody starts"
    notice = Notice("/a", 5, Wait(5.0, 1, 1), "t", closed=True)
    german = site.service.waiting.page(notice, Phrases("de")).decode()
    assert "geht es weiter: 31.01.2031, 12:00 UTC" in german.replace("\N{NO-BREAK SPACE}", " ")
    assert site.download("192.0.2.1").status == 0, "what runs may take another connection"
    site.transfers[0].finish()
    site.transfers[1].finish()
    site.wait(10.0)
    found = api(browser, "GET", "/state")
    assert (found["large_active"], found["waiting"] + found["ready"]) == (0, 1)
    assert found["headline"] == "Doors closed: 1 person is waiting"
    assert found["tone"] == "alarm"
    assert "tidegate_doors_closed 1.0" in Browser(site, peer="127.0.0.1", host="127.0.0.1").text(
        "/metrics"
    )
    assert "New disks." in str(api(browser, "GET", "/doors"))
    api(browser, "PATCH", "/settings", policy="fair")
    assert site.download("192.0.2.3").status == 503, "a change of policy opens nothing"
    closed = browser.text("/queue")
    assert "Open the doors" in closed
    assert ">\nNew disks." in closed, "it can be changed"
    assert 'value="2031-01-31T12:00"' in closed
    assert found["last_wait"] is None
    api(browser, "PUT", "/doors", closed=False)
    assert site.download("192.0.2.2").status == 0, "it starts"
    assert "New disks." not in site.service.waiting.wording.announcement
    assert site.service.waiting.wording.resumes_s is None
    bell = browser.post("/queue/doors", {"closed": "yes", "text": "New\a disks."})
    assert bell.status == 422
    assert b"Control characters other than line breaks and tabs cannot be shown." in bell.body
    assert b">\nNew" in bell.body, "what was typed stands there again"
    assert site.kinds().count("doors") == 2


def test_closed_doors_stay_closed_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch)
    api(operator(site), "PUT", "/doors", closed=True, text="New disks.")
    stop(site)
    again = make_site(tmp_path, monkeypatch)
    try:
        assert again.download("192.0.2.2").status == 503
        assert again.service.waiting.wording.announcement == "New disks."
    finally:
        stop(again)


# -- the policy ------------------------------------------------------------------------------


def test_every_setting_is_in_the_form_under_a_name_for_people_with_its_effect_and_chart(
    browser: Browser,
) -> None:
    page = browser.text("/policy")
    charts = {chart.name for chart in CHARTS}
    assert WORDS.keys() == PolicySettings.model_fields.keys()
    for name, words in WORDS.items():
        assert page.count(f'name="s.{name}"') == 1, name
        assert f">{words.label}</label>" in page, name
        help_text = one_line(PolicySettings.model_fields[name].description)
        assert escape(in_words(help_text.replace("`", ""))) in page, name
        assert words.chart in charts, name
    assert not re.search(r'class="help">[^<]*\w_\w', page), "a name of the code"
    three, _, rest = page.partition("<summary>Advanced</summary>")
    assert [name for name in WORDS if f'name="s.{name}"' in three] == list(MAIN)
    assert all(f"<h2>{title}</h2>" in rest for title in ADVANCED if title != "LoopTurns")


def test_the_form_takes_and_shows_units_as_the_command_line_does(
    site: Site, browser: Browser
) -> None:
    form = filled(bandwidth_bytes_s="40Mbit", small_below_bytes="256kB", ticket_ttl_s="5m")
    assert browser.post("/policy", form).status == 303
    settings = site.service.gate.settings
    assert settings.bandwidth_bytes_s == 5_000_000.0
    assert (settings.small_below_bytes, settings.ticket_ttl_s) == (256_000, 300.0)
    page = browser.text("/policy")
    for text in ("40Mbit", "256kB", "5m"):
        assert f'value="{text}"' in page
    assert (
        'class="field changed"'
        not in browser.post(
            "/policy", filled(slots="0", small_below_bytes="256000", ticket_ttl_s="300s")
        ).body.decode()
    )


def test_adaptive_is_not_offered_but_is_taken_and_then_shown(browser: Browser) -> None:
    assert 'value="adaptive"' not in browser.text("/policy")
    assert browser.post("/policy", {**filled(slots="50"), "policy": "adaptive"}).status == 303
    assert 'value="adaptive" checked' in browser.text("/policy")


def filled(**changes: str) -> dict[str, str]:
    return {"policy": "ticket", "base": "1", "act": "apply"} | {
        f"s.{name}": value for name, value in changes.items()
    }


def test_applying_a_change_makes_a_revision_and_one_line_in_the_log(
    site: Site, browser: Browser
) -> None:
    form = {**filled(slots="50", class_weights="gold = 8"), "note": "more <b>room</b>"}
    assert browser.post("/policy", form).status == 303
    current = site.server.revisions.current
    assert (current.number, current.who, current.settings["slots"]) == (2, "admin", 50)
    assert site.service.gate.settings.slots == 50
    assert current.settings["class_weights"] == {"gold": 8.0}
    kinds = site.kinds()
    assert kinds.count("apply") == 1
    assert "policy" not in kinds
    page = browser.text("/policy/revisions")
    assert "more &lt;b&gt;room&lt;/b&gt;" in page
    assert "<strong>50</strong>" in page


def test_where_the_file_is_overridden_every_place_says_so(site: Site, browser: Browser) -> None:
    assert api(browser, "GET", "/settings/overrides")["overrides"] == []
    told = introduction(site.service, ["http://host:80"])
    assert "2 slots" in "\n".join(told)
    assert told[-1].endswith("get http://host:80/big.iso")
    api(browser, "PUT", "/rules", path="/big.iso", require_class="gold")
    told = introduction(site.service, ["http://host:80"])
    assert "big.iso" not in told[-1], "an example that a visitor may not have is none"
    assert "differ from the configuration" not in browser.text("/policy")
    browser.post("/policy", {**filled(slots="50"), "policy": "fair"})
    found = api(browser, "GET", "/settings/overrides")["overrides"]
    assert {(one["name"], one["configured"], one["in_force"]) for one in found} == {
        ("policy", "ticket", "fair"),
        ("slots", "2", "50"),
    }
    assert "differ from the configuration" in browser.text("/policy")
    banner = "\n".join(site.service.admin.introduction())
    assert "policy fair (file: ticket), slots 50 (file: 2)" in banner
    told = "\n".join(introduction(site.service, ["http://host:80"]))
    assert "What the line carries is found by measuring" in told
    assert "50 slots" not in told, "under fair they hold nobody back"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"slots": "0"}, "slots", "Must be at least 1"),
        ({"slots": "many"}, "slots", "Must be a whole number"),
        ({"ticket_ttl_s": "nan"}, "ticket_ttl_s", ""),
        ({"slots": " "}, "slots", "Must be a whole number"),
        ({"class_weights": "gold"}, "class_weights", "name = number"),
        ({"reserve_small": "99"}, "reserve_small", "leaves no slot"),
    ],
)
def test_a_bad_setting_is_named_kept_in_the_form_and_changes_nothing(
    site: Site, browser: Browser, changes: dict[str, str], field: str, words: str
) -> None:
    answer = browser.post("/policy", filled(**changes))
    page = answer.body.decode()
    assert answer.status == 422
    assert "Nothing was changed" in page
    assert f'href="#f-{field}"' in page
    assert words in page
    assert next(iter(changes.values())) in page
    assert site.server.revisions.current.number == 1


def test_a_setting_that_nobody_touched_is_not_marked_as_changed(browser: Browser) -> None:
    weights = "\r\n".join(
        f"{name} = {weight:g}" for name, weight in PolicySettings().class_weights.items()
    )
    page = browser.post("/policy", filled(slots="0", class_weights=weights)).body.decode()
    assert 'class="field wrong changed"' in page
    assert 'class="field changed"' not in page


def test_a_form_older_than_the_settings_is_refused(site: Site, browser: Browser) -> None:
    browser.post("/policy", filled(slots="50"))
    assert browser.post("/policy", filled(slots="60")).status == 412
    assert site.server.revisions.current.settings["slots"] == 50


MEASURES = {
    "wait_small_mean_s": 1.0,
    "wait_small_p95_s": 2.0,
    "wait_large_mean_s": 100.0,
    "wait_large_p95_s": None,
    "paused_large_mean_s": 3.0,
    "abandoned": 3,
    "attempts": 2.0,
    "slots_used": 20.0,
    "session_mean_s": 300.0,
    "picture_svg": "<svg xmlns='http://www.w3.org/2000/svg'/>",
}


def test_preview_shows_both_sides_and_applies(site: Site, browser: Browser) -> None:
    asked: list[dict[str, Any]] = []

    async def simulate(encode: Callable[[], bytes]) -> bytes:
        asked.append(json.loads(encode()))
        better = MEASURES | {"wait_large_mean_s": 60.0, "abandoned": 5.0}
        return json.dumps({"jobs": 7, "sides": [MEASURES, better]}).encode()

    site.admin.previews.runner = simulate
    form = {**filled(slots="50"), "act": "preview", "workload": "exp2"}
    place = dict(browser.post("/policy", form).headers)["location"]
    page = browser.text(place)
    assert "better" in page
    assert "worse" in page
    assert "<strong>5</strong>" in page, "people are counted in whole numbers"
    assert [side["settings"]["slots"] for side in asked[0]["sides"]] == [2, 50]
    assert site.server.revisions.current.number == 1, "a preview changes nothing"
    picture = browser.get(f"{place}/picture/after")
    assert dict(picture.headers)["content-type"] == "image/svg+xml"
    assert "sandbox" in dict(picture.headers)["content-security-policy"]
    assert "50" in browser.text(f"{place}/edit")
    assert browser.post(place, {"note": "as simulated"}).status == 303
    assert site.server.revisions.current.settings["slots"] == 50
    assert browser.post(place, {}).status == 412, "its base is no longer in force"


def test_a_preview_replays_who_came_or_says_that_too_few_did(site: Site, browser: Browser) -> None:
    asked: list[dict[str, Any]] = []

    async def simulate(encode: Callable[[], bytes]) -> bytes:
        asked.append(json.loads(encode()))
        return json.dumps({"jobs": 1, "sides": [MEASURES, MEASURES]}).encode()

    site.admin.previews.runner = simulate
    form = {**filled(slots="50"), "act": "preview", "workload": "recorded"}
    for come in (0, 4):
        crowd(site, come)
        site.wait(6.0)
        site.settle()
        answer = browser.post("/policy", form)
        assert answer.status == 409
        assert f"Too few arrivals to compare: {come} downloads".encode() in answer.body
    crowd(site, PAGE.compared_least)
    site.wait(6.0)
    site.settle()
    assert browser.post("/policy", form).status == 303
    assert len(asked[0]["arrivals"]) == PAGE.compared_least


@pytest.mark.parametrize(
    ("field", "status"), [(None, 428), ("", 412), ('"r9"', 412), ('"r9", "r1"', 200), ("*", 200)]
)
def test_a_program_says_which_settings_it_has_read(
    site: Site, browser: Browser, field: str | None, status: int
) -> None:
    sent = {"content_type": "application/json", "x_csrf_token": browser.token}
    sent |= {} if field is None else {"if_match": field}
    body = b'{"settings": {"slots": 9}}'
    assert browser.ask("PATCH", "/api/v1/settings", body=body, headers=sent).status == status
    assert site.server.revisions.current.number == (2 if status == 200 else 1)


def test_restoring_a_revision_makes_a_new_one(site: Site, browser: Browser) -> None:
    browser.post("/policy", filled(slots="50"))
    assert "<strong>2</strong>" in browser.text("/policy/revisions/1/restore")
    assert browser.post("/policy/revisions/1/restore", {"base": "2", "note": "back"}).status == 303
    current = site.server.revisions.current
    assert (current.number, current.settings["slots"], current.restored_from) == (3, 2, 1)
    assert browser.post("/policy/revisions/9/restore", {"base": "3"}).status == 404
    assert browser.post(f"/policy/revisions/{2**53 - 1}/restore", {"base": "3"}).status == 404
    assert browser.post(f"/policy/revisions/{2**64}/restore", {"base": "3"}).status in (404, 422)
    assert browser.post("/policy/revisions/1/restore", {"base": "2"}).status == 412
    assert "No setting differs" not in browser.text("/policy/revisions"), "there was none before"
    older = api(browser, "GET", "/revisions?before=3")["revisions"]
    assert [one["number"] for one in older] == [2, 1]


def test_diffs_name_what_changed() -> None:
    changes = diff("fcfs", {"slots": 1, "a": None}, "fair", {"slots": 2, "a": 3.5})
    assert [(c.name, c.before, c.after) for c in changes] == [
        ("policy", "fcfs", "fair"),
        ("slots", "1", "2"),
        ("a", "(none)", "3.5"),
    ]


# -- files and rules -------------------------------------------------------------------------


def test_rules_are_set_enforced_and_removed(site: Site, browser: Browser) -> None:
    form = {
        "path": "/42.1/*",
        "require_class": "gold",
        "treat_as": "large",
        "multicast": "no",
        "hidden_until_s": "2039-06-01T12:00",
        "prequeue_from_s": "2039-06-01T10:00",
    }
    assert browser.post("/files/rule", form).status == 303
    rule = site.server.rules.own[0]
    assert (rule.require_class, rule.multicast) == ("gold", False)
    assert rule.hidden_until is not None
    assert rule.prequeue_from is not None
    assert (rule.hidden_until - rule.prequeue_from).total_seconds() == 7200
    assert site.service.gate.parts.rules.verdict("/42.1/a").require_class == "gold"
    late = form | {"prequeue_from_s": form["hidden_until_s"]}
    assert browser.post("/files/rule", late).status == 422
    page = browser.post("/files/rule", form | {"path": "x"}).body.decode()
    assert 'value="x"' in page, "what was typed stays"
    assert '<option value="large" selected>' in page
    assert '<option value="no" selected>' in page
    assert 'value="2039-06-01T10:00"' in page
    page = browser.post("/files/rule", late).body.decode()
    assert 'aria-describedby="h-prequeue_from_s" aria-invalid="true"' in page
    assert browser.post("/files/rule", form | {"hidden_until_s": "soon"}).status == 422
    # No pass could have it, so nobody could ever download the file.
    page = browser.post("/files/rule", form | {"require_class": "golden"}).body.decode()
    assert "There is no class &#39;golden&#39;; known: silver, gold." in page
    assert browser.post("/files/rule/remove", {"path": "/42.1/*"}).status == 303
    assert site.server.rules.own == ()
    assert not site.service.gate.parts.rules


def test_a_configured_class_that_no_pass_can_have_is_said(site: Site) -> None:
    said: list[Any] = []
    globalLogPublisher.addObserver(said.append)
    try:
        rules = [Rule(path=f"/{name}/*", require_class=name) for name in ("gold", "golden")]
        site.server.rules.configure(rules)
    finally:
        globalLogPublisher.removeObserver(said.append)
    (event,) = (event for event in said if "No pass" in str(event.get("log_format")))
    assert (event["name"], event["path"]) == ("golden", "/golden/*")


def test_rules_of_the_configuration_are_shown_with_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly = tmp_path / "release" / "nightly"
    nightly.mkdir(parents=True)
    (nightly / "a b.txt").write_text("hello")
    rules = [{"path": "/nightly/", "require_class": "gold", "note": "members only"}]
    site = make_site(tmp_path, monkeypatch, rules=rules)
    try:
        browser = operator(site)
        api(browser, "PUT", "/rules", path="/nightly/a*", treat_as="small")
        found = api(browser, "GET", "/rules")["rules"]
        assert [(one["path"], one["source"]) for one in found] == [
            ("/nightly/", "configuration"),
            ("/nightly/a*", "admin"),
        ]
        page = browser.text("/files")
        row = page[page.index("/nightly/a b.txt") :].partition("</tr>")[0]
        assert "/nightly/" in row.partition("Rule")[2], "a folder's rule stands at its files"
        assert "configuration" in page
        assert "members only" in page
        answer = browser.ask(
            *("DELETE", "/api/v1/rules?path=/nightly/"), headers={"x-csrf-token": browser.token}
        )
        assert answer.status == 409
        assert site.download("192.0.2.1", "/nightly/a%20b.txt").status == 403
    finally:
        stop(site)


def test_rules_blocks_and_words_survive_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch)
    browser = operator(site)
    api(browser, "PUT", "/rules", path="/x/*", hidden_until_s=2e9, note="n")
    api(browser, "POST", "/blocks", network="192.0.2.7")
    api(browser, "PUT", "/waiting-page", title="Night", text="one\n\ntwo")
    before = [api(browser, "GET", path) for path in ("/rules", "/blocks", "/waiting-page")]
    stop(site)
    again = make_site(tmp_path, monkeypatch)
    try:
        browser.site = again
        after = [api(browser, "GET", path) for path in ("/rules", "/blocks", "/waiting-page")]
        assert after == before
        assert again.service.gate.parts.rules.verdict("/x/y").hidden(NOW)
        assert again.download("192.0.2.7").status == 403
    finally:
        stop(again)


def test_times_are_read_and_shown_in_the_operators_zone(site: Site, browser: Browser) -> None:
    assert browser.post("/zone", {"zone": "Europe/Oslo"}).status == 303
    form = {"path": "/x", "hidden_until_s": "2039-07-01T12:00"}
    assert browser.post("/files/rule", form).status == 303
    found = api(browser, "GET", "/rules")["rules"][0]["hidden_until_s"]
    assert found % 86_400 == 10 * 3600, "noon in Oslo is ten o'clock UTC in summer"
    assert "2039-07-01 12:00:00" in browser.text("/files")
    assert 'value="2039-07-01T12:00"' in browser.text("/files/rule?path=%2Fx")
    assert "Europe/Oslo" in browser.text("/files")
    for bad in ("Nowhere/Town", "../../etc/passwd", "x" * 300):
        assert browser.post("/zone", {"zone": bad}).status == 422
    assert browser.post("/zone", {"zone": ""}).status == 303
    assert "2039-07-01 10:00:00" in browser.text("/files")


def test_bytes_of_a_file_grow_while_it_is_sent(site: Site, browser: Browser) -> None:
    site.download("192.0.2.1")

    transfer, asks = site.transfers[0], 0

    def delivered() -> int:
        nonlocal asks
        asks += 1
        return transfer.sent_bytes

    transfer.delivered_bytes = delivered  # type: ignore[method-assign]

    def sent() -> int:
        site.wait(TICK_S)
        before = asks
        rows = api(browser, "GET", "/files")["files"]
        assert asks == before, "to ask the sockets of thousands takes long"
        return next(int(row["sent_bytes"]) for row in rows if row["path"] == "/big.iso")

    assert sent() == 0
    transfer.send(1_000)
    assert sent() == 1_000
    transfer.send(500)
    assert sent() == 1_500
    transfer.end(False)
    site.run(_turn())
    assert sent() == 1_500, "counted once, when it is over"


async def _turn() -> None:
    return None


def test_statistics_by_file_and_hour_leave_as_csv(site: Site, browser: Browser) -> None:
    for hour in range(2):
        site.download(f"192.0.2.{hour}")
        site.transfers[-1].send(1_000 * (hour + 1))
        site.transfers[-1].end(False)
        site.run(_turn())
        for _ in range(13):
            site.wait(5.0)
        site.reactor.rightNow += 3600
    site.settle()
    answer = browser.get("/files/statistics.csv")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert [(row["file"], row["begun"], row["complete"], row["sent_bytes"]) for row in rows] == [
        ("/big.iso", "1", "0", "1000"),
        ("/big.iso", "1", "0", "2000"),
    ]
    assert rows[0]["hour"].endswith("00:00+00:00")
    only = browser.get("/api/v1/files/statistics.csv?path=/nothing").body.decode()
    assert only.strip() == "hour,file,begun,complete,sent_bytes"
    assert browser.get("/api/v1/files/statistics.csv?since_s=9&until_s=3").status == 422


# -- passes and the waiting page -------------------------------------------------------------


def test_passes_leave_as_csv_once_and_are_revoked(site: Site, browser: Browser) -> None:
    form = {
        "count": "3",
        "kind": "gold",
        "path": "=cmd()",
        "expires_s": "2035-01-01T00:00",
        "max_uses": "2",
    }
    lines = browser.post("/passes", form).body.decode().split("\r\n")
    assert len(lines) == 5
    assert "'=cmd()" in lines[1], "a spreadsheet must not run it"
    serial, token = lines[1].split(",")[0], lines[1].split(",")[-1]
    page = browser.text("/passes")
    assert token not in page
    assert "0 of 2" in page
    assert browser.post(f"/passes/{serial}/revoke").status == 303
    assert "revoked" in browser.text("/passes")
    assert browser.post(f"/passes/{serial}/revoke").status == 404
    for bad in ({"kind": "platinum"}, {"count": "20000"}, {"expires_s": ""}, {"count": "x"}):
        answer = browser.post("/passes", form | bad)
        assert answer.status == 422, bad
        assert b"Issue and download" in answer.body, "the form is shown again"


def test_a_pass_from_the_page_lets_its_holder_in(site: Site, browser: Browser) -> None:
    api(browser, "PUT", "/rules", path="/big.iso", require_class="gold")
    assert site.download("192.0.2.1").status == 403
    found = api(browser, "POST", "/passes", kind="gold", expires_s=NOW + 9_999)
    token = found["passes"][0]["token"]
    assert site.download("192.0.2.1", tidegate_pass=token).status == 0, "it started"
    assert site.transfers


def test_the_waiting_page_takes_words_and_a_picture(site: Site, browser: Browser) -> None:
    signature = b"\x89PNG\r\n\x1a\n"
    for garbage in (signature + b"x" * 50, b"\xff\xd8\xff" + b"x" * 50, b"RIFF\xff\0\0\0WEBPx"):
        assert browser.post("/waiting", {"logo": garbage}).status == 422
    png = signature + b"\0\0\0\rIHDR" + b"x" * 50 + b"\0\0\0\0IEND\xaeB\x60\x82"
    assert browser.post("/waiting", {"title": "Release 42", "logo": png}).status == 303
    assert site.server.branding.look.logo_type == "image/png"
    assert dict(browser.get("/-/logo").headers)["content-type"] == "image/png"
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    assert browser.post("/waiting", {"logo": svg}).status == 422
    browser.post("/waiting", {"title": "Night", "drop_logo": "1"})
    assert site.server.branding.look.logo == b""
    for state in ("waiting", "ready", "closed", "pre-queue"):
        answer = browser.get(f"/waiting/preview?state={state}")
        assert answer.status == 200
        assert b"Night" in answer.body
        assert "frame-ancestors 'self'" in dict(answer.headers)["content-security-policy"]
    kept = "your place is kept"
    shown = {state: browser.text(f"/waiting/preview?state={state}") for state in STATES}
    assert [state for state in STATES if kept in shown[state]] == ["waiting", "ready", "closed"]
    assert "as many entries" not in shown["pre-queue"], "most visitors are in the draw"
    usual = browser.get("/waiting/preview").body
    assert browser.get("/waiting/preview?state=nonsense").body == usual
    assert browser.get("/api/v1/waiting-page/preview?state=nonsense").status == 422
    refused = browser.post("/waiting", {"title": "x" * 121})
    assert (refused.status, b"at most 120 characters" in refused.body) == (422, True)


def test_words_are_for_a_state_and_a_language(site: Site, browser: Browser) -> None:
    def shown(state: str, language: str) -> str:
        return browser.text(f"/waiting/preview?state={state}&lang={language}")

    for state, language, title in (
        ("", "", "Everywhere"),
        ("closed", "", "Closed"),
        ("", "de", "Deutsch"),
        ("closed", "de", "Zu"),
    ):
        form = {"state": state, "language": language, "title": title}
        assert browser.post("/waiting", form).status == 303
    assert "Everywhere" in shown("ready", "fr")
    assert "Closed" in shown("closed", "fr")
    assert "Deutsch" in shown("ready", "de")
    assert "Zu" in shown("closed", "de")
    editor = browser.text("/waiting?state=closed&lang=de&for_state=1&for_language=1")
    assert 'value="Zu"' in editor
    browser.post("/waiting", {"state": "closed", "language": "de"})
    assert "Deutsch" in shown("closed", "de"), "without its own words it has those of more pages"
    found = api(browser, "GET", "/waiting-page")
    assert found["title"] == "Everywhere"
    assert [(w["state"], w["language"]) for w in found["words"]] == [("", "de"), ("closed", "")]
    assert browser.post("/waiting", {"state": "asleep"}).status == 422


def test_words_and_a_colour_are_tried_before_they_stand(site: Site, browser: Browser) -> None:
    draft = {
        "title": "Night",
        "text": "[Where else](https://mirrors.example/list), or wait.",
        "colour": "#fc0",
        "shown_state": "ready",
        "shown_language": "de",
    }
    tried = browser.post("/waiting/preview", draft).body.decode()
    assert "Night" in tried
    assert '<a href="https://mirrors.example/list" rel="noreferrer">Where else</a>' in tried
    assert '<html lang="de"' in tried
    assert "/-/look?colour=ffcc00" in tried
    assert "--tide:" in browser.text("/-/look?colour=ffcc00")
    assert "Night" not in browser.text("/waiting/preview"), "nothing has changed"
    browser.post("/waiting", draft)
    assert "look?colour=ffcc00" in browser.text("/waiting/preview")
    assert "on the light page" in browser.text("/waiting")
    browser.post("/waiting", {"title": "Night"})
    assert site.server.branding.look.colour == "#ffcc00", "what a form leaves out stays"
    browser.post("/waiting", {"colour": ""})
    assert "look" not in browser.text("/waiting/preview")
    refused = browser.post("/waiting", {"colour": "teal"})
    assert refused.status == 422
    assert b"six hexadecimal digits" in refused.body


# -- faults ----------------------------------------------------------------------------------


def test_a_degraded_store_is_said_on_every_page(
    site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ill = StoreState(ok=False, reason="disk full", since_s=NOW, pending=1)
    monkeypatch.setattr(type(site.service.store), "state", property(lambda _self: ill))
    for path in ("/", "/queue", "/policy"):
        assert "disk full" in browser.text(path)


def test_pages_of_the_log_join_to_the_whole(site: Site, browser: Browser) -> None:
    for number in range(7):
        site.server.events.add("note", f"line {number}")
    site.settle()
    path, seen = "/log?kind=note&limit=3", []
    for _ in range(3):
        text = browser.text(path)
        seen += re.findall(r"line \d", text)
        older = re.search(r'href="([^"]*)">Older', text)
        path = html.unescape(older[1]) if older is not None else ""
    assert seen == [f"line {number}" for number in reversed(range(7))]
    assert not path


@pytest.mark.parametrize(
    "path", ["/policy/revisions", "/api/v1/revisions", "/log", "/queue?tab=tickets&q=10.1.2.3"]
)
def test_what_only_the_database_knows_is_refused_with_a_reason_while_it_is_silent(
    site: Site, browser: Browser, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.service.store, "read", lambda _work: fail(OSError("disk full")))
    answer = browser.get(path)
    assert answer.status == 503
    assert dict(answer.headers)["retry-after"] == "10"
    assert b"database does not answer" in answer.body
    assert b"disk full" not in answer.body
    assert browser.get("/policy").status == 200


def test_a_fault_is_said_counted_and_never_shown_as_a_traceback(
    site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: object) -> None:
        raise RuntimeError("secret detail")

    before = site.server.vitals.read().errors_total
    monkeypatch.setattr(type(site.server.rules), "all", broken)
    answer = browser.get("/files")
    assert answer.status == 500
    assert b"secret detail" not in answer.body
    assert site.server.vitals.read().errors_total == before + 1

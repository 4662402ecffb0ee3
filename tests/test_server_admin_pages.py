"""What the pages show and do, driven like a browser without scripts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.job import Estimate
from policies.settings import PolicySettings
from server.admin import forms
from server.admin.charts import CHARTS, SERIES, bytes_text, from_first_value, show, span
from server.admin.context import FileView, Health, History, Rule, StoreSilent
from server.admin.words import state_of
from tests.fakes_admin import NOW, Browser, FakeContext, busy_context, logged_in, snapshot

EVIL = "/x/<script>alert(1)</script>\"'><img src=x onerror=alert(1)>.iso"


def text(browser: Browser, path: str) -> str:
    answer = browser.get(path)
    assert answer.status == 200, (path, answer.status)
    return answer.body.decode()


def test_the_state_is_said_in_words() -> None:
    health = Health("1", NOW)
    queueing = state_of(snapshot(), health)
    assert queueing.headline == "Queueing: 212 wait, the last one about 14 min"
    quiet = state_of(
        snapshot(waiting=0, ready=0, small_active=0, large_active=0, last_wait=None), health
    )
    assert quiet.tone == "calm"
    full = state_of(snapshot(waiting=0, ready=0, last_wait=None), health)
    assert full.tone == "busy"
    ill = state_of(snapshot(), Health("1", NOW, store_degraded=True, store_fault="disk full"))
    assert ill.tone == "alarm"
    assert "disk full" in ill.more
    last = state_of(snapshot(waiting=0, ready=2), health)
    assert last.headline == "Queueing: the last 2 are called"
    assert last.more == "2 called and on their way. 4 of 36 slots free."
    fair = snapshot(waiting=1, ready=0, link_bound=True, paused=26, slots=4096)
    assert state_of(fair, health).headline == "Queueing: one waits, about 14 min"
    assert state_of(fair, health).more == "6 downloads running, 26 paused."
    assert state_of(snapshot(), Health("1", NOW, draining=True)).headline == "Draining"


def test_the_overview_draws_every_chart_without_a_script() -> None:
    page = text(logged_in(busy_context()), "/")
    assert page.count("<svg viewBox") >= len(CHARTS)
    assert "Queueing: 212 wait" in page
    assert all(line.series in SERIES for chart in CHARTS for line in chart.lines)


def test_an_overview_without_history_still_answers() -> None:
    assert "People in line" in text(logged_in(), "/")


def test_numbers_are_written_for_people() -> None:
    assert bytes_text(118.4e6) == "118 MB"
    assert span(840) == "14 min"
    assert span(90) == "1 min 30 s"
    assert show(0.913, "share") == "91 %"
    assert show(None, "s") == "–"


def test_stored_names_never_become_markup() -> None:
    context = busy_context()
    context.served.append(FileView(EVIL, 1, NOW, None, "none", 0, 0))
    context.running[0] = type(context.running[0])(
        **{f: getattr(context.running[0], f) for f in context.running[0].__slots__}
        | {"file": EVIL, "client": EVIL}
    )
    context.line[0] = type(context.line[0])(
        **{f: getattr(context.line[0], f) for f in context.line[0].__slots__}
        | {"file": EVIL, "client": EVIL}
    )
    context.held_rules.append(Rule(EVIL, note=EVIL))
    context.log("x", EVIL, EVIL)
    browser = logged_in(context)
    pages = ("/", "/queue", "/queue?tab=tickets", "/files", "/log", "/queue/download/0/cancel")
    for path in pages:
        page = text(browser, path)
        assert "<script>alert" not in page, path
        assert "<img src=x" not in page, path


def test_search_and_paging_of_the_queue() -> None:
    browser = logged_in(busy_context())
    first = text(browser, "/queue?tab=tickets")
    assert "1–50 of 236" in first
    assert "201–236 of 236" in text(browser, "/queue?tab=tickets&offset=200")
    assert "1–1 of 1" in text(browser, "/queue?tab=tickets&q=5017")
    assert "Nobody is waiting that fits" in text(browser, "/queue?tab=tickets&q=nothing-such")


@pytest.mark.parametrize(
    ("path", "kind", "check"),
    [
        ("/queue/download/3/cancel", "cancel", lambda c: all(v.lease != 3 for v in c.running)),
        ("/queue/ticket/5040/expire", "expire", lambda c: all(r.number != 5040 for r in c.line)),
        ("/queue/ticket/5040/promote", "promote", lambda c: c.line[0].number == 5040),
    ],
)
def test_acts_on_the_queue_ask_once_and_are_logged(path: str, kind: str, check: Any) -> None:
    browser = logged_in(busy_context())
    assert "No, go back" in text(browser, path)
    assert not check(browser.context)
    assert browser.post(path).status == 303
    assert check(browser.context)
    assert browser.context.logged[-1].kind == kind
    assert browser.context.logged[-1].who == "admin"
    number = path.split("/")[3]
    if kind != "promote":
        assert browser.post(path).status == 404, f"{number} is gone"


def test_blocking_an_address_and_lifting_it() -> None:
    browser = logged_in()
    form = {"network": "192.0.2.77/24", "hours": "2", "note": "too fast"}
    assert browser.post("/queue/block", form).status == 303
    block = browser.context.blocked[0]
    assert (block.network, block.until_s) == ("192.0.2.0/24", browser.context.now_s + 7200)
    assert "192.0.2.0/24" in text(browser, "/queue?tab=blocks")
    assert browser.post("/queue/unblock", {"network": "192.0.2.0/24"}).status == 303
    assert browser.context.blocked == []
    assert browser.post("/queue/block", {"network": "nowhere"}).status == 422


def test_every_setting_is_in_the_form_with_unit_bounds_and_help() -> None:
    page = text(logged_in(), "/policy")
    for name, rules in PolicySettings.model_json_schema()["properties"].items():
        assert f'name="s.{name}"' in page, name
        assert rules["description"].replace("`", "")[:30] in page.replace("&#39;", "'"), name


def filled(**changes: str) -> dict[str, str]:
    return {"policy": "ticket", "base": "1", "act": "apply"} | {
        f"s.{name}": value for name, value in changes.items()
    }


def test_applying_a_change_makes_a_revision_with_its_diff() -> None:
    browser = logged_in()
    form = {**filled(slots="50", class_weights="gold = 8"), "note": "more <b>room</b>"}
    assert browser.post("/policy", form).status == 303
    current = browser.context.current()
    assert (current.number, current.who, current.settings["slots"]) == (2, "admin", 50)
    assert current.settings["class_weights"] == {"gold": 8.0}
    page = text(browser, "/policy/revisions")
    assert "more &lt;b&gt;room&lt;/b&gt;" in page
    assert "<strong>50</strong>" in page


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"slots": "0"}, "slots", "greater than or equal to 1"),
        ({"slots": "many"}, "slots", "whole number"),
        ({"ticket_ttl_s": "nan"}, "ticket_ttl_s", ""),
        ({"class_weights": "gold"}, "class_weights", "name = number"),
        ({"reserve_small": "99"}, "reserve_small", "leaves no slot"),
    ],
)
def test_a_bad_setting_is_named_kept_in_the_form_and_changes_nothing(
    changes: dict[str, str], field: str, words: str
) -> None:
    browser = logged_in()
    answer = browser.post("/policy", filled(**changes))
    page = answer.body.decode()
    assert answer.status == 422
    assert "Nothing was changed" in page
    assert f'href="#f-{field}"' in page
    assert words in page
    assert next(iter(changes.values())) in page
    assert browser.context.current().number == 1


def test_a_form_older_than_the_settings_is_refused() -> None:
    browser = logged_in()
    browser.post("/policy", filled(slots="50"))
    assert browser.post("/policy", filled(slots="60")).status == 412
    assert browser.context.current().settings["slots"] == 50


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


def test_preview_shows_both_sides_and_applies() -> None:
    asked: list[dict[str, Any]] = []

    async def simulate(request: bytes) -> bytes:
        asked.append(json.loads(request))
        better = MEASURES | {"wait_large_mean_s": 60.0, "abandoned": 5}
        return json.dumps({"jobs": 7, "sides": [MEASURES, better]}).encode()

    browser = logged_in(runner=simulate)
    form = {**filled(slots="50"), "act": "preview", "workload": "exp2"}
    answer = browser.post("/policy", form)
    place = dict(answer.headers)["location"]
    page = text(browser, place)
    assert "better" in page
    assert "worse" in page
    assert [side["settings"]["slots"] for side in asked[0]["sides"]] == [36, 50]
    assert browser.context.current().number == 1, "a preview changes nothing"
    picture = browser.get(f"{place}/after.svg")
    assert dict(picture.headers)["content-type"] == "image/svg+xml"
    assert "sandbox" in dict(picture.headers)["content-security-policy"]
    assert browser.post(place, {"note": "as simulated"}).status == 303
    assert browser.context.current().settings["slots"] == 50
    assert browser.post(place, {}).status == 412, "its base is no longer in force"


def test_a_preview_without_arrivals_says_so() -> None:
    browser = logged_in()
    form = {**filled(slots="50"), "act": "preview", "workload": "recorded"}
    answer = browser.post("/policy", form)
    assert answer.status == 409
    assert b"nothing to replay" in answer.body


def test_restoring_a_revision_makes_a_new_one() -> None:
    browser = logged_in()
    browser.post("/policy", filled(slots="50"))
    page = text(browser, "/policy/revisions/1/restore")
    assert "<strong>36</strong>" in page
    assert browser.post("/policy/revisions/1/restore", {"base": "2", "note": "back"}).status == 303
    current = browser.context.current()
    assert (current.number, current.settings["slots"], current.restored_from) == (3, 36, 1)
    assert browser.post("/policy/revisions/9/restore", {"base": "3"}).status == 404


def test_rules_for_files() -> None:
    browser = logged_in()
    form = {
        "path": "/42.1/*",
        "require_class": "gold",
        "treat_as": "large",
        "multicast": "no",
        "hidden_until": "2030-06-01T12:00",
        "prequeue_from": "2030-06-01T10:00",
    }
    assert browser.post("/files/rule", form).status == 303
    rule = browser.context.held_rules[0]
    assert (rule.require_class, rule.multicast) == ("gold", False)
    assert rule.hidden_until_s is not None
    assert rule.prequeue_from_s == rule.hidden_until_s - 7200
    late = form | {"prequeue_from": "2030-06-01T13:00"}
    assert browser.post("/files/rule", late).status == 422
    assert browser.post("/files/rule", form | {"path": "x"}).status == 422
    assert browser.post("/files/rule/remove", {"path": "/42.1/*"}).status == 303
    assert browser.context.held_rules == []


def test_preference_tickets_leave_as_csv_once() -> None:
    browser = logged_in()
    form = {
        "count": "3",
        "kind": "gold",
        "path": "=cmd()",
        "expires": "2031-01-01T00:00",
        "max_uses": "2",
    }
    answer = browser.post("/passes", form)
    lines = answer.body.decode().split("\r\n")
    assert len(lines) == 5
    assert "'=cmd()" in lines[1], "a spreadsheet must not run it"
    assert "token-0" in lines[1]
    page = text(browser, "/passes")
    assert "token-0" not in page
    assert "0 of 2" in page
    assert browser.post("/passes/p0/revoke").status == 303
    assert "revoked" in text(browser, "/passes")
    assert browser.post("/passes", form | {"kind": "platinum"}).status == 422
    assert browser.post("/passes", form | {"count": "20000"}).status == 422


def test_the_waiting_page_takes_words_and_a_picture() -> None:
    browser = logged_in()
    png = b"\x89PNG\r\n\x1a\n" + b"x" * 50
    assert browser.post("/waiting", {"title": "Release 42", "logo": png}).status == 303
    assert browser.context.look.logo_type == "image/png"
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    assert browser.post("/waiting", {"logo": svg}).status == 422
    browser.post("/waiting", {"title": "", "drop_logo": "1"})
    assert browser.context.look.logo == b""
    for state in ("waiting", "ready", "closed", "pre-queue"):
        answer = browser.get(f"/waiting/preview?state={state}")
        assert answer.status == 200
        assert "frame-ancestors 'self'" in dict(answer.headers)["content-security-policy"]
    assert browser.get("/waiting/preview?state=nonsense").status == 404


def test_the_live_stream_ends_with_the_session() -> None:
    browser = logged_in(busy_context())
    answer = browser.get("/live")
    assert answer.follow is not None
    assert answer.follow().startswith(b":")  # a comment: rates need two looks
    browser.context.now_s += 1
    browser.context.state = snapshot(offers_total=81_254, last_wait=Estimate(1.0, 2.0))
    second = json.loads(answer.follow().removeprefix(b"data: "))
    assert second["points"]["flow"][0] == 10.0
    browser.post("/logout")
    assert answer.follow() == b""


def test_static_files_are_kept_by_browsers_for_ever() -> None:
    browser = logged_in()
    page = text(browser, "/")
    for part in page.split('"'):
        if part.startswith("/static/"):
            answer = browser.get(part)
            assert answer.status == 200
            assert "immutable" in dict(answer.headers)["cache-control"]
    assert browser.get("/static/..%2f..%2fsetup.cfg").status == 404


def test_diffs_name_what_changed() -> None:
    changes = forms.diff("fcfs", {"slots": 1, "a": None}, "fair", {"slots": 2, "a": 3.5})
    assert [(c.name, c.before, c.after) for c in changes] == [
        ("policy", "fcfs", "fair"),
        ("slots", "1", "2"),
        ("a", "(none)", "3.5"),
    ]


def test_a_degraded_store_is_said_on_every_page() -> None:
    context = FakeContext(body=Health("1", NOW, store_degraded=True, store_fault="disk full"))
    browser = logged_in(context)
    for path in ("/", "/queue", "/policy"):
        assert "disk full" in text(browser, path)


@pytest.mark.parametrize("path", ["/policy/revisions", "/api/v1/revisions"])
def test_what_only_the_database_knows_is_refused_with_a_reason_while_it_is_silent(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = logged_in()

    async def silent(*_: object) -> None:
        raise StoreSilent("disk full")

    monkeypatch.setattr(browser.context, "revisions", silent)
    answer = browser.get(path)
    assert answer.status == 503
    assert dict(answer.headers)["retry-after"] == "10"
    assert b"database does not answer" in answer.body
    assert b"disk full" not in answer.body
    assert browser.get("/policy").status == 200


def test_a_young_server_is_drawn_from_its_first_value() -> None:
    t = tuple(float(15 * step) for step in range(240))
    late = History(t, {"waiting": (None,) * 200 + (1.0,) * 40, "ready": (None,) * 240})
    found = from_first_value(late)
    assert found.t == t[200:]
    assert found.series["waiting"] == (1.0,) * 40
    last = from_first_value(History(t, {"waiting": (None,) * 239 + (1.0,)}))
    assert len(last.t) == len(last.series["waiting"]) == 8
    assert from_first_value(History(t, {"waiting": (1.0,) + (None,) * 239})).t == t
    assert from_first_value(History(t, {"waiting": (None,) * 240})).t == t
    assert from_first_value(History((), {})).t == ()

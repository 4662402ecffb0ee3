"""Alert rules: when they fire, what is told, and that it arrives."""

from __future__ import annotations

import contextlib
import errno
import inspect
import itertools
import json
import os
import re
import resource
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from tests.admin_browser import PASSWORD, AdminVisit
from tests.admin_site import Browser, Site, make_site, operator, stop
from tests.installed import TIDEGATE
from tests.running import make_release, serving, wait_for
from tidegate.server.control.alert_messages import send
from tidegate.server.control.alert_settings import AlertPlace, AlertSettings
from tidegate.server.control.alerting import Alerting, descriptors_part
from tidegate.server.control.alerts import LOOK_S, RULES, AlertBook, AlertChange, AlertRule

#: A server on which no rule holds.
CALM: dict[str, Any] = {
    "errors_total": 3,
    "forged_total": 9,
    "sent_bytes_total": 5_000,
    "store_degraded": False,
    "waiting": 0,
    "last_wait_s": None,
    "end_within_p90": None,
    "no_show_fraction": 0.0,
    "mirror_states": ["current", "configured"],
    "loop_lag_s": 0.01,
    "certificate_left_s": None,
    "descriptors_part": 0.1,
}
RULE = AlertRule("TidegateX", "critical", 60.0, "It is <b>bad</b>.", "Look.", lambda seen: False)
CHANGE = AlertChange(RULE, True, 1_900_000_000.0)


def rising(name: str, by: float) -> Any:
    return lambda look: {name: CALM[name] + look * by}


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("TidegateDatabaseDown", lambda look: {"store_degraded": True}),
        ("TidegateFaults", rising("errors_total", 1)),
        ("TidegateStalled", lambda look: {"waiting": 2}),
        ("TidegateLongWait", lambda look: {"last_wait_s": 3601.0}),
        ("TidegateTimesWrong", lambda look: {"end_within_p90": 0.0}),
        ("TidegateNoShows", lambda look: {"no_show_fraction": 0.51}),
        ("TidegateForgedTokens", rising("forged_total", 1.5 * LOOK_S)),
        ("TidegateMirrorBehind", lambda look: {"mirror_states": ["current", "silent"]}),
        ("TidegateLoopLag", lambda look: {"loop_lag_s": 0.3}),
        ("TidegateCertificate", lambda look: {"certificate_left_s": 600_000.0}),
        ("TidegateDescriptors", lambda look: {"descriptors_part": 0.9}),
    ],
)
def test_each_rule_fires_alone_after_its_time_and_ends(name: str, figures: Any) -> None:
    book = AlertBook(RULES)
    rule = next(one for one in RULES if one.name == name)
    looks = int(2400 / LOOK_S)
    told = [
        (look * LOOK_S, one.rule.name, one.firing)
        for look in range(looks)
        for one in book.look(look * LOOK_S, {**CALM, **figures(look)})
    ]
    assert [(one, firing) for _, one, firing in told] == [(name, True)], told
    assert told[0][0] >= rule.for_s
    assert book.firing_since(rule) is not None
    last = {**CALM, **figures(looks)}
    kept = {total: last[total] for total in CALM if total.endswith("_total")}
    over = [
        (one.rule.name, one.firing)
        for look in range(looks, 2 * looks)
        for one in book.look(look * LOOK_S, {**CALM, **kept})
    ]
    assert over == [(name, False)]
    assert book.firing_since(rule) is None


def test_a_calm_server_tells_nothing() -> None:
    book = AlertBook(RULES)
    moving = (
        {**CALM, "waiting": 5, "sent_bytes_total": 5_000 + 10 * look} for look in range(1_000)
    )
    assert [book.look(look * LOOK_S, seen) for look, seen in enumerate(moving)] == [[]] * 1_000


@given(st.lists(st.tuples(st.booleans(), st.floats(1.0, 900.0)), max_size=120))
def test_firing_and_ending_alternate_and_come_at_most_once_an_hour(
    moments: list[tuple[bool, float]],
) -> None:
    rule = AlertRule("TidegateY", "warning", 120.0, "a", "b", lambda seen: seen.figures["bad"])
    book, now, bad_at, told = AlertBook((rule,)), 0.0, set(), []
    for bad, passed_s in moments:
        now += passed_s
        if bad:
            bad_at.add(now)
        for one in book.look(now, {**CALM, "bad": bad}):
            told.append((now, one.firing))
            assert one.since_s in bad_at
            if one.firing:
                assert bad
                assert now - one.since_s >= rule.for_s
    assert [firing for _, firing in told] == [n % 2 == 0 for n in range(len(told))]
    began = [at for at, firing in told if firing]
    assert all(later - earlier >= 3600.0 for earlier, later in itertools.pairwise(began))


def test_a_rule_that_comes_and_goes_is_told_once_an_hour() -> None:
    """It ends two minutes after it last held, and is told again an hour after it was told."""
    rule = AlertRule("TidegateZ", "warning", 60.0, "a", "b", lambda seen: seen.figures["bad"])
    book, told = AlertBook((rule,)), []
    for now in range(0, 7200, 10):
        bad = now % 600 < 300
        told += [(now, one.firing) for one in book.look(now, {**CALM, "bad": bad})]
    assert told == [(60, True), (410, False), (3660, True), (4010, False)]


def test_a_value_at_its_bound_fires_on() -> None:
    rule = AlertRule("TidegateZ", "warning", 60.0, "a", "b", lambda seen: seen.figures["bad"])
    book, told = AlertBook((rule,)), []
    for now in range(0, 3600, 10):
        told += book.look(now, {**CALM, "bad": now < 70 or now % 100 == 0})
    assert [one.firing for one in told] == [True]


def test_the_rules_are_those_for_prometheus() -> None:
    text = (Path(__file__).parent.parent / "deploy/alerts.yml").read_text("utf-8")
    found = []
    for block in text.split("- alert: ")[1:]:
        said = dict(re.findall(r"(for|summary|description|severity): ([^}\n]*)", block))
        for_s = 60.0 * int(said.get("for", "0m").removesuffix("m"))
        facts = (said["severity"], for_s, said["summary"], said["description"])
        found.append((block.splitlines()[0], *facts))
    # A server that is down cannot say so.
    assert found[0][0] == "TidegateDown"
    ours = {(one.name, one.severity, one.for_s, one.summary, one.advice) for one in RULES}
    assert set(found[1:]) == ours


@pytest.mark.parametrize(
    "given",
    [
        {"to": ["ftp://example.org/x"]},
        {"to": ["https://"]},
        {"to": ["https://example.org:port/x"]},
        {"to": ["https://example.org/a b"]},
        {"to": ["ntfy:https://example.org/"]},
        {"to": ["mailto:nobody"]},
        {"to": ["mailto:a@b\r\nBcc: c@d"], "mail_server": "smtp://h"},
        {"to": ["mailto:a@example.org"]},
        {"to": [], "mail_server": "http://example.org"},
        {"to": ["https://example.org/x"] * 11},
    ],
)
def test_a_place_that_cannot_be_is_refused_at_the_start(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AlertSettings.model_validate(given)


def test_only_the_ports_of_the_places_are_wanted() -> None:
    places = ("https://example.org/hook", "ntfy:http://127.0.0.1:8090/ops", "mailto:a@example.org")
    found = AlertSettings(to=places, mail_server="smtps://u:p%40x@mail.example.org")
    assert found.ports() == {443, 8090, 465}
    assert AlertSettings(mail_server="smtp://h").ports() == frozenset()
    shown = [AlertPlace.of(one).shown for one in places]
    assert shown == ["webhook example.org", "ntfy 127.0.0.1", "mail a@example.org"]


class _Taker(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        taken = self.server.taken  # type: ignore[attr-defined]
        taken.append((self.path, json.loads(self.rfile.read(length))))
        self.send_response(302 if self.path == "/moved" else 500 if self.path == "/ill" else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Not on the screen."""


@contextlib.contextmanager
def listening(server: Any) -> Iterator[Any]:
    server.taken = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def taker() -> Iterator[Any]:
    with listening(ThreadingHTTPServer(("127.0.0.1", 0), _Taker)) as server:
        yield server


def test_a_webhook_and_ntfy_get_their_json(taker: Any) -> None:
    at = f"http://127.0.0.1:{taker.server_port}"
    hook, topic = AlertPlace.of(f"{at}/hook?key=1"), AlertPlace.of(f"ntfy:{at}/ops")
    send(AlertSettings(), hook, CHANGE, "mirror-1")
    send(AlertSettings(), topic, AlertChange(RULE, False, 1_900_000_000.0), "mirror-1")
    assert taker.taken == [
        (
            "/hook?key=1",
            {
                "alert": "TidegateX",
                "state": "firing",
                "severity": "critical",
                "summary": "It is <b>bad</b>.",
                "description": "Look.",
                "since": "2030-03-17T17:46:40+00:00",
                "server": "mirror-1",
            },
        ),
        (
            "/",
            {
                "topic": "ops",
                "title": "mirror-1: It is <b>bad</b>. This is over.",
                "message": "Look.",
                "priority": 3,
                "tags": ["white_check_mark"],
            },
        ),
    ]


@pytest.mark.parametrize("path", ["/moved", "/ill"])
def test_a_place_that_does_not_take_it_is_a_fault(taker: Any, path: str) -> None:
    with pytest.raises(OSError, match=r"redirects|500"):
        send(
            AlertSettings(),
            AlertPlace.of(f"http://127.0.0.1:{taker.server_port}{path}"),
            CHANGE,
            "x",
        )
    assert len(taker.taken) == 1


class _Mail(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._say("220 ready")
        while line := self.rfile.readline().strip():
            word = line.upper()[:4]
            if word == b"DATA":
                self._say("354 go on")
                lines = list(iter(lambda: self.rfile.readline().rstrip(b"\r\n"), b"."))
                self.server.taken.append(b"\n".join(lines).decode())  # type: ignore[attr-defined]
            self._say("221 bye" if word == b"QUIT" else "250 well")
            if word == b"QUIT":
                return

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


def test_an_e_mail_is_sent_but_no_password_without_tls() -> None:
    with listening(socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Mail)) as server:
        place = f"127.0.0.1:{server.server_address[1]}"
        to = AlertPlace.of("mailto:ops@example.org")
        settings = AlertSettings(
            to=("mailto:ops@example.org",),
            mail_server=f"smtp://{place}",
            mail_from="tg@example.org",
        )
        send(settings, to, CHANGE, "mirror-1")
        secret = settings.model_copy(update={"mail_server": f"smtp://me:secret@{place}"})
        with pytest.raises(OSError, match="STARTTLS"):
            send(secret, to, CHANGE, "mirror-1")
    [text] = server.taken
    assert "Subject: mirror-1: It is <b>bad</b>." in text
    assert "To: ops@example.org" in text
    assert "state: firing" in text


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taker: Any) -> Iterator[Site]:
    places = [f"http://127.0.0.1:{taker.server_port}/hook", "http://127.0.0.1:9/nobody"]
    found = make_site(tmp_path, monkeypatch, alerts={"to": places})
    yield found
    stop(found)


def test_an_operator_sends_a_test_message_and_reads_what_became_of_it(
    site: Site, taker: Any
) -> None:
    browser = operator(site)
    assert "Send a test message" in browser.text("/alerts")
    text = browser.post("/alerts").body.decode()
    assert "webhook 127.0.0.1: sent" in text
    assert "not sent" in text
    assert "urlopen" not in text
    assert "hook" not in text.replace("webhook", ""), "the address may be a secret"
    assert [seen["alert"] for _, seen in taker.taken] == ["TidegateTest"]
    sent = json.loads(_api(browser, "POST", "/api/v1/alerts/test"))["sent"]
    assert [bool(one["fault"]) for one in sent] == [False, True]
    assert site.kinds().count("alert") == 2


def test_a_rule_that_fires_is_sent_logged_and_shown(site: Site, taker: Any) -> None:
    browser = operator(site)
    site.settle()
    site.service.store.must(_full)
    for _ in range(int(8 * LOOK_S)):
        site.wait(1.0)
        # On this clock, a thread that needs a moment would seem to need seconds.
        site.land()
    found = json.loads(_api(browser, "GET", "/api/v1/alerts"))
    firing = [one["name"] for one in found["alerts"] if one["firing_since_s"]]
    # Each write that failed is a fault as well.
    assert firing == ["TidegateDatabaseDown", "TidegateFaults"]
    assert "since " in browser.text("/alerts")
    while len(taker.taken) < 2:
        site.run(_nothing())
    assert {(seen["alert"], seen["state"]) for _, seen in taker.taken} == {
        ("TidegateDatabaseDown", "firing"),
        ("TidegateFaults", "firing"),
    }


def _full(_: object) -> None:
    raise OSError("disk full")


async def _nothing() -> None:
    return None


def _api(browser: Browser, method: str, target: str) -> str:
    answer = browser.ask(method, target, headers={"x-csrf-token": browser.token})
    assert answer.status == 200, answer.body
    return answer.body.decode()


def test_a_message_that_no_place_takes_is_tried_for_a_while_and_then_told_to_the_log() -> None:
    tries = []

    async def refused(work: Any) -> None:
        tries.append(work)
        raise OSError("nobody is there")

    settings = AlertSettings(to=("https://example.org/x", "https://example.net/x"))
    events: Any = SimpleNamespace(add=lambda *told: None)
    full = {**CALM, "descriptors_part": 0.95}
    now = itertools.count(0.0, LOOK_S)
    alerting = Alerting(settings, Clock(), lambda: next(now), lambda: full, refused, events)
    with capturedLogs() as logged:
        for _ in range(100):
            alerting.look()
    assert len(tries) == 2 * 20
    told = [formatEvent(event) for event in logged]
    assert [text.partition(" to ")[2].partition(":")[0] for text in told] == [
        "webhook example.org",
        "webhook example.net",
    ]


def test_a_place_is_sent_what_happened_in_its_order_and_waits_for_no_other() -> None:
    """One that fails at first must not hear last that something is wrong which is over."""
    begun: list[tuple[Deferred[None], str]] = []
    names = ("first", "second")

    def off(work: Any) -> Deferred[None]:
        told = inspect.getclosurevars(work).nonlocals
        begun.append((Deferred(), told["outlet"].shown + (" fires" * told["change"].firing)))
        return begun[-1][0]

    settings = AlertSettings(to=tuple(f"https://{name}.example/x" for name in names))
    seen, now = dict(CALM), itertools.count(0.0, LOOK_S)
    events: Any = SimpleNamespace(add=lambda *told: None)
    alerting = Alerting(settings, Clock(), lambda: next(now), lambda: seen, off, events)

    def look(part: float) -> list[str]:
        del begun[:]
        seen["descriptors_part"] = part
        for _ in range(40):
            alerting.look()
        return [told for _, told in begun]

    assert look(0.95) == ["webhook first.example fires", "webhook second.example fires"]
    (first, _), (second, _) = begun
    second.callback(None)
    assert look(0.1) == ["webhook second.example"], "the first one's message is still under way"
    first.errback(OSError("nobody is there"))
    assert look(0.1) == ["webhook first.example fires"]
    begun.pop()[0].callback(None)
    assert [told for _, told in begun] == ["webhook first.example"]


class _Garbage(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"220 this is no HTTP\r\n")


class _Endless(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        # Until the sender has left.
        with contextlib.suppress(OSError):
            while self.rfile.read(1):
                pass

    def log_message(self, *_: object) -> None:
        pass


def test_a_place_that_talks_nonsense_is_a_fault_and_one_that_never_ends_is_none() -> None:
    with listening(socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Garbage)) as server:
        hook = AlertPlace.of(f"http://127.0.0.1:{server.server_address[1]}/")
        with pytest.raises(OSError, match="no HTTP"):
            send(AlertSettings(), hook, CHANGE, "mirror-1")
    with listening(socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Endless)) as server:
        hook = AlertPlace.of(f"http://127.0.0.1:{server.server_address[1]}/")
        send(AlertSettings(), hook, CHANGE, "mirror-1")


@pytest.mark.e2e
def test_a_confined_server_reaches_the_places(tmp_path: Path, taker: Any) -> None:
    make_release(tmp_path / "release", big_iso=1_000)
    hook = f"http://127.0.0.1:{taker.server_port}/hook"
    (tmp_path / "tidegate.toml").write_text(f'[alerts]\nto = ["{hook}"]\n')
    options = ("--admin", "127.0.0.1:0", "--config", str(tmp_path / "tidegate.toml"))
    with serving(tmp_path / "release", tmp_path / "state", *options) as server:
        visit = AdminVisit(server)
        environ = {**os.environ, "TIDEGATE_ADMIN_URL": visit.url}
        environ["TIDEGATE_ADMIN_TOKEN"] = visit.api_token()
        said = subprocess.run(
            [TIDEGATE, "admin", "alerts", "--test"],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        # It has no fault.
        assert re.search(r"webhook 127\.0\.0\.1 +-$", said, re.MULTILINE), said
        rules = subprocess.run(
            [TIDEGATE, "admin", "alerts"],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert all(rule.summary.split()[0] in rules for rule in RULES)
    assert [seen["alert"] for _, seen in taker.taken] == ["TidegateTest"]


class _Dripping(socketserver.BaseRequestHandler):
    """An answer whose header never ends."""

    def handle(self) -> None:
        self.server.taken.append("asked")  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            while not self.server.is_over.wait(0.2):  # type: ignore[attr-defined]
                self.request.sendall(b"H")


@pytest.mark.e2e
def test_a_place_that_hangs_keeps_nobody_from_logging_in(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=1_000)
    with listening(socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Dripping)) as hook:
        hook.is_over = threading.Event()
        place = f"http://127.0.0.1:{hook.server_address[1]}/hook"
        (tmp_path / "tidegate.toml").write_text(f'[alerts]\nto = ["{place}"]\n')
        options = ("--admin", "127.0.0.1:0", "--config", str(tmp_path / "tidegate.toml"))
        with serving(tmp_path / "release", tmp_path / "state", *options) as server:
            visit = AdminVisit(server)
            fields = {"Authorization": f"Bearer {visit.api_token()}"}
            tests = [
                threading.Thread(
                    target=lambda: requests.post(f"{visit.url}/api/v1/alerts/test", headers=fields)
                )
                for _ in range(4)
            ]
            for one in tests:
                one.start()
            wait_for(lambda: len(hook.taken) >= 2)
            try:
                assert visit.form("/login", name="admin", password=PASSWORD).url == f"{visit.url}/"
            finally:
                hook.is_over.set()
                for one in tests:
                    one.join()


def test_the_descriptors_in_use_are_a_part_of_those_allowed() -> None:
    before, most = descriptors_part(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0.0 < before < 1.0
    more = [os.dup(0) for _ in range(20)]
    try:
        assert round((descriptors_part() - before) * most) == 20
    finally:
        for one in more:
            os.close(one)


def test_they_are_listed_where_linux_tells_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    told = descriptors_part() * resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(st_size=0))
    listed = descriptors_part() * resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # The look itself takes one.
    assert round(listed) in (round(told), round(told) + 1)


def test_without_a_free_descriptor_all_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(st_size=0))
    monkeypatch.setattr(os, "listdir", full)
    assert descriptors_part() == 1.0

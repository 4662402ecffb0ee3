"""What a form of the administration does, the API does: same checks, same results.

Two servers with the same past: at one an operator sends forms, at the other a program asks the
API for the same. What both then say of themselves must be equal.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.admin_site import NOW, Browser, Site, make_site, operator, stop
from tests.databases import DIALECTS, POSTGRESQL, postgres
from tests.test_server_admin_operations import router
from tidegate.server.admin.router import API_ROOT
from tidegate.server.admin.web import Answer

__all__ = ["postgres"]

#: Forms of a person's own session. A program has a token instead, and no session.
OF_A_SESSION = {
    "/login",
    "/logout",
    "/theme",
    "/zone",
    "/account/password",
    "/account/totp",
    "/account/totp/on",
    "/account/totp/off",
}
#: Forms whose operation is another function: they read their fields, or show the result, otherwise.
APART = {
    "/policy": {"PATCH /settings", "POST /previews"},
    "/policy/preview/{key}": {"PUT /settings"},
    "/account/tokens": {"POST /tokens"},
    "/passes": {"POST /passes"},
    "/waiting": {"PUT /waiting-page"},
    "/alerts": {"POST /alerts/test"},
    "/report/share": {"POST /report/links"},
}
#: What is looked at after each act.
STATE = (
    *("/settings", "/settings/overrides", "/revisions", "/rules", "/files", "/prequeues"),
    *("/passes", "/tokens", "/users", "/blocks", "/doors", "/waiting-page", "/downloads"),
    *("/tickets", "/events", "/alerts"),
)
LONG = "x" * 700
#: Each clock goes on while its server waits for the database. Moments that matter are days apart.
CLOCKS_DIFFER_S = 600.0
#: A moment as a form writes it, and as the API does.
LATER = ("2030-06-01T12:00", 1_906_545_600.0)
LATEST = ("2030-07-01T12:00", 1_909_137_600.0)


@dataclass
class Act:
    """One thing that is done: by a form, and by the API."""

    form: str
    fields: Mapping[str, str]
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    if_match: str = "*"
    status: int = 200


def rule(status: int = 200, *, form: dict[str, str] | None = None, **body: Any) -> Act:
    fields = {key: str(value) for key, value in body.items()}
    return Act("/files/rule", {**fields, **(form or {})}, "PUT", "/rules", body, status=status)


def user(name: str, password: str, status: int = 200, **more: str) -> Act:
    body = {"name": name, "password": password, **more}
    return Act("/account/users", body, "POST", "/users", body, status=status)


def token(status: int = 200, *, form: dict[str, str] | None = None, **body: Any) -> Act:
    fields = {key: str(value) for key, value in body.items()}
    fields |= form or {}
    return Act("/account/tokens", fields, "POST", "/tokens", body, status=status)


def passes(status: int = 200, *, form: dict[str, str] | None = None, **body: Any) -> Act:
    body = {"kind": "gold", "expires_s": LATER[1], **body}
    fields = {key: str(value) for key, value in body.items()}
    fields = {"expires_s": LATER[0], **{k: v for k, v in fields.items() if k != "expires_s"}}
    return Act("/passes", {**fields, **(form or {})}, "POST", "/passes", body, status=status)


def settings(status: int = 200, base: int | None = None, **changes: Any) -> Act:
    fields = {f"s.{key}": str(value) for key, value in changes.items()}
    form = {"policy": "ticket", "act": "apply", "base": str(base or "{revision}"), **fields}
    match = f'"r{base}"' if base else "*"
    return Act("/policy", form, "PATCH", "/settings", {"settings": changes}, match, status=status)


def doors(status: int = 200, *, form: dict[str, str] | None = None, **body: Any) -> Act:
    fields = {key: str(value) for key, value in body.items()}
    return Act("/queue/doors", {**fields, **(form or {})}, "PUT", "/doors", body, status=status)


def words(title: str, text: str, status: int = 200, **more: str) -> Act:
    body = {"title": title, "text": text, **more}
    return Act("/waiting", body, "PUT", "/waiting-page", body, status=status)


def tried(status: int = 200, **body: str) -> Act:
    return Act("/waiting/preview", body, "POST", "/waiting-page/preview", body, status=status)


def block(network: str, status: int = 200, span: str = "", span_s: float | None = None) -> Act:
    form = {"network": network, "for_s": span}
    body = {"network": network, "for_s": span_s}
    return Act("/queue/block", form, "POST", "/blocks", body, status=status)


def unblock(network: str, status: int = 200) -> Act:
    path = f"/blocks?network={network}"
    return Act("/queue/unblock", {"network": network}, "DELETE", path, status=status)


def no_rule(pattern: str, status: int = 200) -> Act:
    path = f"/rules?path={pattern}"
    return Act("/files/rule/remove", {"path": pattern}, "DELETE", path, status=status)


def numbered(form: str, method: str, path: str, number: str, status: int = 200) -> Act:
    return Act(form.format(number), {}, method, path.format(number), status=status)


def preview(workload: str, policy: str, status: int) -> Act:
    form = {"policy": policy, "act": "preview", "workload": workload}
    body = {"policy": policy, "settings": {}, "workload": workload}
    return Act("/policy", form, "POST", "/previews", body, status=status)


def restore(number: int, note: str = "", status: int = 200) -> Act:
    body = {"note": note}
    form = {**body, "base": "{revision}"}
    path = f"/revisions/{number}/restore"
    return Act(f"/policy{path}", form, "POST", path, body, status=status)


def shared(status: int = 200, **body: Any) -> Act:
    form = {name: str(value) for name, value in body.items()}
    return Act("/report/share", form, "POST", "/report/links", body, status=status)


CANCEL = "/queue/download/{}/cancel", "DELETE", "/downloads/{}"
EXPIRE = "/queue/ticket/{}/expire", "DELETE", "/tickets/{}"
PROMOTE = "/queue/ticket/{}/promote", "POST", "/tickets/{}/promote"
REVOKE_PASS = "/passes/{}/revoke", "DELETE", "/passes/{}"
REVOKE_TOKEN = "/account/tokens/{}/revoke", "DELETE", "/tokens/{}"
REMOVE_USER = "/account/users/{}/remove", "DELETE", "/users/{}"
ACTS = (
    settings(slots=50),
    settings(422, slots=0),
    settings(422, reserve_small=99),
    settings(422, retry_jitter=7),
    settings(412, base=1, slots=60),
    preview("the past hour", "ticket", 422),
    preview("recorded", "best", 422),
    restore(1, "as it was"),
    restore(1, LONG, 422),
    restore(99, status=404),
    rule(path="/gold/*", require_class="gold", note="VIP"),
    rule(path="/gold/*", require_class="", treat_as="large"),
    rule(
        form={"hidden_until_s": LATEST[0], "prequeue_from_s": LATER[0]},
        path="/later/*",
        hidden_until_s=LATEST[1],
        prequeue_from_s=LATER[1],
    ),
    rule(422, path="no slash"),
    rule(422, path="/a", treat_as="huge"),
    rule(422, path="/a\nb"),
    rule(422, path="/a", require_class=LONG),
    rule(422, path="/b", prequeue_from_s=LATER[1], form={"prequeue_from_s": LATER[0]}),
    no_rule("/gold/*"),
    no_rule("/gold/*", 404),
    user("ann", "a long password"),
    user("ann", "a long password", 409),
    user("-ann", "a long password", 422),
    user("bob", "short", 422),
    user("bob", "a long password", 422, role="king"),
    numbered(*REMOVE_USER, "ann"),
    numbered(*REMOVE_USER, "ann", 404),
    numbered(*REMOVE_USER, "admin", 422),
    token(label="ci", days=7),
    token(label="for ever", days=None, form={"days": ""}),
    token(422, form={"label": ""}),
    token(422, label="ci", days=0),
    token(422, label="ci", role="king"),
    numbered(*REVOKE_TOKEN, "{token}"),
    numbered(*REVOKE_TOKEN, "none", 404),
    passes(count=2, note="press"),
    passes(
        not_before_s=LATER[1],
        expires_s=LATEST[1],
        form={"not_before_s": LATER[0], "expires_s": LATEST[0]},
    ),
    passes(422, kind="iron"),
    passes(422, count=0),
    passes(422, not_before_s=LATEST[1], form={"not_before_s": LATEST[0]}),
    passes(422, path=LONG * 2),
    numbered(*REVOKE_PASS, "{pass}"),
    numbered(*REVOKE_PASS, "none", 404),
    block("198.51.100.0/24", span="1h", span_s=3600.0),
    block("2001:db8::1"),
    block("nowhere", 422),
    block("192.0.2.0/24", 422, "0s", 0.0),
    unblock("2001:db8::1"),
    unblock("2001:db8::1", 404),
    doors(closed=True, text="New disks.", opens_s=LATER[1], form={"opens_s": LATER[0]}),
    doors(422, closed=True, text=LONG * 10),
    doors(422, closed="ajar"),
    doors(closed=False),
    Act("/alerts", {}, "POST", "/alerts/test"),
    shared(since_s=NOW - 60.0, until_s=NOW, days=3),
    shared(422, since_s=NOW, until_s=NOW - 60.0),
    shared(422, days=0),
    shared(422, path=LONG * 10),
    Act("/report/links/end", {}, "DELETE", "/report/links"),
    words("Patience", "Line one.\nLine two."),
    words("Geduld", "", state="closed", language="de", colour="#FC0"),
    words("", "", 422, colour="teal"),
    tried(title="Soon", shown_state="ready", shown_language="de", colour="#fc0"),
    tried(422, shown_state="asleep"),
    words("", "", 422, language="tlh"),
    words("Patience\x00", "", 422),
    words(LONG, "", 422),
    numbered(*CANCEL, "1"),
    numbered(*CANCEL, "99", 404),
    numbered(*PROMOTE, "5"),
    numbered(*PROMOTE, "99", 404),
    numbered(*EXPIRE, "4"),
    numbered(*EXPIRE, "4", 404),
    numbered(*EXPIRE, "x", 404),
)


@dataclass
class Side:
    """One of the two servers, and who acts there."""

    site: Site
    browser: Browser
    last: dict[str, str] = field(default_factory=dict)

    def api(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, if_match: str = "*"
    ) -> Answer:
        sent = {
            "content_type": "application/json",
            "x_csrf_token": self.browser.token,
            "if_match": if_match,
        }
        given = b"" if body is None else json.dumps(body).encode()
        return self.browser.ask(method, API_ROOT + path, body=given, headers=sent)

    def told(self, path: str) -> Any:
        answer = self.api("GET", path)
        assert answer.status == 200, (path, answer.body)
        return json.loads(answer.body)

    def state(self) -> dict[str, Any]:
        """All that it says of itself, but for what it guesses, and for what it draws by chance."""
        self.site.settle()
        text = json.dumps({path: self.told(path) for path in STATE}, sort_keys=True)
        serials = re.findall(r'(?:"serial": "|API token |pass )([0-9a-f]{8,16})\b', text)
        for number, serial in enumerate(dict.fromkeys(serials)):
            text = text.replace(serial, f"serial {number}")
        chance = r'"(expected|done|done_p90)_s": [\d.]+|"commitment": "\w+"'
        text = re.sub(chance, '"by chance": 0', text)
        found: dict[str, Any] = json.loads(text)
        return found

    def filled(self, text: str) -> str:
        """A path or field with what the server has called things."""
        if "{revision}" in text:
            text = text.replace("{revision}", str(self.told("/settings")["number"]))
        if "{token}" in text:
            text = text.replace("{token}", self.told("/tokens")["tokens"][0]["serial"])
        if "{pass}" in text:
            text = text.replace("{pass}", self.told("/passes")["passes"][0]["serial"])
        return text


@pytest.fixture(params=DIALECTS)
def sides(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Side, Side]]:
    """The server with the forms has SQLite; the one with the API each database in turn."""
    url = None
    if request.param == POSTGRESQL:
        url = request.getfixturevalue("postgres").make(migrated=False)
    made = []
    for name, database in (("forms", None), ("api", url)):
        (tmp_path / name).mkdir()
        weights = {"class_weights": {"gold": 8.0}}
        site = make_site(tmp_path / name, monkeypatch, admission=weights, database=database)
        for number in range(8):
            site.download(f"203.0.113.{number + 1}")
        made.append(Side(site, operator(site)))
    yield made[0], made[1]
    for side in made:
        stop(side.site)


def alike(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, but for the time by which the servers' clocks differ."""
    if isinstance(one, float) and isinstance(other, float) and min(one, other) > 1e9:
        return abs(one - other) < CLOCKS_DIFFER_S
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def messages(answer: Answer) -> list[str]:
    """What an API's problem document says is wrong."""
    document = json.loads(answer.body)
    return [fault["message"] for fault in document.get("errors", ())] or [document["detail"]]


def test_a_form_does_what_the_api_does(sides: tuple[Side, Side]) -> None:
    page, program = sides
    differences = []
    for act in ACTS:
        fields = {name: page.filled(value) for name, value in act.fields.items()}
        shown = page.browser.post(page.filled(act.form), fields)
        answered = program.api(act.method, program.filled(act.path), act.body, act.if_match)
        done = {"form": shown.status, "api": answered.status}
        wanted = act.status
        text = html.unescape(re.sub(r"<[^>]*>", "", shown.body.decode()))
        if wanted == 200:
            fine = shown.status in (200, 303) and answered.status < 300
        else:
            said = messages(answered) if answered.status >= 400 else []
            done |= {"api says": said}
            fine = shown.status == answered.status == wanted
            fine = fine and all(" ".join(one.split()) in " ".join(text.split()) for one in said)
        if not fine:
            differences.append((act, done, text[-600:]))
        states = page.state(), program.state()
        for path in STATE:
            if not alike(states[0][path], states[1][path]):
                differences.append((act, path, [json.dumps(state[path]) for state in states]))
        if len(differences) > 9:
            break
    assert differences == [], "\n".join(map(str, differences))


#: What is asked of lists, some of it by mistake or by malice.
SEARCHES = (
    *("", "BIG", "Changed", "203.0.113.3", "%", "_", "big", "\\", "'", "é"),
    *("%00", "a%00b", "%ff", "%ed%a0%80"),
)


LISTS = (
    *("/tickets?q={}", "/downloads?q={}", "/events?q={}", "/events?kind={}", "/files?q={}"),
    *("/passes?q={}", "/files/statistics.csv?path={}"),
)


def test_a_search_finds_the_same_whatever_it_is(sides: tuple[Side, Side]) -> None:
    for target in (path.format(search) for path in LISTS for search in SEARCHES):
        found, other = (side.api("GET", target) for side in sides)
        assert found.status == other.status < 500, (target, found.body, other.body)
        assert found.status == 422 or alike(_told(found), _told(other)), target


def _told(answer: Answer) -> Any:
    """An answer without guesses."""
    text = re.sub(r'"(expected|done|done_p90)_s":\s*[\d.]+', '"by chance": 0', answer.body.decode())
    is_json = dict(answer.headers)["content-type"].startswith("application/json")
    return json.loads(text) if is_json else text


NAMES = ("admin", "Admin", "no\x00body", "\ud800", "é", "x" * 2000)


def test_a_stranger_with_an_odd_name_is_told_the_same(sides: tuple[Side, Side]) -> None:
    for name in NAMES:
        said = []
        for side in sides:
            stranger = Browser(side.site, peer=f"198.51.100.{NAMES.index(name)}")
            stranger.get("/login")
            form = {"name": name.encode("utf-8", "surrogatepass"), "password": "wrong", "code": ""}
            said.append(stranger.post("/login", form).status)
        assert said[0] == said[1] < 500, (name, said)


def test_every_form_has_its_operation() -> None:
    found = router()
    operations = {
        f"{route.method} {route.path.removeprefix(API_ROOT)}": route
        for route in found.routes
        if route.tag
    }
    handlers = {route.handler for route in operations.values()}
    forms = [route for route in found.routes if not route.tag and route.method == "POST"]
    assert len(forms) > 20
    without = {
        route.path
        for route in forms
        if route.handler not in handlers
        and route.path not in OF_A_SESSION
        and not APART.get(route.path, {""}) <= operations.keys()
    }
    assert without == set()
    assert OF_A_SESSION | APART.keys() <= {route.path for route in forms}


def test_every_form_is_compared() -> None:
    patterns = {
        route.path: re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path) + r"(\?.*)?\Z")
        for route in router().routes
        if not route.tag and route.method == "POST" and route.path not in OF_A_SESSION
    }
    acted = {path for act in ACTS for path, fits in patterns.items() if fits.match(act.form)}
    # What a preview proposed is applied in test_server_admin_pages.
    assert patterns.keys() - acted == {"/policy/preview/{key}"}
    assert NOW < LATER[1] < LATEST[1]

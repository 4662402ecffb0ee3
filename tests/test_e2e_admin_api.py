"""The administration's API over the wire: the command line, stale settings, restarts, intruders."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from tests.admin_browser import PASSWORD, AdminVisit, From
from tests.running import RunningServer, make_release, wait_for
from tidegate.commands import cli

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    make_release(folder, big_iso=3_000_000, mid_iso=400_000, README_txt=500)
    return folder


@pytest.fixture(scope="module")
def started(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("admin")
    options = ("--admin", "127.0.0.1:0", "--policy", "ticket", "--slots", "2")
    options += ("--reserve-small", "1", "--bandwidth", "800kbit")
    server = RunningServer(release, folder / "state", *options)
    try:
        yield server, AdminVisit(server)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def token(started: tuple[RunningServer, AdminVisit]) -> str:
    return started[1].api_token()


@pytest.fixture
def site(started: tuple[RunningServer, AdminVisit], token: str) -> Iterator[Any]:
    """The server, with the settings and the empty queue that it began with."""
    visit = started[1]
    before = visit.get("/api/v1/settings").json()
    yield started
    headers = {"Authorization": f"Bearer {token}", "If-Match": "*"}
    body = {"policy": before["policy"], "settings": before["settings"]}
    url = visit.url + "/api/v1/settings"
    restored = requests.patch(url, json=body, headers=headers, timeout=20)
    assert restored.ok, restored.text
    for row in visit.get("/api/v1/tickets").json()["tickets"]:
        url = f"{visit.url}/api/v1/tickets/{row['number']}"
        assert requests.delete(url, headers=headers, timeout=20).ok
    wait_for(lambda: not visit.get("/api/v1/downloads").json()["leases"])


@pytest.fixture
def tidegate(site: tuple[RunningServer, AdminVisit], token: str) -> Any:
    """Runs `tidegate admin` in this process; `test_docs_commands` starts it as the manual does."""

    def run(*words: str, status: int = 0, given: str | None = None) -> str:
        environ = {"TIDEGATE_ADMIN_URL": site[1].url}
        environ["TIDEGATE_ADMIN_TOKEN"] = token if given is None else given
        done = CliRunner().invoke(cli, ["admin", *words], env=environ, prog_name="tidegate")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code == status, done.output
        return done.stdout if status == 0 else done.stderr

    return run


def test_switching_the_policy_costs_nobody_a_place_or_a_download(
    site: tuple[RunningServer, AdminVisit], token: str, release: Path
) -> None:
    server, visit = site
    wanted = hashlib.sha256((release / "mid.iso").read_bytes()).hexdigest()
    with ThreadPoolExecutor(2) as crowd:
        fetched = [crowd.submit(_fetch, server.url, f"127.0.5.{n}") for n in (1, 2)]
        wait_for(lambda: visit.get("/api/v1/tickets").json()["tickets"], 20)
        number = visit.get("/api/v1/tickets").json()["tickets"][0]["number"]
        headers = {"Authorization": f"Bearer {token}", "If-Match": "*"}
        # In the 4 s that the first download takes: a busy machine needs half a second for a change.
        for policy in ("fair", "adaptive", "reserve", "fcfs", "ticket"):
            body = {"policy": policy}
            answer = requests.patch(
                visit.url + "/api/v1/settings", json=body, headers=headers, timeout=20
            )
            assert answer.status_code == 200
        line = visit.get("/api/v1/tickets").json()["tickets"]
        assert [row["number"] for row in line] == [number]
        assert [one.result(60) for one in fetched] == [wanted, wanted]


def _fetch(url: str, address: str) -> str:
    """Come again until the file is whole; its SHA-256."""
    session = requests.Session()
    session.mount("http://", From(address))
    headers = {"Tidegate-Wait": "ticket"}
    while True:
        with session.get(f"{url}/mid.iso", headers=headers, stream=True, timeout=60) as answer:
            if answer.status_code == 200:
                return hashlib.sha256(b"".join(answer.iter_content(65536))).hexdigest()
            headers["Tidegate-Ticket"] = answer.headers["Tidegate-Ticket"]
            threading.Event().wait(min(1.0, float(answer.headers["Retry-After"])))


def test_the_command_line_shows_and_steers(
    site: tuple[RunningServer, AdminVisit], tidegate: Any
) -> None:
    server, _ = site
    clients = []
    for number in range(3):
        session = requests.Session()
        session.mount("http://", From(f"127.0.3.{number + 1}"))
        headers = {"Tidegate-Wait": "ticket"}
        clients.append(session.get(f"{server.url}/big.iso", headers=headers, stream=True))
    assert [client.status_code for client in clients] == [200, 503, 503]
    assert "2 people are waiting" in tidegate("status")
    assert json.loads(tidegate("--json", "status"))["waiting"] + 1 >= 2
    running = json.loads(tidegate("--json", "downloads"))["leases"]
    assert "/big.iso" in tidegate("downloads")
    line = json.loads(tidegate("--json", "tickets"))["tickets"]
    assert "127.0.3.3" in tidegate("tickets")
    assert "is next" in tidegate("promote", str(line[-1]["number"]))
    assert "lost its place" in tidegate("expire", str(line[0]["number"]))
    assert "is cancelled" in tidegate("cancel", str(running[0]["lease"]))
    assert "has ended" in tidegate("cancel", str(running[0]["lease"]), status=3)
    for client in clients:
        client.close()


def test_the_command_line_changes_the_policy(tidegate: Any) -> None:
    assert "revision" in tidegate("settings", "show")
    assert "How many downloads may run at once" in tidegate("settings", "help", "slots")
    changed = tidegate("settings", "set", "slots=9", "ticket_ttl_s=2m", "--note", "rush")
    number = int(changed.split()[1].rstrip(":"))
    held = json.loads(tidegate("--json", "settings", "show"))
    assert (held["settings"]["slots"], held["settings"]["ticket_ttl_s"]) == (9, 120.0)
    assert "slots" in tidegate("settings", "set", "slots=-1", status=4)
    words = ("settings", "set", "slots=8", "--revision", str(number - 1))
    assert "changed meanwhile" in tidegate(*words, status=4)
    assert "rush" in tidegate("revisions")
    assert "ticket" in tidegate("restore", str(number - 1))
    shown = tidegate("preview", "--policy", "fair", "--workload", "exp2")
    assert "Small files: mean wait" in shown
    assert "what to change" in tidegate("preview", status=2)


def test_the_command_line_prepares_a_release(
    site: tuple[RunningServer, AdminVisit], tidegate: Any
) -> None:
    with requests.get(f"{site[0].url}/big.iso", stream=True, timeout=20) as begun:
        assert begun.ok
    assert "/README.txt" in tidegate("files")
    tidegate("rules", "set", "/42/*", "--hidden-until", "2h", "--prequeue-from", "1h")
    assert "/42/*" in tidegate("rules", "list")
    long = ("rules", "set", "/42/*", "--require-class", "x" * 33)
    assert "require_class" in tidegate(*long, status=4)
    assert "/42/*" in tidegate("prequeues")
    tidegate("rules", "remove", "/42/*")
    sheet = csv.DictReader(
        io.StringIO(tidegate("passes", "issue", "--class", "gold", "--count", "2"))
    )
    rows = list(sheet)
    assert len({row["token"] for row in rows}) == 2
    tidegate("passes", "revoke", rows[0]["serial"])
    assert "revoked" in tidegate("passes", "list")
    tidegate("waiting-page", "--title", "Soon")
    assert "Soon" in tidegate("waiting-page")
    tidegate("block", "203.0.113.9", "--for", "2h", "--note", "crawler")
    assert "crawler" in tidegate("blocks")
    tidegate("unblock", "203.0.113.9")
    assert "are open" in tidegate("doors")
    closed = tidegate("doors", "close", "--text", "New disks\nThen soup", "--until", "2h")
    assert re.search(r"^text +New disks\n +Then soup$", closed, re.MULTILINE)
    assert "Doors closed" in tidegate("status")
    assert "are open" in tidegate("doors", "open")
    tidegate("settings", "set", "slots=17")
    overridden = tidegate("settings", "overrides")
    assert "slots" in overridden
    assert "17" in overridden
    tidegate("users", "add", "watcher", "--password", "a first password")
    assert "watcher" in tidegate("users", "list")
    tidegate("users", "remove", "watcher")
    viewer = tidegate("tokens", "issue", "screen").strip()
    assert "the scope queue" in tidegate("cancel", "1", given=viewer, status=4)
    assert "API token" in tidegate("status", given="tga_wrong", status=4)
    assert "block" in tidegate("events")
    assert "No mirror" in tidegate("mirrors")
    assert "Nothing is sent" in tidegate("multicast")
    assert "t" in json.loads(tidegate("history"))
    wait_for(lambda: "asked for" in tidegate("report", "--span", "1h"), 60)
    told = tidegate("report", "--span", "1h").split()
    assert told[told.index("program") + 1] == "downloads"
    came = [json.loads(line) for line in tidegate("arrivals", "--span", "1h").splitlines()]
    assert all(one["client"].startswith("c") for one in came)
    assert json.loads(tidegate("--json", "arrivals"))["arrivals"] == came
    gone = ("--url", "http://127.0.0.1:1", "status")
    assert "cannot be asked" in tidegate(*gone, status=5)
    for words in (("status",), ("cancel", "1")):
        elsewhere = tidegate("--url", site[0].url, *words, status=3)
        assert "No administration answers" in elsewhere


def test_intruders_are_kept_out(site: tuple[RunningServer, AdminVisit]) -> None:
    _, visit = site
    stranger = requests.Session()
    stranger.mount("http://", From("127.0.4.1"))
    page = stranger.get(visit.url + "/login", timeout=20)
    assert "'unsafe" not in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    cookie = page.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    # Forged: no form token, another site's origin, a session of the attacker's choice.
    act = visit.url + "/queue/block"
    assert visit.web.post(act, data={"network": "192.0.2.1"}, timeout=20).status_code == 403
    forged = {"network": "192.0.2.1", "csrf": "0" * 64}
    assert visit.web.post(act, data=forged, timeout=20).status_code == 403
    # The second one is no URL: it ended in 500 and a traceback in the log.
    for origin in ("https://evil.example", "http://[", "null", ""):
        evil = {"Origin": origin}
        assert visit.web.post(act, data=forged, headers=evil, timeout=20).status_code == 403
    assert visit.web.post(visit.url + "/login", headers=evil, timeout=20).status_code == 403
    stranger.cookies.set("tidegate-admin", "fixed-by-the-attacker")
    queue = stranger.get(visit.url + "/queue", timeout=20, allow_redirects=False)
    assert (queue.status_code, queue.headers["location"]) == (303, "/login?next=/queue")
    assert visit.get("/api/v1/blocks").json()["blocks"] == []
    # Guessing.
    token = page.text.split('name="csrf" value="')[1].split('"')[0]
    told = [
        stranger.post(
            visit.url + "/login",
            data={"csrf": token, "name": "admin", "password": f"guess number {n}"},
            timeout=20,
        )
        for n in range(8)
    ]
    assert told[0].status_code == 401
    assert told[-1].status_code == 429
    assert int(told[-1].headers["retry-after"]) >= 1
    assert visit.get("/queue").status_code == 200, "the operator works on"


def test_broken_requests_are_answered_and_forgotten(site: tuple[RunningServer, AdminVisit]) -> None:
    _, visit = site
    host, port = visit.url.removeprefix("http://").split(":")
    for raw, first in (
        (b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"GET /%00%ff/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", b"501"),
        (b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
    ):
        with socket.create_connection((host, int(port)), 10) as link:
            link.sendall(raw)
            assert first in link.recv(200), raw
    assert visit.get("/account").status_code == 200


def test_popularity_counts_small_files_too_and_survives_a_restart(tmp_path: Path) -> None:
    release, state = tmp_path / "release", tmp_path / "state"
    make_release(release, README_txt=500, mid_iso=400_000)
    options = ("--admin", "127.0.0.1:0", "--policy", "ticket")
    wanted = {"/README.txt": (3, 3, 1500), "/mid.iso": (1, 1, 400_000)}

    def counted(visit: AdminVisit) -> dict[str, tuple[int, int, int]]:
        rows = visit.get("/api/v1/files").json()["files"]
        return {row["path"]: (row["begun"], row["complete"], row["sent_bytes"]) for row in rows}

    server = RunningServer(release, state, *options)
    try:
        visit = AdminVisit(server)
        for path in ("/README.txt", "/README.txt", "/README.txt", "/mid.iso"):
            assert requests.get(server.url + path, timeout=20).status_code == 200
        assert requests.head(server.url + "/README.txt", timeout=20).status_code == 200
        # Small files are counted a turn of the loop at a time.
        wait_for(lambda: counted(visit) == wanted, 10)
    finally:
        server.stop()
    server = RunningServer(release, state, *options)
    try:
        assert counted(AdminVisit(server)) == wanted
    finally:
        server.stop()


def test_a_restart_keeps_password_session_rules_and_revision(tmp_path: Path) -> None:
    release, state = tmp_path / "release", tmp_path / "state"
    make_release(release, README_txt=500)
    options = ("--admin", "127.0.0.1:0", "--policy", "ticket")
    server = RunningServer(release, state, *options)
    try:
        visit = AdminVisit(server)
        assert visit.form("/files/rule", "/files/rule", path="/README.txt", note="kept").ok
        token = visit.api_token()
        etag = visit.get("/api/v1/settings").headers["etag"]
        headers = {"Authorization": f"Bearer {token}", "If-Match": etag}
        body = {"settings": {"slots": 77}, "note": "kept too"}
        url = visit.url + "/api/v1/settings"
        assert requests.patch(url, json=body, headers=headers, timeout=20).status_code == 200
        stale = requests.patch(url, json=body, headers=headers, timeout=20)
        assert stale.status_code == 412
        assert stale.headers["content-type"] == "application/problem+json"
        assert requests.get(f"{server.url}/README.txt", timeout=20).status_code == 200
        visit.form("/files/rule", "/files/rule", path="/README.txt", require_class="gold")
        assert requests.get(f"{server.url}/README.txt", timeout=20).status_code == 403
        cookies = visit.web.cookies
    finally:
        server.stop()
    assert oct((state / "admin.key").stat().st_mode)[-3:] == "600"
    server = RunningServer(release, state, *options)
    try:
        assert "log in as admin with" not in "".join(server.lines)
        again = AdminVisit(server)
        found = again.get("/api/v1/settings").json()
        assert (found["settings"]["slots"], found["note"]) == (77, "kept too")
        assert requests.get(f"{server.url}/README.txt", timeout=20).status_code == 403
        old = requests.get(again.url + "/queue", cookies=cookies, timeout=20, allow_redirects=False)
        assert old.status_code == 200, "a session survives a restart"
        assert PASSWORD not in "".join(server.lines)
    finally:
        server.stop()

"""The same pages in Firefox: without a fault for axe, and a download that starts in place."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest
import requests

from tests.admin_browser import PASSWORD, AdminVisit
from tests.firefox import Firefox, firefox, need_firefox
from tests.running import make_release, serving, sha256, wait_for
from tests.test_e2e_waiting_page import SIZE, full_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WIDE, PHONE = (1280, 900), (390, 844)


def faults(browser: Firefox, url: str, picture: Path) -> list[str]:
    """What is wrong with a page, as it is shown now."""
    browser.open(url)
    found = browser.violations()
    if browser.ask("document.documentElement.scrollWidth > innerWidth + 1"):
        found.append("wider than the screen")
    browser.picture(picture)
    return [f"{url}: {fault}" for fault in found]


@pytest.mark.parametrize(
    ("language", "dark", "size"), [("en", False, WIDE), ("he", True, PHONE)], ids=["en", "he"]
)
def test_no_public_page_has_a_fault(
    tmp_path: Path, language: str, dark: bool, size: tuple[int, int]
) -> None:
    need_firefox()
    release = tmp_path / "release"
    make_release(release, big_iso=SIZE, big_iso_asc=5, notes_txt=100)
    (release / "README.md").write_text("# Tideland\n\n[Notes](notes.txt), `code`\n")
    slow = ("--policy", "ticket", "--slots", "1", "--reserve-small", "0", "--bandwidth", "40KB")
    found: list[str] = []
    with (
        serving(release, tmp_path / "state", *slow) as server,
        requests.get(f"{server.url}/big.iso", timeout=60, stream=True),
        firefox(tmp_path / "firefox", language=language, dark=dark) as browser,
    ):
        browser.size(*size)
        for number, path in enumerate(("/", "/big.iso", "/none", "/-/problems/waiting")):
            picture = tmp_path / f"{number}.png"
            found += faults(browser, server.url + path, picture)
            shown = browser.ask("document.documentElement.dir + document.documentElement.lang")
            assert path.startswith("/-/") or shown == ("rtlhe" if language == "he" else "ltren")
        server.kill()
    assert found == []


def test_the_waiting_page_starts_the_download_in_place(tmp_path: Path) -> None:
    need_firefox()
    digests = make_release(tmp_path / "release", big_iso=SIZE, big_iso_asc=5)
    folder = tmp_path / "firefox"
    with firefox(folder) as browser, full_server(tmp_path) as (url, first):
        browser.open(url)
        assert browser.ask("document.querySelector('h1').textContent") == "You are next"
        heading = "(document.querySelector('h1') || {}).textContent"
        wait_for(lambda: browser.ask(heading) == "Your download has started", 90)
        digest = "document.querySelector('[data-live=digest]').textContent"
        wait_for(lambda: browser.ask(digest) == digests["big.iso"], 20)
        commands = browser.ask("[...document.querySelectorAll('pre')].map(p => p.textContent)")
        assert "gpg --verify big.iso.asc big.iso" in commands[1]
        browser.picture(tmp_path / "started.png")
        finished = folder / "big.iso"
        wait_for(lambda: finished.exists() and finished.stat().st_size == SIZE, 60)
        assert sha256(finished) == digests["big.iso"]
        with sqlite3.connect(tmp_path / "state" / "tidegate.db") as database:
            (early,) = database.execute("SELECT sum(early_polls) FROM tickets").fetchone()
        database.close()
        # It was called, and its slot kept for it.
        assert early == 0
        assert first.wait(60) == 0


def test_the_waiting_page_ends_in_a_download_without_scripts(tmp_path: Path) -> None:
    need_firefox()
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    folder = tmp_path / "firefox"
    with firefox(folder, scripts=False) as browser, full_server(tmp_path) as (url, first):
        browser.open(url)
        browser.picture(tmp_path / "waiting.png")
        finished = folder / "big.iso"
        wait_for(lambda: finished.exists() and finished.stat().st_size == SIZE, 120)
        assert sha256(finished) == digests["big.iso"]
        assert first.wait(60) == 0


def test_the_administration_has_no_fault(tmp_path: Path) -> None:
    need_firefox()
    make_release(tmp_path / "release", big_iso=SIZE, notes_txt=100)
    options = ("--admin", "127.0.0.1:0", "--bandwidth", "40KB", "--slots", "1")
    found: list[str] = []
    with (
        serving(tmp_path / "release", tmp_path / "state", *options) as server,
        requests.get(f"{server.url}/big.iso", timeout=60, stream=True),
        firefox(tmp_path / "firefox") as browser,
    ):
        admin = AdminVisit(server).url
        browser.size(*WIDE)
        found += faults(browser, f"{admin}/login", tmp_path / "login.png")
        fill = "document.getElementById('f-{}').value = {}"
        browser.ask(fill.format("name", json.dumps("admin")))
        browser.ask(fill.format("password", json.dumps(PASSWORD)))
        browser.ask("document.querySelector('main button').click()")
        inside = "document.querySelector('[aria-current=page]') !== null"
        wait_for(lambda: browser.ask(inside), 30)
        links = browser.ask("[...document.querySelectorAll('nav a')].map(a => a.href)")
        assert len(links) >= 9
        for link in links:
            name = re.sub(r"\W", "", link.removeprefix(admin)) or "now"
            found += faults(browser, link, tmp_path / f"{name}.png")
            assert "{{" not in browser.ask("document.body.textContent"), link
        server.kill()
    assert found == []

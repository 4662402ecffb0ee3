"""The same pages in Firefox: without a fault for axe, and a download that starts in place."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.admin_browser import PASSWORD, AdminVisit
from tests.firefox import Firefox, firefox, need_firefox
from tests.running import make_release, serving, sha256, wait_for
from tests.test_e2e_admin import PAGES
from tests.test_e2e_waiting_page import SIZE, full_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WIDE, PHONE = (1280, 900), (390, 844)


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the browser puts its downloads."""
    need_firefox()
    return tmp_path_factory.mktemp("firefox")


@pytest.fixture(scope="module")
def browser(downloads: Path) -> Iterator[Firefox]:
    """A browser with the usual settings, for all tests of this file."""
    with firefox(downloads) as started:
        yield started


def assert_that_it_fits(browser: Firefox, url: str) -> None:
    """Open a page, which is no wider than the screen."""
    browser.open(url)
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth + 1"), url


def check_public_pages(
    tmp_path: Path, browser: Firefox, size: tuple[int, int], direction_and_language: str
) -> None:
    """No public page has a fault, and each is in this language."""
    release = tmp_path / "release"
    # The browser keeps the ticket's cookie. The test of a download has another file.
    make_release(release, image_iso=SIZE, image_iso_asc=5, notes_txt=100)
    (release / "README.md").write_text("# Tideland\n\n[Notes](notes.txt), `code`\n")
    slow = ("--policy", "ticket", "--slots", "1", "--reserve-small", "0", "--bandwidth", "40KB")
    with (
        serving(release, tmp_path / "state", *slow) as server,
        requests.get(f"{server.url}/image.iso", timeout=60, stream=True),
    ):
        browser.size(*size)
        for path in ("/", "/image.iso", "/none", "/-/problems/waiting"):
            assert_that_it_fits(browser, server.url + path)
            assert browser.violations() == [], path
            shown = browser.ask("document.documentElement.dir + document.documentElement.lang")
            assert path.startswith("/-/") or shown == direction_and_language
        server.kill()


def test_no_public_page_has_a_fault(tmp_path: Path, browser: Firefox) -> None:
    check_public_pages(tmp_path, browser, WIDE, "ltren")


def test_no_public_page_in_hebrew_on_a_dark_phone_has_a_fault(tmp_path: Path) -> None:
    need_firefox()
    with firefox(tmp_path / "firefox", language="he", dark=True) as browser:
        check_public_pages(tmp_path, browser, PHONE, "rtlhe")


def test_the_waiting_page_starts_the_download_in_place(
    tmp_path: Path, browser: Firefox, downloads: Path
) -> None:
    digests = make_release(tmp_path / "release", big_iso=SIZE, big_iso_asc=5)
    with full_server(tmp_path) as (url, first):
        browser.open(url)
        assert browser.ask("document.querySelector('h1').textContent") == "You are next"
        heading = "(document.querySelector('h1') || {}).textContent"
        wait_for(lambda: browser.ask(heading) == "Your download has started", 90)
        digest = "document.querySelector('[data-live=digest]').textContent"
        wait_for(lambda: browser.ask(digest) == digests["big.iso"], 20)
        commands = browser.ask("[...document.querySelectorAll('pre')].map(p => p.textContent)")
        assert "gpg --verify big.iso.asc big.iso" in commands[1]
        finished = downloads / "big.iso"
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
        finished = folder / "big.iso"
        wait_for(lambda: finished.exists() and finished.stat().st_size == SIZE, 120)
        assert sha256(finished) == digests["big.iso"]
        assert first.wait(60) == 0


def test_the_administration_fits_and_has_all_its_pages(tmp_path: Path, browser: Firefox) -> None:
    """axe looks at the same pages in Chromium: `test_e2e_admin`."""
    make_release(tmp_path / "release", big_iso=SIZE, notes_txt=100)
    options = ("--admin", "127.0.0.1:0", "--bandwidth", "40KB", "--slots", "1")
    with (
        serving(tmp_path / "release", tmp_path / "state", *options) as server,
        requests.get(f"{server.url}/big.iso", timeout=60, stream=True),
    ):
        admin = AdminVisit(server).url
        browser.size(*WIDE)
        assert_that_it_fits(browser, f"{admin}/login")
        fill = "document.getElementById('f-{}').value = {}"
        browser.ask(fill.format("name", json.dumps("admin")))
        browser.ask(fill.format("password", json.dumps(PASSWORD)))
        browser.ask("document.querySelector('main button').click()")
        inside = "document.querySelector('[aria-current=page]') !== null"
        wait_for(lambda: browser.ask(inside), 30)
        links = browser.ask("[...document.querySelectorAll('nav a')].map(a => a.href)")
        assert len(links) >= 9
        assert {link.removeprefix(admin).partition("?")[0] for link in links} <= set(PAGES)
        for link in links:
            assert_that_it_fits(browser, link)
            assert "{{" not in browser.ask("document.body.textContent"), link
        server.kill()

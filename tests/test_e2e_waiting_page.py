"""A browser waits on the page, without scripts, and ends with the file on its disk."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.running import make_release, serving, sha256, wait_for
from tidegate.server.admission.responses import paragraphs_of

pytestmark = pytest.mark.e2e

SIZE = 3_000_000
QUICK_SIZE = 400_000
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--lang=de",
    "--window-size=900,900",
)


#: Notes what the page asks of its visitor, and what it tells; a headless browser shows neither.
NOTIFIED = """
window.told = [];
window.Notification = class {
  static get permission() { return sessionStorage.asked ? "granted" : "default"; }
  static async requestPermission() {
    sessionStorage.asked = Number(sessionStorage.asked ?? 0) + 1;
    return "granted";
  }
  constructor(text) { window.told.push(text); }
};
"""


def browser(
    downloads: Path, *, scripts: bool, language: str = "de,en", cookies: bool = True
) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    preferences: dict[str, object] = {
        "download.default_directory": str(downloads),
        "download.prompt_for_download": False,
        "intl.accept_languages": language,
    }
    if not scripts:
        preferences["profile.managed_default_content_settings.javascript"] = 2
    if not cookies:
        preferences["profile.default_content_setting_values.cookies"] = 2
    options.add_experimental_option("prefs", preferences)
    return webdriver.Chrome(options, Service(shutil.which("chromedriver")))


def need_browser() -> None:
    """A missing browser is told, and in CI it fails the run."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("chromium and chromedriver are not installed")


@contextmanager
def full_server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The URL of a file whose server's only slot is taken for some seconds, and who has it."""
    args = ("--slots", "1", "--reserve-small", "0", "--bandwidth", "500KB", "--policy", "ticket")
    with serving(folder / "release", folder / "state", *args) as server:
        url = server.url + "/big.iso"
        first = subprocess.Popen(["curl", "-sS", "-o", str(folder / "first"), url])
        try:
            wait_for(lambda: (folder / "first").exists())
            yield url, first
        finally:
            first.kill()
            first.wait()


@pytest.mark.timeout(180)
def test_the_waiting_page_ends_in_a_finished_download_without_scripts(tmp_path: Path) -> None:
    need_browser()
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    # The browser is there before the slot is taken: that lasts for some seconds only.
    driver = browser(downloads, scripts=False)
    try:
        with full_server(tmp_path) as (url, first):
            driver.get(url)
            heading = driver.find_element(By.TAG_NAME, "h1").text
            assert heading == "Sie sind als Nächstes an der Reihe"
            assert driver.find_element(By.TAG_NAME, "html").get_attribute("lang") == "de"
            # What is expected may grow, and this page knows nothing of the one before it.
            assert not driver.find_element(By.TAG_NAME, "progress").is_displayed()
            assert not driver.find_element(By.ID, "sound").is_displayed()
            assert re.match(r"\d+ Sek. – Sie sind als Nächstes", driver.title.replace("\xa0", " "))
            assert all(
                node.get_attribute("src") for node in driver.find_elements(By.TAG_NAME, "script")
            )
            sheets = driver.find_elements(By.CSS_SELECTOR, "link[rel=stylesheet]")
            assert len(sheets) == 2
            finished = downloads / "big.iso"
            wait_for(finished.exists, 120)
            assert sha256(finished) == digests["big.iso"]
            assert first.wait() == 0
    finally:
        driver.quit()


@pytest.mark.timeout(180)
def test_with_scripts_the_page_follows_its_ticket_and_says_how_to_check(tmp_path: Path) -> None:
    need_browser()
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    # The browser is there before the slot is taken: that lasts for some seconds only.
    driver = browser(downloads, scripts=True, language="en")
    try:
        with full_server(tmp_path) as (url, first):
            # As a page before this one left it.
            driver.get(url.removesuffix("big.iso"))
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NOTIFIED})
            store = "sessionStorage.setItem('progress', JSON.stringify(arguments[0]))"
            driver.execute_script(store, ["/big.iso", time.time(), 97])
            driver.get(url)
            bar = driver.find_element(By.TAG_NAME, "progress")
            wait_for(bar.is_displayed, 20)
            assert float(bar.get_attribute("value") or 0) >= 97, "progress never falls"
            assert bar.accessible_name
            waited = driver.find_element(By.CSS_SELECTOR, "[data-live=waited]")
            before = waited.text
            wait_for(lambda: waited.text != before, 20)
            # Asked in the page itself: each visit loads it anew.
            icon = "return document.querySelector('link[rel=icon]')?.href ?? ''"
            wait_for(lambda: driver.execute_script(icon).startswith("data:image/png"), 20)
            assert driver.execute_script("return sessionStorage.asked ?? null") is None
            press = "document.querySelector('[data-live=notify]').click()"
            driver.execute_script(press)
            row = "return document.querySelector('[data-live=told]')?.textContent"
            wait_for(lambda: "You will be told" in (driver.execute_script(row) or ""), 20)
            heading = "Your download has started"
            # Asked in the page itself: an element that was found may be gone in the next moment.
            told = "return (document.querySelector('h1') || {}).textContent"
            wait_for(lambda: driver.execute_script(told) == heading, 60)
            assert driver.execute_script("return window.told") == [heading]
            digest = driver.find_element(By.CSS_SELECTOR, "[data-live=digest]")
            wait_for(lambda: digest.text == digests["big.iso"], 20)
            finished = downloads / "big.iso"
            wait_for(finished.exists, 60)
            with sqlite3.connect(tmp_path / "state" / "tidegate.db") as database:
                (early,) = database.execute("SELECT sum(early_polls) FROM tickets").fetchone()
            database.close()
            # Asking how the ticket stands is never early, and it was called when its turn came.
            assert early == 0
            assert sha256(finished) == digests["big.iso"]
            assert first.wait() == 0
    finally:
        driver.quit()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("cookies", [True, False])
def test_a_place_is_said_to_be_kept_only_where_the_browser_keeps_cookies(
    tmp_path: Path, cookies: bool
) -> None:
    need_browser()
    make_release(tmp_path / "release", big_iso=SIZE)
    driver = browser(tmp_path, scripts=True, language="en", cookies=cookies)
    try:
        with full_server(tmp_path) as (url, _):
            driver.get(url)
            said = driver.find_element(By.TAG_NAME, "main").text
            assert "Keep this page open" in said
            assert ("your place is kept" in said) == cookies
    finally:
        driver.quit()


@pytest.mark.timeout(180)
def test_a_download_that_is_over_before_the_page_asks_is_told_complete(tmp_path: Path) -> None:
    need_browser()
    # Large enough to need a slot, and done within a second.
    digests = make_release(tmp_path / "release", big_iso=SIZE, quick_iso=QUICK_SIZE)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    driver = browser(downloads, scripts=True, language="en")
    try:
        with full_server(tmp_path) as (url, first):
            driver.get(url.replace("big.iso", "quick.iso"))
            told = "return (document.querySelector('h1') || {}).textContent"
            heading = "Your download is complete"
            wait_for(lambda: driver.execute_script(told) == heading, 60)
            page = driver.find_element(By.TAG_NAME, "main").text
            assert digests["quick.iso"] in page
            assert "has been delivered" in page
            assert "asks again" not in page
            assert sha256(downloads / "quick.iso") == digests["quick.iso"]
            assert first.wait() == 0
    finally:
        driver.quit()


@pytest.mark.timeout(180)
def test_a_page_whose_ticket_is_over_loads_anew(tmp_path: Path) -> None:
    need_browser()
    make_release(tmp_path / "release", big_iso=2 * SIZE)
    driver = browser(tmp_path, scripts=True, language="en")
    try:
        with full_server(tmp_path) as (url, _first):
            driver.get(url)
            answers = (
                "window.fetch = async () => new Response(JSON.stringify({state: '%s', place: 7}));"
            )
            # As while the doors are closed: a time that was told before is true no more.
            driver.execute_script(answers % "waiting")
            parts = "return [...document.querySelectorAll('dd[data-live]')].map(d => d.textContent)"
            wait_for(lambda: driver.execute_script(parts).count("…") == 5, 30)
            wait_for(lambda: driver.title == "You are number 7 in the queue – big.iso")
            driver.execute_script("window.old = true;" + answers % "over")
            wait_for(lambda: driver.execute_script("return window.old !== true"), 30)
            wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "[data-queue]"), 20)
    finally:
        driver.quit()


@pytest.mark.timeout(180)
def test_the_page_stays_while_the_server_is_away(tmp_path: Path) -> None:
    """Refresh would leave the browser's error page there, from which most never ask again."""
    need_browser()
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    driver = browser(downloads, scripts=True, language="en")
    args = ("--slots", "1", "--reserve-small", "0", "--bandwidth", "500KB", "--policy", "ticket")
    folders = (tmp_path / "release", tmp_path / "state")
    try:
        with full_server(tmp_path) as (url, _first):
            driver.get(url)
            # A server that is being stopped still answers for a while.
            driver.execute_script(
                "window.same = window.fetch;"
                "window.fetch = async () => new Response('', {status: 503});"
            )
        due = "return performance.now() / 1000 - document.querySelector('main').dataset.visit"
        wait_for(lambda: driver.execute_script(due) > 3, 60)
        driver.execute_script("window.fetch = window.same;")
        wait_for(lambda: driver.execute_script(due) > 9, 60)
        assert driver.find_element(By.CSS_SELECTOR, "[data-live=visit]").text
        listen = ("--listen", urlsplit(url).netloc)
        with serving(*folders, *args, *listen):
            finished = downloads / "big.iso"
            wait_for(finished.exists, 60)
            assert sha256(finished) == digests["big.iso"]
    finally:
        driver.quit()


def test_how_a_ticket_stands_is_told_to_its_owner_only(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=SIZE)
    with full_server(tmp_path) as (url, first):
        origin = url.removesuffix("/big.iso")
        told = requests.get(url, headers={"Tidegate-Wait": "ticket"}, timeout=10)
        assert told.status_code == 503
        mine = {"Tidegate-Ticket": told.json()["ticket"]}
        place = f"{origin}/-/queue/big.iso"
        status = requests.get(place, headers=mine, timeout=10).json()
        assert status["state"] in ("waiting", "ready")
        assert status["place"] == 1
        # The only slot is taken: a visit now would be early.
        assert not status.get("free")
        assert status["expected_wait_s"] <= status["p90_wait_s"]
        assert requests.get(place, timeout=10).status_code == 403
        forged = {"Tidegate-Ticket": mine["Tidegate-Ticket"][:-2] + "xx"}
        assert requests.get(place, headers=forged, timeout=10).status_code == 403
        other = f"{origin}/-/queue/other.iso"
        assert requests.get(other, headers=mine, timeout=10).status_code == 403
        assert first.wait() == 0


def test_an_operators_text_is_paragraphs_and_links() -> None:
    first, second = paragraphs_of(
        "Hello\r\nall.\n\n\nSee https://example.org/x?a=1, <b>please</b>."
    )
    assert first == [{"text": "Hello\nall."}]
    assert [part.get("url") for part in second] == [None, "https://example.org/x?a=1", None]
    assert "".join(part["text"] for part in second).endswith(", <b>please</b>.")
    assert paragraphs_of(" \n\n ") == []
    (only,) = paragraphs_of("javascript:alert(1) data:x")
    assert all("url" not in part for part in only)

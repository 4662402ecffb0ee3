"""The administration of a real server in a real browser: every page, every action."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pyotp
import pytest
import requests
from selenium.webdriver.common.by import By

from tests.admin_browser import (
    AdminVisit,
    From,
    chromium,
    click,
    complaints,
    log_in,
    show,
    text_of_frame,
    type_in,
    violations,
)
from tests.running import RunningServer, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PAGES = (
    *(
        "/",
        "/queue",
        "/queue?tab=downloads",
        "/queue?tab=tickets",
        "/queue?tab=blocks",
        "/queue/block",
        "/policy",
    ),
    *("/policy/revisions", "/files", "/files/rule", "/passes", "/waiting", "/waiting/preview"),
    *("/report", "/network", "/alerts", "/log", "/account", "/nothing-here"),
)
EVIL = "<img src=x onerror=document.title='owned'>.bin"
PRIMARY = "form.card button.primary"
GRAVE = "form button.grave"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, AdminVisit]]:
    release = tmp_path_factory.mktemp("release")
    (release / "big.iso").write_bytes(os.urandom(6_000_000))
    (release / EVIL).write_bytes(b"x" * 5_000)
    (release / "README.txt").write_text("hello")
    state = tmp_path_factory.mktemp("state") / "state"
    options = ("--admin", "127.0.0.1:0", "--policy", "ticket", "--slots", "3")
    options += ("--reserve-small", "1", "--bandwidth", "1Mbit")
    server = RunningServer(release, state, *options)
    try:
        yield server, AdminVisit(server)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def visit(site: tuple[RunningServer, AdminVisit]) -> Iterator[AdminVisit]:
    """The operator, while clients download and wait as long as the module runs."""
    server, operator = site
    over = threading.Event()

    def come(number: int) -> None:
        session = requests.Session()
        session.mount("http://", From(f"127.0.1.{number + 1}"))
        headers = {"Tidegate-Wait": "ticket", "User-Agent": f"<b>visitor</b>/{number}"}
        while not over.is_set():
            again = 1.0
            try:
                with session.get(
                    f"{server.url}/big.iso", headers=headers, stream=True, timeout=20
                ) as answer:
                    for _ in answer.iter_content(4096):
                        if over.is_set():
                            return
                    again = float(answer.headers.get("Retry-After", "1"))
            except requests.RequestException:
                pass
            over.wait(min(again, 3.0))

    threads = [threading.Thread(target=come, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: operator.get("/api/v1/state").json()["waiting"] >= 3, 30)
    yield operator
    over.set()
    # Who waits for an answer would wait on.
    server.kill()
    for thread in threads:
        thread.join(10)


@pytest.fixture(scope="module")
def driver(visit: AdminVisit) -> Iterator[Any]:
    """A browser that has logged in."""
    with chromium() as found:
        found.get(visit.url + "/login")
        assert violations(found) == []
        log_in(found, visit.url)
        yield found


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_page_is_accessible_fits_and_breaks_no_policy(
    driver: Any, visit: AdminVisit, look: str
) -> None:
    show(driver, dark=look == "dark", phone=look == "phone")
    # Darkness changes colours alone.
    rules = ("color-contrast",) if look == "dark" else ()
    try:
        for path in PAGES:
            driver.get(visit.url + path)
            assert violations(driver, *rules) == [], path
            assert [c for c in complaints(driver) if "nothing-here" not in c] == [], path
            if look == "phone":
                width = driver.execute_script("return document.documentElement.scrollWidth")
                assert width <= 390, path
        ink = driver.execute_script("return getComputedStyle(document.documentElement).color")
        bright = sum(int(n) for n in ink[4:-1].split(",")[:3])
        assert (bright > 380) is (look == "dark")
    finally:
        show(driver)


def test_charts_live_lists_follow_and_the_theme_can_be_chosen(
    driver: Any, visit: AdminVisit
) -> None:
    driver.get(visit.url + "/")
    wait_for(lambda: len(driver.find_elements(By.CSS_SELECTOR, ".plot canvas")) == 8, 10)
    assert len(driver.find_elements(By.CSS_SELECTOR, ".plot canvas")) == 8
    driver.execute_script("document.querySelector('#now h1').textContent = 'stale'")
    wait_for(lambda: driver.find_element(By.CSS_SELECTOR, "#now h1").text != "stale", 15)
    assert driver.find_element(By.CSS_SELECTOR, "#now h1").text != "stale"
    assert complaints(driver) == []
    for word in ("dark", "light", "auto"):
        click(driver, f"button[value={word}]")
        chosen = driver.find_element(By.TAG_NAME, "html").get_attribute("data-theme")
        assert chosen == (None if word == "auto" else word)


def test_an_operator_previews_applies_and_restores_a_policy(driver: Any, visit: AdminVisit) -> None:
    before = visit.get("/api/v1/settings").json()
    driver.get(visit.url + "/policy")
    driver.find_element(By.CSS_SELECTOR, "input[value=fair]").click()
    type_in(driver, "f-slots", "5")
    driver.find_element(By.CSS_SELECTOR, "option[value=exp2]").click()
    click(driver, "button[value=preview]")
    wait_for(lambda: "Now against proposed" in driver.page_source, 90)
    assert violations(driver) == []
    assert complaints(driver) == []
    pictures = driver.find_elements(By.CSS_SELECTOR, "img.picture")
    assert len(pictures) == 2
    for picture in pictures:
        assert driver.execute_script("return arguments[0].naturalWidth", picture) > 0
    click(driver, PRIMARY)
    applied = visit.get("/api/v1/settings").json()
    assert (applied["policy"], applied["settings"]["slots"]) == ("fair", 5)
    assert applied["number"] == before["number"] + 1
    driver.get(f"{visit.url}/policy/revisions/{before['number']}/restore")
    click(driver, PRIMARY)
    restored = visit.get("/api/v1/settings").json()
    assert restored["policy"] == before["policy"]
    assert restored["settings"] == before["settings"]
    assert restored["restored_from"] == before["number"]
    driver.get(visit.url + "/policy/revisions")
    assert violations(driver) == []


def test_a_bad_setting_is_shown_at_its_field(driver: Any, visit: AdminVisit) -> None:
    driver.get(visit.url + "/policy")
    type_in(driver, "f-slots", "-3")
    click(driver, "button[value=apply]")
    wrong = driver.find_elements(By.CSS_SELECTOR, ".field.wrong")
    assert [w.find_element(By.TAG_NAME, "input").get_attribute("id") for w in wrong] == ["f-slots"]
    assert violations(driver) == []


def test_release_pages_act(driver: Any, visit: AdminVisit) -> None:
    driver.get(visit.url + "/files/rule?path=%2F42.1%2F%2A")
    for name, moment in (
        ("hidden_until_s", "2040-01-31T12:00"),
        ("prequeue_from_s", "2020-01-01T00:00"),
    ):
        driver.execute_script(
            "document.getElementById(arguments[0]).value = arguments[1]", f"f-{name}", moment
        )
    click(driver, PRIMARY)
    draws = visit.get("/api/v1/prequeues").json()["prequeues"]
    assert [(d["path"], d["seed"]) for d in draws] == [("/42.1/*", None)]
    assert draws[0]["commitment"] in driver.page_source
    assert violations(driver) == []
    click(driver, "button[aria-label='Remove the rule for /42.1/*']")
    assert visit.get("/api/v1/rules").json()["rules"] == []

    driver.get(visit.url + "/waiting")
    type_in(driver, "f-title", "Release night <3")
    type_in(driver, "f-text", "Donaudampfschifffahrtsgesellschaft" * 6)
    for frame in driver.find_elements(By.CSS_SELECTOR, "iframe.preview"):
        wait_for(lambda frame=frame: "Release night <3" in text_of_frame(driver, frame))
    leave = "return dispatchEvent(new Event('beforeunload', {cancelable: true}))"
    assert not driver.execute_script(leave), "typed words are not lost without a question"
    click(driver, PRIMARY)
    assert visit.get("/api/v1/waiting-page").json()["title"] == "Release night <3"
    frame = driver.find_element(By.CSS_SELECTOR, "iframe.preview")
    assert "Release night <3" in text_of_frame(driver, frame)
    driver.get(visit.url + "/waiting/preview")
    fits = "return document.documentElement.scrollWidth <= innerWidth"
    assert driver.execute_script(fits), "a word longer than a line is broken"

    fields = {"kind": "gold", "path": "*", "max_uses": "1", "expires_s": "2040-01-01T00:00"}
    sheet = visit.form("/passes", "/passes", count="3", **fields)
    assert sheet.headers["content-type"].startswith("text/csv")
    assert len(sheet.text.strip().splitlines()) == 4
    driver.get(visit.url + "/passes")
    click(driver, "a[aria-label^='Revoke']")
    click(driver, GRAVE)
    states = [p["revoked"] for p in visit.get("/api/v1/passes").json()["passes"]]
    assert sorted(states) == [False, False, True]


def test_a_table_is_printed_as_a_table(driver: Any, visit: AdminVisit) -> None:
    """A4 is narrower than what counts as a phone on a screen."""
    driver.get(visit.url + "/files")
    show(driver, phone=True)
    row = "return getComputedStyle(document.querySelector('tbody tr')).display"
    assert driver.execute_script(row) == "block"
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script(row) == "table-row"
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    show(driver)


def test_accounts_codes_and_roles(driver: Any, visit: AdminVisit) -> None:
    driver.get(visit.url + "/account")
    type_in(driver, "u-name", "watcher")
    type_in(driver, "u-password", "a first password")
    click(driver, "form[action='/account/users'] button")
    click(driver, "form[action='/account/totp'] button")
    assert violations(driver) == []
    secret = driver.find_element(By.CSS_SELECTOR, ".secret").text
    assert driver.find_elements(By.CSS_SELECTOR, "svg.qr")
    type_in(driver, "f-code", "000000")
    click(driver, "form[action='/account/totp/on'] button")
    assert "does not fit" in driver.page_source
    type_in(driver, "f-code", pyotp.TOTP(secret).now())
    click(driver, "form[action='/account/totp/on'] button")
    assert "One-time codes are on" in driver.page_source
    type_in(driver, "totp-old", "correct horse battery")
    click(driver, "form[action='/account/totp/off'] button")
    names = [row.text for row in driver.find_elements(By.CSS_SELECTOR, "td[data-label=Name]")]
    assert names == ["admin", "watcher"]
    click(driver, "button[aria-label='Remove user watcher']")
    assert "watcher" not in driver.find_element(By.TAG_NAME, "main").text


def test_file_names_and_agents_never_run(
    driver: Any, site: tuple[RunningServer, AdminVisit], visit: AdminVisit
) -> None:
    server, _ = site
    requests.get(f"{server.url}/{EVIL}", headers={"User-Agent": EVIL}, timeout=20)
    for path in ("/files", "/queue", "/queue?tab=tickets", "/log"):
        driver.get(visit.url + path)
        assert driver.title != "owned"
        assert driver.find_elements(By.CSS_SELECTOR, "img[src=x]") == []
    driver.get(visit.url + "/files")
    assert EVIL in driver.find_element(By.TAG_NAME, "main").text


def test_everything_can_be_done_without_a_script(visit: AdminVisit) -> None:
    with chromium(script=False) as plain:
        log_in(plain, visit.url)
        plain.get(visit.url + "/")
        assert len(plain.find_elements(By.CSS_SELECTOR, ".plot svg")) == 8
        assert 'http-equiv="refresh"' in plain.page_source
        plain.get(visit.url + "/queue?tab=downloads")
        click(plain, "a[aria-label^='Cancel']")
        number = plain.current_url.split("/")[-2]
        click(plain, GRAVE)
        rows = visit.get("/api/v1/downloads").json()["leases"]
        assert int(number) not in [row["lease"] for row in rows]
        plain.get(visit.url + "/queue?tab=tickets")
        click(plain, "tr:last-child a[aria-label^='Promote']")
        click(plain, "main form button.primary")
        plain.get(visit.url + "/queue/block?network=203.0.113.0%2F24")
        click(plain, GRAVE)
        assert "203.0.113.0/24" in plain.page_source
        click(plain, "td form button")
        assert "203.0.113.0/24" not in plain.page_source
    kinds = [event["kind"] for event in visit.get("/api/v1/events").json()["events"]]
    assert {"cancel", "promote", "block", "unblock", "login"} <= set(kinds)

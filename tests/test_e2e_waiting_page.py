"""A browser waits on the page, without scripts, and ends with the file on its disk."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.running import make_release, serving, sha256, wait_for

pytestmark = pytest.mark.e2e

SIZE = 3_000_000
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


def browser(downloads: Path, *, scripts: bool, language: str = "de,en") -> webdriver.Chrome:
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
    options.add_experimental_option("prefs", preferences)
    return webdriver.Chrome(options, Service(shutil.which("chromedriver")))


@pytest.mark.timeout(180)
def test_the_waiting_page_ends_in_a_finished_download_without_scripts(tmp_path: Path) -> None:
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("chromium and chromedriver are not installed")
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    args = ("--slots", "1", "--reserve-small", "0", "--bandwidth", "500KB", "--policy", "ticket")
    with serving(tmp_path / "release", tmp_path / "state", *args) as server:
        url = server.url + "/big.iso"
        first = subprocess.Popen(["curl", "-sS", "-o", str(tmp_path / "first"), url])
        wait_for(lambda: (tmp_path / "first").exists())
        driver = browser(downloads, scripts=False)
        try:
            driver.get(url)
            heading = driver.find_element(By.TAG_NAME, "h1").text
            assert heading == "Sie sind als Nächstes an der Reihe"
            assert driver.find_element(By.TAG_NAME, "html").get_attribute("lang") == "de"
            assert driver.find_element(By.TAG_NAME, "progress").accessible_name
            assert driver.find_elements(By.TAG_NAME, "script") == []
            sheets = driver.find_elements(By.CSS_SELECTOR, "link[rel=stylesheet]")
            assert len(sheets) == 2
            driver.save_screenshot(str(tmp_path / "waiting.png"))
            finished = downloads / "big.iso"
            wait_for(finished.exists, 120)
            assert sha256(finished) == digests["big.iso"]
        finally:
            driver.quit()
        assert first.wait() == 0

"""Takes the pictures of the documents: a full server, seen by its operator and by a visitor.

    python -m tests.pictures FOLDER

It needs chromium and chromedriver, and takes about a minute.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import requests
from selenium.webdriver.common.by import By

from tests import installed
from tests.admin_browser import AdminVisit, From, chromium, click, log_in
from tests.running import RunningServer, make_release, wait_for

FLAGS = ("--policy", "ticket", "--slots", "12", "--bandwidth", "40Mbit", "--admin", "127.0.0.1:0")
FILES = {"tideland-1.0-amd64_iso": 24_000_000, "tideland-1.0-arm64_iso": 21_000_000}
CLIENTS = 70
#: One client comes in this time; charts need some minutes of life to show anything.
ARRIVAL_S = 0.4


def visit(url: str, number: int, over: threading.Event) -> None:
    """Download one file from a network of one's own, and wait for it as told."""
    session = requests.Session()
    session.mount("http://", From(f"127.{number + 1}.0.1"))
    headers = {"Tidegate-Wait": "ticket", "User-Agent": "Wget/1.21"}
    path = ("/tideland-1.0-amd64.iso", "/tideland-1.0-arm64.iso")[number % 2]
    while not over.is_set():
        with session.get(url + path, headers=headers, stream=True, timeout=60) as answer:
            if answer.status_code == 200:
                for _ in answer.iter_content(1 << 16):
                    if over.is_set():
                        return
                return
            again_s = float(answer.headers["Retry-After"])
            headers["Tidegate-Ticket"] = answer.headers["Tidegate-Ticket"]
        over.wait(again_s)


def save(driver: Any, path: Path, width: int, height: int | None = None) -> None:
    """The page at hand, as wide as that; all of it unless a height is given."""
    for tall in (height or 900, height or None):
        # What sticks to the screen is as tall as a page that is shown whole.
        whole = driver.execute_script("return document.documentElement.scrollHeight")
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": tall or whole, "deviceScaleFactor": 1, "mobile": False},
        )
        time.sleep(1.0)  # Charts draw anew.
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    path.write_bytes(base64.b64decode(shot["data"]))


def take(server: RunningServer, folder: Path) -> None:
    """All pictures, of a server that has a crowd."""
    operator = AdminVisit(server)
    with chromium() as driver:
        driver.get(f"{server.url}/tideland-1.0-arm64.iso")
        wait_for(lambda: driver.find_elements(By.TAG_NAME, "h1"))
        save(driver, folder / "waiting-page.png", 900, 640)
        log_in(driver, operator.url)
        save(driver, folder / "admin-now.png", 1280, 757)
        save(driver, folder / "admin-overview.png", 1080)
        driver.get(operator.url + "/policy")
        driver.find_element(By.CSS_SELECTOR, "input[value=fair]").click()
        driver.find_element(By.CSS_SELECTOR, "option[value=exp2]").click()
        click(driver, "button[value=preview]")
        wait_for(lambda: "Now against proposed" in driver.page_source, 90)
        save(driver, folder / "admin-preview.png", 1080)


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    installed.install()
    installed.enter(os.environ)
    over = threading.Event()
    with tempfile.TemporaryDirectory() as scratch:
        make_release(Path(scratch, "release"), **FILES)
        server = RunningServer(Path(scratch, "release"), Path(scratch, "state"), *FLAGS)
        try:
            for number in range(CLIENTS):
                words = (server.url, number, over)
                threading.Thread(target=visit, args=words, daemon=True).start()
                time.sleep(ARRIVAL_S)
            take(server, folder)
        finally:
            over.set()
            server.stop()


if __name__ == "__main__":
    main()

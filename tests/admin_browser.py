"""A running server's administration: a plain HTTP session, an API token, a headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.running import RunningServer, wait_for

PASSWORD = "correct horse battery"
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


class From(HTTPAdapter):
    """Visits from an address of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["source_address"] = (self._address, 0)
        return super().init_poolmanager(*args, **kwargs)


class AdminVisit:
    """A logged-in HTTP session of the operator; it has chosen its password."""

    def __init__(self, server: RunningServer) -> None:
        text = "".join(server.lines)
        self.url = re.search(r"Admin +(http://[\d.:]+)", text)[1]  # type: ignore[index]
        first = re.search(r"log in as admin with (\S+)", text)
        self.web = requests.Session()
        if first is not None:
            self.form("/login", name="admin", password=first[1])
            self.form("/account/password", old=first[1], password=PASSWORD, again=PASSWORD)
        else:
            self.form("/login", name="admin", password=PASSWORD)

    def get(self, path: str) -> requests.Response:
        return self.web.get(self.url + path, timeout=60)

    def form(self, path: str, page: str = "", /, **fields: str) -> requests.Response:
        """Load the page with the form, then send it."""
        where = page or ("/login" if path == "/login" else "/account")
        token = _CSRF.search(self.get(where).text)
        assert token is not None
        data = {"csrf": token[1], **fields}
        return self.web.post(self.url + path, data=data, timeout=60)

    def api_token(self) -> str:
        page = self.form("/account/tokens", label="test", role="operator", days="1").text
        return re.search(r"tga_[\w-]+", page)[0]  # type: ignore[index]


@contextmanager
def chromium(*, script: bool = True) -> Iterator[Any]:
    """A headless browser; `show` makes it dark or small."""
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*_FLAGS, "--window-size=1440,900"):
        options.add_argument(flag)
    if not script:
        off = {"profile.managed_default_content_settings.javascript": 2}
        options.add_experimental_option("prefs", off)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: Any, *, dark: bool = False, phone: bool = False) -> None:
    """What the browser says of its user's taste and screen."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    if phone:
        size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    else:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def log_in(driver: Any, url: str, name: str = "admin") -> None:
    """Through the form, as a person."""
    driver.get(url + "/login")
    driver.find_element(By.ID, "f-name").send_keys(name)
    driver.find_element(By.ID, "f-password").send_keys(PASSWORD)
    click(driver, "main button")


def click(driver: Any, css: str) -> None:
    """Click what leads to another page, and be there."""
    element = driver.find_element(By.CSS_SELECTOR, css)
    element.click()

    def is_there() -> bool:
        try:
            element.is_enabled()
        except StaleElementReferenceException:
            return bool(driver.execute_script("return document.readyState") == "complete")
        except WebDriverException:  # between two pages
            return False
        return False

    wait_for(is_there, 30)


def text_of_frame(driver: Any, frame: Any) -> str:
    """What a frame shows, and nothing while it loads."""
    driver.switch_to.frame(frame)
    try:
        shown = driver.execute_script("return document.body && document.body.innerText")
    finally:
        driver.switch_to.default_content()
    return shown or ""


def type_in(driver: Any, ident: str, text: str) -> None:
    """Replace what a field holds."""
    field = driver.find_element(By.ID, ident)
    field.clear()
    field.send_keys(text)


def violations(driver: Any, *rules: str) -> list[str]:
    """What axe-core finds wrong with the page at hand, by these of its rules or by all."""
    driver.execute_script(AXE)
    found = driver.execute_async_script(
        "const [rules, done] = arguments;"
        "axe.run(document, rules.length ? {runOnly: rules} : {}).then(done)",
        rules,
    )
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found["violations"]]


def complaints(driver: Any) -> list[str]:
    """What the browser's console says is wrong: a broken policy, a failed script."""
    return [
        entry["message"]
        for entry in driver.get_log("browser")
        if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
    ]

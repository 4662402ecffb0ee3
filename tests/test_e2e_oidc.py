"""Operators log in through a real provider, in a real browser, at a confined server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from selenium.webdriver.common.by import By

from bench.shared.ports import free_port
from tests import oidc_provider
from tests.admin_browser import chromium, click, complaints, violations
from tests.installed import PYTHON
from tests.running import make_release, serving, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    """Of the provider and of the administration that it knows."""
    port, admin = free_port(), f"http://127.0.0.1:{free_port()}"
    words = [PYTHON, "-m", "tests.oidc_provider", str(port), f"{admin}/login/oidc/back"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    issuer = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return requests.get(f"{issuer}/.well-known/openid-configuration", timeout=5).ok
        except requests.ConnectionError:
            return False

    try:
        wait_for(answers, 60)
        yield issuer, admin
    finally:
        process.kill()
        process.wait()


def test_people_of_a_group_log_in_and_others_are_told_why_not(
    addresses: tuple[str, str], tmp_path: Path
) -> None:
    issuer, admin = addresses
    make_release(tmp_path / "release", big_iso=100_000)
    file = tmp_path / "tidegate.toml"
    file.write_text(
        f"""
        [oidc]
        issuer = "{issuer}"
        client_id = "{oidc_provider.CLIENT[0]}"
        client_secret = "{oidc_provider.CLIENT[1]}"
        url = "{admin}"
        title = "Canaille"
        scopes = ["openid", "profile", "email", "groups"]
        operators = ["mirror operators"]
        """
    )
    options = ("--admin", admin.removeprefix("http://"), "--config", str(file))
    with serving(tmp_path / "release", tmp_path / "state", *options) as server:
        for name, allowed in (("ada", True), ("eve", False)):
            with chromium() as driver:
                driver.get(f"{admin}/queue")
                assert violations(driver) == []
                assert "Log in with Canaille" in driver.page_source
                click(driver, "a[href^='/login/oidc']")
                assert driver.current_url.startswith(issuer)
                driver.find_element(By.NAME, "login").send_keys(name)
                click(driver, "form [type=submit]")
                driver.find_element(By.NAME, "password").send_keys(oidc_provider.PASSWORD)
                click(driver, "form [type=submit]")
                wait_for(lambda driver=driver: driver.current_url.startswith(admin))
                if not allowed:
                    told = driver.find_element(By.CSS_SELECTOR, "[role=alert]").text
                    assert told.startswith("The provider knows you, but you have no rights here.")
                    assert violations(driver) == []
                    continue
                wait_for(lambda driver=driver: driver.current_url == f"{admin}/queue")
                assert driver.current_url == f"{admin}/queue", driver.page_source
                assert "ada (operator)" in driver.find_element(By.TAG_NAME, "footer").text
                driver.get(f"{admin}/account")
                assert "You log in through Canaille" in driver.page_source
                assert violations(driver) == []
                click(driver, "footer form[action='/logout'] button")
                assert driver.current_url == f"{admin}/login"
                # The provider's own pages lack fonts at times.
                assert [one for one in complaints(driver) if one.startswith(admin)] == []
        assert "client-secret" not in "".join([*server.lines, *server.errors])

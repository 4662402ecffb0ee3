"""A headless Firefox, steered by its own WebDriver BiDi (no driver program is needed)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import websocket

from tests.admin_browser import AXE
from tests.running import wait_for

_ADDRESS = re.compile(r"WebDriver BiDi listening on (ws://\S+)")


def need_firefox() -> None:
    """A missing browser is told, and in CI it fails the run."""
    if shutil.which("firefox-esr") is None:
        pytest.skip("firefox-esr is not installed")


class Firefox:
    """One tab. Every command answers before the next is sent; events are passed over."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(
            f"{address}/session", timeout=120, suppress_origin=True
        )
        self._number = 0
        self.send("session.new", capabilities={})
        self._tab = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method: str, **params: Any) -> Any:
        """A command of BiDi; its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._number:
                assert answer["type"] == "success", answer
                return answer["result"]

    def open(self, url: str) -> None:
        """Load a page to its end."""
        self.send("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def ask(self, expression: str) -> Any:
        """What an expression (or its promise) is in the page, as JSON; None between two pages."""
        found = self.send(
            "script.evaluate",
            expression=f"Promise.resolve({expression}).then(v => JSON.stringify(v ?? null))",
            target={"context": self._tab},
            awaitPromise=True,
        )
        return json.loads(found["result"]["value"]) if found["type"] == "success" else None

    def size(self, width: int, height: int) -> None:
        """How large the page is seen."""
        view = {"width": width, "height": height}
        self.send("browsingContext.setViewport", context=self._tab, viewport=view)

    def violations(self) -> list[str]:
        """What axe-core finds wrong with the page at hand."""
        self.send(
            "script.evaluate",
            expression=AXE,
            target={"context": self._tab},
            awaitPromise=False,
        )
        found = self.ask("axe.run(document).then(r => r.violations)")
        return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found]

    def close(self) -> None:
        """End the session."""
        self._socket.close()


@contextmanager
def firefox(
    folder: Path, *, language: str = "en", dark: bool = False, scripts: bool = True
) -> Iterator[Firefox]:
    """A browser whose profile and downloads are below `folder`."""
    profile = folder / "profile"
    profile.mkdir(parents=True)
    wishes: dict[str, object] = {
        "intl.accept_languages": language,
        "layout.css.prefers-color-scheme.content-override": 0 if dark else 1,
        "javascript.enabled": scripts,
        "browser.download.folderList": 2,
        "browser.download.dir": str(folder),
        "browser.download.useDownloadDir": True,
        "browser.download.always_ask_before_handling_new_types": False,
        "browser.download.alwaysOpenPanel": False,
        "browser.shell.checkDefaultBrowser": False,
        "datareporting.policy.dataSubmissionEnabled": False,
        "toolkit.telemetry.reportingpolicy.firstRun": False,
        "app.normandy.enabled": False,
        "network.captive-portal-service.enabled": False,
        "network.connectivity-service.enabled": False,
        "remote.active-protocols": 1,
    }
    lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});\n" for k, v in wishes.items())
    (profile / "user.js").write_text("".join(lines))
    command = ["firefox-esr", "--headless", "--no-remote", "--remote-debugging-port=0"]
    log = folder / "firefox.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--profile", str(profile), "about:blank"], stdout=out, stderr=out
        )
    try:
        wait_for(lambda: _ADDRESS.search(log.read_text()) or process.poll() is not None, 120)
        address = _ADDRESS.search(log.read_text())
        assert address is not None, log.read_text()[-2000:]
        browser = Firefox(address[1])
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait(30)

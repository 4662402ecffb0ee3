"""Every page that visitors see, in a browser: faultless for axe in light, dark, small and RTL."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import requests

from tests.admin_browser import chromium, complaints, show, violations
from tests.running import make_release, serving
from tests.test_e2e_waiting_page import need_browser
from tidegate.loadtest.sim.plan import make_crowd, make_plan, sample_crowd
from tidegate.loadtest.sim.plan_cli import plan_page
from tidegate.loadtest.verdict import simulate, verdict_page
from tidegate.loadtest.workloads import File

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

README = "# Tideland\n\n[Notes](notes.txt), `code`:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- one\n"


def test_no_public_page_has_a_fault(tmp_path: Path) -> None:
    need_browser()
    release = tmp_path / "release"
    make_release(release, big_iso=3_000_000, notes_txt=100, notes_txt_asc=5)
    make_release(release / "43", next_iso=1000)
    (release / "README.md").write_text(README)
    now = datetime.datetime.now(datetime.UTC)
    config = tmp_path / "tidegate.toml"
    config.write_text(
        'policy = "ticket"\nbandwidth = "40KB"\n[admission]\nslots = 1\nreserve_small = 0\n'
        f'[[rules]]\npath = "/43/*"\nhidden_until = "{now + datetime.timedelta(hours=9)}"\n'
        f'prequeue_from = "{now - datetime.timedelta(hours=1)}"\n'
    )
    paths = ("/", "/?q=notes", "/?q=zzz", "/43/", "/43/next.iso", "/big.iso", "/none")
    paths += ("/-/problems/waiting",)
    found: list[str] = []
    with (
        serving(release, tmp_path / "state", "--config", str(config)) as server,
        requests.get(f"{server.url}/big.iso", timeout=60, stream=True),
        chromium() as driver,
    ):
        driver.execute_cdp_cmd("Network.enable", {})
        for dark, phone, language in (
            (False, False, "en"),
            (True, False, "de"),
            (False, True, "fr"),
            (True, True, "he"),
        ):
            show(driver, dark=dark, phone=phone)
            fields = {"headers": {"Accept-Language": language}}
            driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", fields)
            for path in paths:
                driver.get(server.url + path)
                before = len(found)
                found += [f"{language} {path}: {fault}" for fault in violations(driver)]
                wide = driver.execute_script(
                    "return document.documentElement.scrollWidth > innerWidth + 1"
                )
                if wide:
                    found.append(f"{language} {path}: wider than the screen")
                torn = driver.execute_script(
                    "return [...document.querySelectorAll('code[dir]')]"
                    ".filter(code => code.getClientRects().length > 1).length"
                )
                if torn:
                    found.append(f"{language} {path}: a command is torn at a hyphen")
                if len(found) > before:
                    driver.save_screenshot(str(tmp_path / f"{language}-{paths.index(path)}.png"))
        found += [text for text in complaints(driver) if "404" not in text and "503" not in text]
        server.kill()
    assert found == []


def test_no_report_has_a_fault(tmp_path: Path) -> None:
    need_browser()
    crowd = make_crowd([File("a.iso", 2_000_000)], 20, 60.0)
    plan = make_plan(sample_crowd(crowd), 400_000.0, "fair", 5.0)
    (tmp_path / "plan.html").write_text(plan_page(plan), "utf-8")
    run = {
        "profile": "ci",
        "workload": "exp2",
        "seed": 1,
        "time_scale": 1.0,
        "thin": 1.0,
        "objectives": ["p95_wait_small<2s"],
        "missed": ["p95_wait_small<2s: measured 3"],
        "figures": {"p95_wait_small": 3.0, "mean_visit": 20.0, "finished": 5.0},
    }
    beside = simulate(plan.crowd.workload, "fair", 400_000.0, 5.0)
    page = verdict_page(run, beside)
    assert "<svg " in page
    assert "<svg " not in verdict_page(run, None)
    (tmp_path / "load.html").write_text(page, "utf-8")
    found = []
    with chromium() as driver:
        for dark in (False, True):
            for name in ("plan", "load"):
                show(driver, dark=dark, phone=dark)
                driver.get((tmp_path / f"{name}.html").as_uri())
                found += [f"{name}: {fault}" for fault in violations(driver)]
    assert found == []

"""Own waiting pages: sandboxed, tried before they are shown, and never a visitor's loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import RunningServer, make_release, serving, wait_for
from tidegate.policies.contract import Estimate, Wait
from tidegate.server.admission.own_pages import SAMPLE, STATES, BadTemplate, OwnPages
from tidegate.server.admission.responses import Notice, RetryResponder
from tidegate.server.files.pages import Pages
from tidegate.server.http.phrases import Phrases

WAIT = Wait(30.0, 4711, 212, False, Estimate(840.0, 1020.0))
PAGE = "<!doctype html><title>{{ title }}</title><p>Mine: {{ file }}, {{ place }}, {{ expected }}"


def shown(own: OwnPages, notice: Notice) -> str:
    return RetryResponder(Pages(), own=own).page(notice, Phrases("de")).decode()


def test_a_template_has_the_words_and_figures_escaped(tmp_path: Path) -> None:
    (tmp_path / "waiting.html").write_text(PAGE)
    page = shown(OwnPages(tmp_path), Notice("/%3Cb%3E.iso", 5, WAIT, None))
    assert "Mine: &lt;b&gt;.iso, 212, 14\N{NO-BREAK SPACE}Min." in page
    assert "Sie sind Nummer 212" in page


def test_each_state_may_have_its_own_and_else_has_the_common_one(tmp_path: Path) -> None:
    (tmp_path / "waiting.html").write_text("common {{ state }}")
    (tmp_path / "closed.html").write_text("closed")
    own = OwnPages(tmp_path)
    assert shown(own, Notice("/a", 5, WAIT, None, closed=True)) == "closed"
    assert shown(own, Notice("/a", 5, Wait(30.0), None)) == "common busy"
    assert shown(own, Notice("/a", 5, Wait(30.0), None, opens_s=9.0)) == "common pre-queue"
    (tmp_path / "waiting.html").unlink()
    only = OwnPages(tmp_path)
    assert "<!doctype html>" in shown(only, Notice("/a", 5, WAIT, None))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{% if %}", "line 1"),
        ("{{ nothing }}", "'nothing' is undefined"),
        ("{{ title.__class__.__mro__ }}", "unsafe"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "/etc/passwd"),
        ("{% include '../../secret' %}", "secret"),
        ("{{ paragraphs.append(1) }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_a_bad_template_is_refused_with_its_name(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path.parent / "secret").write_text("x")
    (tmp_path / "waiting.html").write_text(text)
    with pytest.raises(BadTemplate, match=fault) as raised:
        OwnPages(tmp_path)
    assert "waiting.html" in str(raised.value)


def test_a_folder_without_templates_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadTemplate, match="has none of"):
        OwnPages(tmp_path)
    with pytest.raises(BadTemplate, match="no folder"):
        OwnPages(tmp_path / "absent")


def test_a_template_that_fails_on_a_visitor_costs_nobody_the_page(tmp_path: Path) -> None:
    (tmp_path / "waiting.html").write_text("{{ 1 / (size_bytes - 5) }}")
    page = shown(OwnPages(tmp_path), Notice("/a.iso", 5, WAIT, None))
    assert "Sie sind Nummer 212" in page


def test_the_manual_names_what_a_template_sees() -> None:
    manual = (Path(__file__).parents[1] / "docs" / "admin.md").read_text("utf-8")
    assert {name for name in (*SAMPLE, *STATES) if f"`{name}" not in manual} == set()


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_a_running_server_shows_them_and_reads_them_again(tmp_path: Path) -> None:
    import requests

    make_release(tmp_path / "release", big_iso=3_000_000)
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "waiting.html").write_text("first {{ size }}")
    config = tmp_path / "tidegate.toml"
    config.write_text(f'waiting_pages = "{pages}"\npolicy = "ticket"\nbandwidth = "80KB"\n')
    arguments = ("--config", str(config), "--slots", "1", "--reserve-small", "0")

    def page(server: RunningServer) -> str:
        fields = {"Accept": "text/html", "User-Agent": "Mozilla/5.0 of mine"}
        return requests.get(f"{server.url}/big.iso", headers=fields, timeout=60).text

    with (
        serving(tmp_path / "release", tmp_path / "state", *arguments) as server,
        requests.get(f"{server.url}/big.iso", timeout=60, stream=True),
    ):
        assert page(server) == "first 3.0\N{NO-BREAK SPACE}MB"
        (pages / "waiting.html").write_text("{{ broken")
        server.signal(1)
        wait_for(lambda: "stay as they were" in "".join(server.errors), 30)
        assert page(server) == "first 3.0\N{NO-BREAK SPACE}MB"
        (pages / "waiting.html").write_text("second")
        server.signal(1)
        wait_for(lambda: page(server) == "second", 30)
        assert page(server) == "second"
        server.kill()
    (pages / "waiting.html").write_text("{{ broken")
    with pytest.raises(AssertionError, match="waiting page cannot be used"):
        RunningServer(tmp_path / "release", tmp_path / "state", *arguments)

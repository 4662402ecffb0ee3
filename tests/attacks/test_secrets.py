"""What is written down opens no door to its readers."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from tests.installed import TIDEGATE
from tests.running import make_release, serving
from tidegate.server.app.cli.config import config as config_command
from tidegate.server.http.accesslog import without_tokens

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    "target",
    [
        b"/f?tidegate-pass=p1.k.SECRET.SECRET",
        b"/f?a=b&tidegate-ticket=t2.k.SECRET.SECRET&c",
        b"/f?tidegate%2Dpass=p1%2Ek%2ESECRET",
        b"/p1.k.SECRET.SECRET/f",
        b"/f?x=v1.k.SECRET.SECRET",
        b"/f?tidegate-pass=SECRET=SECRET",
    ],
)
def test_the_access_log_keeps_no_token(target: bytes) -> None:
    assert "SECRET" not in without_tokens(target)


def test_the_access_log_keeps_everything_else() -> None:
    for target in (b"/a%0a?b", b"/f?a=b&c=d", b"/t1/x.y?tidegate", b"*"):
        assert without_tokens(target) == target.decode()


def test_state_and_log_are_for_nobody_else(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    log = tmp_path / "access.log"
    os.umask(0o022)
    with serving(tmp_path / "release", state, "--access-log", str(log)) as server:
        requests.get(f"{server.url}/a.txt?tidegate-pass=p1.k.SECRET.SECRET", timeout=20)
        requests.get(f"{server.url}/a.txt", headers={"Tidegate-Pass": "SECRET"}, timeout=20)
    assert "SECRET" not in log.read_text()
    assert "/a.txt" in log.read_text()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for path in (log, *state.rglob("*")):
        assert not path.stat().st_mode & 0o077, path


def test_config_show_keeps_passwords(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text('database = "postgresql://me:SECRET@db/x?sslpassword=SECRET&a=b"\n')
    for extra in ([], ["--json"]):
        shown = CliRunner().invoke(config_command, ["show", "--config", str(file), *extra]).output
        assert "SECRET" not in shown
        assert "postgresql://me:***@db/x?sslpassword=***&a=b" in shown


def test_a_database_that_does_not_answer_shows_no_password(tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    address = "postgresql://me:SECRET@127.0.0.1:1/x?sslpassword=SECRET"
    done = subprocess.run(
        [TIDEGATE, "serve", str(tmp_path / "release")],
        env={
            **os.environ,
            "TIDEGATE_DATABASE": address,
            "TIDEGATE_STATE": str(tmp_path / "state"),
            "TIDEGATE_LISTEN": "127.0.0.1:0",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert "cannot be used" in done.stdout + done.stderr
    assert "SECRET" not in done.stdout + done.stderr

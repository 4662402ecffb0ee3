"""What a server loads before it serves: nothing that only an option, or a first visit, needs."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.installed import PYTHON

#: Each is needed by an option that is off, by another database, or by the admin's pages.
ABSENT = (
    *(
        "tidegate.server.multicast.service",
        "tidegate.server.mirror.registry",
        "tidegate.server.torrent.room",
        "tidegate.server.cluster",
    ),
    *(
        "tidegate.server.admin.site",
        "tidegate.server.admin.app",
        "tidegate.server.app.workers",
        "prometheus_client",
        "segno",
    ),
    *("cryptography", "OpenSSL.crypto", "service_identity", "tuf", "securesystemslib", "raptorq"),
    *("alembic", "mako", "psycopg", "sqlalchemy.orm", "sqlalchemy.dialects.postgresql"),
    *("libtorrent", "numpy"),
)
#: Of ours and of others; each costs some 60 kB.
MODULES_MOST = 860


@pytest.fixture
def release(tmp_path: Path) -> Path:
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / "a.iso").write_bytes(b"x" * 70_000)
    return folder


def begin(release: Path, *options: str) -> tuple[subprocess.Popen[str], list[str]]:
    command = [PYTHON, *options, "-m", "tidegate", "serve", str(release)]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    command += ["--state", str(release.parent / "state")]
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},
    )
    assert server.stdout is not None
    said = []
    for line in server.stdout:
        said.append(line)
        if line.startswith("ready"):
            return server, said
    raise AssertionError(server.communicate())


def test_a_server_with_nothing_configured_loads_only_what_it_uses(release: Path) -> None:
    server, _ = begin(release, "-X", "importtime")
    server.terminate()
    _, told = server.communicate(timeout=30)
    found = set(re.findall(r"^import time:.*\|\s+([\w.]+)$", told, re.MULTILINE))
    assert "tidegate.server.admission.gate" in found
    assert {name for name in found if name.startswith(ABSENT)} == set()
    assert len(found) < MODULES_MOST


def test_the_first_visitors_of_the_admin_page_wait_for_it_together(release: Path) -> None:
    server, said = begin(release)
    place = next(line for line in said if line.startswith("Admin")).split("//")[1].strip(" /\n")

    def visit(path: str) -> int:
        with contextlib.closing(http.client.HTTPConnection(place, timeout=60)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status

    try:
        with ThreadPoolExecutor(4) as visitors:
            found = list(visitors.map(visit, ["/login", "/metrics", "/nowhere", "/login"]))
        assert found == [200, 200, 404, 200]
    finally:
        server.terminate()
        server.communicate(timeout=30)

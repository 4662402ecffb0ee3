"""Torrents of a real server, downloads that exchange, and what the tracker tells strangers."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random
from urllib.parse import quote_from_bytes, urlsplit

import libtorrent
import pytest
from running import RunningServer, wait_for

from tests.installed import TIDEGATE

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.e2e
DATA = Random(4).randbytes(6_000_000)
CONFIG = """
[torrent]
enabled = true

[[rules]]
path = "/members/*"
require_class = "member"

[[rules]]
path = "/later/*"
hidden_until = 2099-01-01T00:00:00Z
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    tree = tmp_path / "release"
    for folder in ("", "members", "later"):
        (tree / folder).mkdir(exist_ok=True)
        (tree / folder / "big ü.iso").write_bytes(DATA)
    (tree / "small.txt").write_text("small")
    config = tmp_path / "tidegate.toml"
    config.write_text(CONFIG)
    running = RunningServer(tree, tmp_path / "state", "--config", str(config))
    yield running
    running.stop()


def fetch(url: str) -> bytes:
    """The body; asked again while the file is being hashed."""
    found: list[bytes] = []

    def ask() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                found.append(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 503:
                    raise
        return bool(found)

    wait_for(ask, 60)
    return found[0]


def refused(url: str) -> tuple[int, str]:
    """Status and Location of an answer, which is not followed."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers["Location"] or ""


def torrent(server: RunningServer) -> libtorrent.torrent_info:
    return libtorrent.torrent_info(
        libtorrent.bdecode(fetch(server.url + "/big%20%C3%BC.iso.torrent"))
    )


def announce(server: RunningServer, info_hash: bytes, **more: object) -> dict[bytes, object]:
    query = "&".join(f"{name}={value}" for name, value in {"port": 7000, **more}.items())
    told: dict[bytes, object] = libtorrent.bdecode(
        fetch(f"{server.url}/-/announce?info_hash={quote_from_bytes(info_hash)}&{query}")
    )
    return told


def test_the_torrent_describes_the_file_for_both_versions(server: RunningServer) -> None:
    info = torrent(server)
    assert (info.name(), info.total_size()) == ("big ü.iso", len(DATA))
    assert info.info_hashes().has_v1()
    assert info.info_hashes().has_v2()
    document = libtorrent.bdecode(fetch(server.url + "/big%20%C3%BC.iso.torrent"))
    assert document[b"announce"] == f"{server.url}/-/announce".encode()
    assert document[b"url-list"] == [f"{server.url}/big%20%C3%BC.iso".encode()]


def test_a_magnet_link_names_the_same_torrent(server: RunningServer) -> None:
    info = torrent(server)
    status, location = refused(server.url + "/-/magnet/big%20%C3%BC.iso")
    assert status == 302
    link = libtorrent.parse_magnet_uri(location)
    assert link.info_hashes == info.info_hashes()
    assert link.trackers == [f"{server.url}/-/announce"]


@pytest.mark.parametrize(
    "path", ["members/big%20%C3%BC.iso", "later/big%20%C3%BC.iso", "small.txt"]
)
@pytest.mark.parametrize("form", ["/{}.torrent", "/-/magnet/{}"])
def test_what_is_not_for_everybody_has_no_torrent(
    server: RunningServer, path: str, form: str
) -> None:
    assert refused(server.url + form.format(path))[0] in (403, 404)


def test_peers_meet_by_the_tracker_under_either_hash(server: RunningServer) -> None:
    hashes = torrent(server).info_hashes()
    v1, v2 = hashes.v1.to_bytes(), hashes.v2.to_bytes()[:20]
    assert announce(server, v1, port=7001, left=5)[b"peers"] == b""
    told = announce(server, v2, port=7002, left=0)
    assert told[b"peers"] == bytes([127, 0, 0, 1]) + (7001).to_bytes(2, "big")
    assert (told[b"complete"], told[b"incomplete"]) == (1, 1)
    scraped = fetch(f"{server.url}/-/scrape?info_hash={quote_from_bytes(v1)}")
    assert libtorrent.bdecode(scraped)[b"files"][v1][b"incomplete"] == 1


def test_other_torrents_are_nobodys_business(server: RunningServer) -> None:
    assert b"only the torrents of this server" in announce(server, bytes(20))[b"failure reason"]


def test_a_file_that_went_away_or_changed_has_no_peers(
    server: RunningServer, tmp_path: Path
) -> None:
    v1 = torrent(server).info_hashes().v1.to_bytes()
    assert b"peers" in announce(server, v1)
    (tmp_path / "release" / "big ü.iso").write_bytes(DATA[::-1])
    assert b"failure reason" in announce(server, v1)


def test_torrents_outlive_the_process(tmp_path: Path, server: RunningServer) -> None:
    v1 = torrent(server).info_hashes().v1.to_bytes()
    server.kill()
    again = RunningServer(
        tmp_path / "release", tmp_path / "state", "--config", str(tmp_path / "tidegate.toml")
    )
    try:
        assert b"peers" in announce(again, v1)
    finally:
        again.stop()


def test_downloads_exchange_pieces(server: RunningServer, tmp_path: Path) -> None:
    torrent(server)
    url = server.url + "/big%20%C3%BC.iso"
    running = []
    for number in range(3):
        folder = tmp_path / f"client-{number}"
        folder.mkdir()
        # So slow from the server that the others' pieces come first.
        words = ["get", "--peers", "--json", "--limit-rate", "1MB/s", url]
        running.append(
            subprocess.Popen(
                [TIDEGATE, *words],
                cwd=folder,
                env={**os.environ, "TIDEGATE_DATA": str(folder / "data"), "HOME": str(folder)},
                stderr=subprocess.PIPE,
            )
        )
    told = [process.communicate(timeout=100)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], told
    for number in range(3):
        folder = tmp_path / f"client-{number}"
        assert (folder / "big ü.iso").read_bytes() == DATA
        assert not list(folder.glob(".*peers"))
    assert any("reachable on port" in text for text in told)


def test_without_a_torrent_the_download_goes_on(tmp_path: Path) -> None:
    tree = tmp_path / "plain"
    tree.mkdir()
    (tree / "a.bin").write_bytes(DATA)
    server = RunningServer(tree, tmp_path / "state")
    try:
        done = subprocess.run(
            [TIDEGATE, "get", "--peers", server.url + "/a.bin"],
            cwd=tmp_path,
            env={**os.environ, "TIDEGATE_DATA": str(tmp_path / "data"), "HOME": str(tmp_path)},
            capture_output=True,
            timeout=100,
            check=False,
        )
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert b"no torrent" in done.stderr

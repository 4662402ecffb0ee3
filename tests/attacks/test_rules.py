"""A rule holds whatever name a file is asked by, and whatever is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.running import RunningServer, make_release, serving

pytestmark = pytest.mark.e2e

RULES = """
[[rules]]
path = "/9.0/"
hidden_until = 2099-01-01T00:00:00Z

[[rules]]
path = "/gold/"
require_class = "gold"

[[rules]]
path = "/members/link.iso"
require_class = "gold"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("rules")
    release = folder / "release"
    for name in ("8.9", "9.0", "gold", "members", "own"):
        make_release(release / name, foo_iso=300_000, tiny_txt=100)
    (release / "latest").symlink_to("9.0")
    (release / "absolute").symlink_to(release / "9.0")
    (release / "twice").symlink_to("latest")
    (release / "own" / "early.iso").symlink_to("../9.0/foo.iso")
    (release / "shiny").symlink_to("gold")
    (release / "own" / "shiny.iso").symlink_to("../shiny/foo.iso")
    # A name like any other (docs/security.md, "What remains").
    (release / "own" / "hard.iso").hardlink_to(release / "9.0" / "foo.iso")
    (release / "members" / "link.iso").symlink_to("../8.9/foo.iso")
    config = folder / "tidegate.toml"
    config.write_text(RULES)
    with serving(release, folder / "state", "--config", str(config)) as running:
        yield running


#: Names under which what `/9.0/` holds can be asked for.
HIDDEN = ["/9.0", "/latest", "/absolute", "/twice"]
PROTECTED = ["/gold", "/shiny"]
ABOUT = ["foo.iso", "tiny.txt", "foo.iso.meta4", "foo.iso.manifest.json", "SHA256SUMS", ""]


def ask(server: RunningServer, path: str, method: str = "GET", **fields: str) -> requests.Response:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    return requests.request(
        method, server.url + path, headers=headers, timeout=20, allow_redirects=False
    )


def learns_nothing(answer: requests.Response, status: int) -> None:
    assert answer.status_code == status, answer.url
    for name in ("ETag", "Last-Modified", "Content-Range", "Repr-Digest", "Link", "Location"):
        assert name not in answer.headers
    assert "300000" not in answer.text


@pytest.mark.parametrize("folder", HIDDEN)
@pytest.mark.parametrize("name", [*ABOUT, "index.meta4"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_is_hidden_is_hidden_by_every_name(
    server: RunningServer, folder: str, name: str, method: str
) -> None:
    learns_nothing(ask(server, f"{folder}/{name}", method), 404)
    learns_nothing(ask(server, f"{folder}/{name}", method, Range="bytes=999999999-"), 404)
    learns_nothing(ask(server, f"{folder}/{name}", method, If_None_Match="*"), 404)


@pytest.mark.parametrize("folder", PROTECTED)
@pytest.mark.parametrize("name", ABOUT)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_needs_a_pass_tells_nothing_without_one(
    server: RunningServer, folder: str, name: str, method: str
) -> None:
    learns_nothing(ask(server, f"{folder}/{name}", method), 403)
    learns_nothing(ask(server, f"{folder}/{name}", method, Range="bytes=999999999-"), 403)
    learns_nothing(ask(server, f"{folder}/{name}", method, If_None_Match="*"), 403)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/9.0", 404),
        ("/latest", 404),
        ("/gold", 403),
        ("/own/early.iso", 404),
        ("/own/shiny.iso", 403),
        ("/members/link.iso", 403),
        ("/8.9/foo.iso", 200),
        ("/members/foo.iso", 200),
        ("/own/hard.iso", 200),
    ],
)
def test_the_stricter_of_both_names_counts(server: RunningServer, path: str, status: int) -> None:
    assert ask(server, path).status_code == status


def test_nothing_that_lists_a_folder_names_them(server: RunningServer) -> None:
    for path in ("/", "/?format=json"):
        page = ask(server, path).text
        assert "8.9" in page
        assert not any(name in page for name in ("9.0", "latest", "twice", "gold", "shiny"))
    for path in ("/own/", "/own/?format=json", "/own/SHA256SUMS", "/own/index.meta4"):
        page = ask(server, path).text
        assert "foo.iso" in page
        assert "early" not in page
        assert "shiny" not in page


def test_a_link_that_is_moved_is_judged_by_where_it_leads_now(
    server: RunningServer, tmp_path: Path
) -> None:
    release = Path(next(line for line in server.lines if "Serving" in line).split()[1])
    link = release / "moving"
    link.symlink_to("8.9")
    assert ask(server, "/moving/tiny.txt").status_code == 200
    assert ask(server, "/moving/tiny.txt").status_code == 200
    link.unlink()
    link.symlink_to("9.0")
    assert ask(server, "/moving/tiny.txt").status_code == 404
    link.unlink()

"""Each server hears a name of its own, the same one again, and all can be forgotten."""

from __future__ import annotations

from pathlib import Path

from tidegate.client.net.identity import client_name, client_secret, forget
from tidegate.client.net.request_builder import RequestBuilder
from tidegate.client.net.urls import Url, parse


def heard(asking: RequestBuilder, url: Url, origin: Url) -> str | None:
    lines = asking.request(url, origin).decode().split("\r\n")
    found = [line.partition(": ")[2] for line in lines if line.startswith("Tidegate-Client")]
    return found[0] if found else None


def test_each_origin_hears_a_name_of_its_own(tmp_path: Path) -> None:
    secret = client_secret(tmp_path / "data")
    asking = RequestBuilder({}, secret=secret)
    urls = [
        parse(text)
        for text in (
            "http://a.example/x",
            "http://a.example:8080/x",
            "https://a.example/x",
            "http://b.example/x",
        )
    ]
    names = {heard(asking, url, url) for url in urls}
    assert len(names) == len(urls)
    assert all(name is not None and len(name) == 32 for name in names)
    assert secret not in names
    # The same place again, and on another path of it: the same client.
    other = parse("http://a.example/y?z")
    assert heard(RequestBuilder({}, secret=client_secret(tmp_path / "data")), other, other) in names
    # Where a redirect leads, nobody is told who comes.
    assert heard(asking, urls[3], urls[0]) is None


def test_the_name_is_an_hmac_of_the_origin() -> None:
    # echo -n http://a.example:80 | openssl dgst -sha256 -mac hmac -macopt key:00...0
    assert client_name("0" * 32, parse("http://a.example/x")) == VECTOR


VECTOR = "12f2ad9ad4a9695e08123940a81aaec3"


def test_what_is_forgotten_does_not_come_back(tmp_path: Path) -> None:
    before = client_secret(tmp_path)
    (tmp_path / "rates.json").write_text("{}")
    assert {path.name for path in forget(tmp_path)} == {"client-id", "rates.json"}
    assert forget(tmp_path) == []
    assert client_secret(tmp_path) != before
    assert (tmp_path / "client-id").stat().st_mode & 0o077 == 0


def test_without_a_folder_each_download_is_a_strangers(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert client_secret(tmp_path / "file") != client_secret(tmp_path / "file")

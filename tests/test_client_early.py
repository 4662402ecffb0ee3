"""What `tidegate get` asks for before it is loaded: the same as it would ask for afterwards."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from faulty_mirrors import Behaviour, running, wait_for
from test_client_download import DATA
from test_e2e_get import COMMAND, environ, get

from tidegate.client.api import Options, build, finish, open_network, read_urls
from tidegate.client.cli.early import ask, read
from tidegate.client.net.dialling import HeadStart
from tidegate.client.net.sockets import run_blocking


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("http://a.example/x", 1),
        ("-q --json -o name http://a.example/x http://b.example:81/x", 2),
        ("--output name http://a.example/x --explain", 1),
        ("http://a.example/x http://a.example/x", 0),
        ("https://a.example/x", 0),
        ("http://u:p@a.example/x", 0),
        ("http://a.example/x.meta4", 0),
        ("-r http://a.example/x/", 0),
        ("--checksum sha256:00 http://a.example/x", 0),
        ("-oname http://a.example/x", 0),
        ("-- http://a.example/x", 0),
        ("http://a.example/x http://[", 0),
        ("http://a.example/x -o", 1),
        ("", 0),
    ],
)
def test_only_what_leaves_no_doubt_is_asked_for(line: str, count: int) -> None:
    assert len(read(line.split())[0]) == count


@pytest.mark.parametrize("count", [1, 2, 4])
def test_it_is_sent_without_the_program_and_not_again_by_it(tmp_path: Path, count: int) -> None:
    env = environ(tmp_path)
    with running(*(Behaviour(DATA) for _ in range(count))) as mirrors:
        words = ["-q", "-o", str(tmp_path / "out"), *(mirror.url for mirror in mirrors)]
        begun = HeadStart(words, env)
        ask(begun, words, env)
        for mirror in mirrors:
            wait_for(lambda mirror=mirror: mirror.requests)
        options = Options(environ=env, seed=begun.seed)
        told = []

        async def fetch() -> None:
            network = open_network(options, begun)
            urls, out = read_urls([mirror.url for mirror in mirrors]), tmp_path / "out"
            await finish(build(network, urls, out, options, lambda e, d: told.append(e)))
            await network.close()

        run_blocking(fetch)
        for mirror in mirrors:
            assert mirror.requests.count(mirror.requests[0]) == 1
    assert "retry" not in told
    assert (tmp_path / "out").read_bytes() == DATA


@pytest.mark.parametrize("others", [1, 2])
def test_a_mirror_without_an_address_does_not_cost_the_others_a_failure(
    tmp_path: Path, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer are asked then, and for something else than was sent already."""
    real = socket.getaddrinfo

    def look_up(host: Any, *more: Any, **wishes: Any) -> Any:
        if host == "gone.example":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return real(host, *more, **wishes)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with running(*(Behaviour(DATA) for _ in range(others))) as mirrors:
        urls = [*(mirror.url for mirror in mirrors), "http://gone.example/file.bin"]
        begun = HeadStart(urls, {})
        ask(begun, urls, environ(tmp_path))
        for mirror in mirrors:
            wait_for(lambda mirror=mirror: mirror.requests)
        options = Options(environ={}, data_folder=tmp_path / "data", seed=begun.seed)
        told = []

        async def fetch() -> None:
            network = open_network(options, begun)
            out = tmp_path / "out"
            await finish(
                build(network, read_urls(urls), out, options, lambda e, d: told.append((e, d)))
            )
            await network.close()

        run_blocking(fetch)
    assert (tmp_path / "out").read_bytes() == DATA
    assert not [d for e, d in told if e == "retry" and d["url"] in urls[:-1]]


@pytest.mark.e2e
@pytest.mark.parametrize("count", [1, 3])
def test_the_command_asks_no_mirror_twice(tmp_path: Path, count: int) -> None:
    with running(*(Behaviour(DATA) for _ in range(count))) as mirrors:
        assert get(tmp_path, "-q", *(mirror.url for mirror in mirrors))[0] == 0
        for mirror in mirrors:
            assert mirror.requests.count(mirror.requests[0]) == 1


def test_nothing_is_asked_for_where_something_of_the_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "out.tidegate-part").touch()
    with running(Behaviour(DATA)) as (mirror,):
        for name, seed in (("out", False), ("other", True)):
            words = ["-o", str(tmp_path / name), mirror.url]
            begun = HeadStart(words, {})
            ask(begun, words, environ(tmp_path))
            assert (begun.seed is not None) is seed
            begun.close()


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["x" * 300, "/", ".", "..", "none/x", "\udcff"])
def test_no_name_of_a_file_ends_in_a_traceback(tmp_path: Path, name: str) -> None:
    with running(Behaviour(DATA)) as (mirror,):
        _, _, err = get(tmp_path, "-o", name, mirror.url)
    assert "Traceback" not in err


@pytest.mark.e2e
def test_an_unusable_proxy_is_told_in_a_sentence(tmp_path: Path) -> None:
    env = {**environ(tmp_path), "http_proxy": "http://["}
    done = subprocess.run(
        [*COMMAND, "http://127.0.0.1:9/x"], env=env, cwd=tmp_path, capture_output=True, check=False
    )
    assert b"Traceback" not in done.stderr
    assert b"proxy" in done.stderr


def test_what_was_asked_for_in_vain_costs_a_connection_and_nothing_else(tmp_path: Path) -> None:
    with running(Behaviour(DATA), Behaviour(DATA)) as mirrors:
        urls = [mirror.url for mirror in mirrors]
        begun = HeadStart(urls, {})
        wrong = b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n"
        begun.say({("127.0.0.1", mirror.port): [wrong] for mirror in mirrors}, 1)
        options = Options(environ={}, data_folder=tmp_path / "data")

        async def fetch() -> None:
            network = open_network(options, begun)
            await finish(build(network, read_urls(urls), tmp_path / "out", options))
            await network.close()

        run_blocking(fetch)
    assert (tmp_path / "out").read_bytes() == DATA

"""Names with several addresses, as RFC 8305 wants them tried; the loop that runs blocking calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_mirrors import Behaviour, running
from hypothesis import given
from hypothesis import strategies as st
from test_client_download import DATA, Run, one

from tidegate.client.api import Options, build, finish, open_network, read_urls
from tidegate.client.net.dialling import HeadStart, plain_place
from tidegate.client.net.errors import Interrupted, NetworkProblem
from tidegate.client.net.sockets import run_blocking
from tidegate.client.net.urls import BadUrl, parse

__all__ = ["one"]


@contextlib.contextmanager
def black_hole(port: int) -> Iterator[str]:
    """An address whose port takes no connection and refuses none: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.2", port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.2", port))
        yield "127.0.0.2"


def known_as(monkeypatch: pytest.MonkeyPatch, name: str, *addresses: str) -> None:
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *more: Any, **wishes: Any) -> Any:
        if host != name:
            return real(host, port, *more, **wishes)
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_an_address_that_swallows_connections_does_not_hold_up_the_next(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Behaviour(DATA)) as (mirror,), black_hole(mirror.port) as hole:
        known_as(monkeypatch, "dual.example", hole, "127.0.0.1")
        url = mirror.url.replace("127.0.0.1", "dual.example")
        one.get(url, max_failures=1, timeout_s=20.0)
        assert mirror.connections == 1
    assert one.right()


def test_where_no_address_answers_the_reason_is_told(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_as(monkeypatch, "dual.example", "127.0.0.3", "127.0.0.4")
    with pytest.raises(NetworkProblem, match=r"connection refused|no address could be"):
        one.get("http://dual.example:9/file.bin", max_failures=1)


def test_a_connection_begun_beforehand_serves_and_one_that_nobody_takes_is_closed(
    tmp_path: Path,
) -> None:
    with running(Behaviour(DATA), Behaviour(DATA)) as (used, other):
        begun = HeadStart(["-o", used.url, used.url, other.url], {})
        options = Options(environ={}, data_folder=tmp_path)

        async def fetch() -> None:
            network = open_network(options, begun)
            try:
                await finish(build(network, read_urls([used.url]), tmp_path / "f", options))
            finally:
                await network.close()

        run_blocking(fetch)
        assert (tmp_path / "f").read_bytes() == DATA
        assert used.connections == 1
        places = [parse(mirror.url) for mirror in (used, other)]
        assert all(begun.take(url.host, url.port) is None for url in places)


def test_nothing_is_begun_where_a_proxy_is_named() -> None:
    with running(Behaviour(DATA)) as (mirror,):
        begun = HeadStart([mirror.url], {"HTTPS_PROXY": "http://127.0.0.1:1"})
        assert begun.take("127.0.0.1", mirror.port) is None
        assert mirror.connections == 0


@given(
    st.sampled_from(["http", "https", "HTTP", "ftp", "-Hhttp"]),
    st.text("aZ9.-:@[]%/\\?#é 0", max_size=12),
)
def test_what_is_begun_for_a_url_goes_to_where_that_url_leads(scheme: str, rest: str) -> None:
    word = f"{scheme}://{rest}"
    place = plain_place(word)
    try:
        url = parse(word)
    except BadUrl:
        return
    assert place in (None, (url.host, url.port))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_a_point_where_it_waits_and_handlers_are_restored(
    number: signal.Signals,
) -> None:
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    tidied = []

    async def wait() -> None:
        try:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            tidied.append(True)

    with pytest.raises(Interrupted):
        run_blocking(wait, (signal.SIGINT, signal.SIGTERM))
    assert tidied == [True]
    assert {one: signal.getsignal(one) for one in before} == before


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    async def answer() -> int:
        return 42

    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(run_blocking(answer)))
    thread.start()
    thread.join(30)
    assert found == [42]

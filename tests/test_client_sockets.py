"""Names with several addresses, as RFC 8305 wants them tried; the loop that runs blocking calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from faulty_mirrors import Behaviour, running
from test_client_download import DATA, Run, one

from tidegate.client.net.errors import Interrupted, NetworkProblem
from tidegate.client.net.network import Endpoint, Transport
from tidegate.client.net.sockets import AsyncioNetwork, run_blocking

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


def test_addresses_that_fail_for_different_reasons_are_told_in_one_sentence(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A TCP connection to a multicast address: the network is unreachable.
    known_as(monkeypatch, "dual.example", "224.0.0.1", "127.0.0.3")
    with pytest.raises(NetworkProblem, match=r"dual\.example:9: no address could be"):
        one.get("http://dual.example:9/file.bin", max_failures=1)


def open_sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {one for one in found if one.startswith("socket:")}


class Unconcerned:
    """A receiver whose connection never comes about."""

    def connected(self, transport: Transport) -> None:
        raise AssertionError

    def secured(self) -> None:
        raise AssertionError

    def received(self, data: memoryview) -> None:
        raise AssertionError

    def lost(self, text: str, permanent: bool) -> None:
        raise AssertionError


def test_a_connection_that_is_given_up_leaves_nothing_open() -> None:
    """Whether its name is being looked up or its addresses are being tried."""

    async def give_up(host: str, port: int, after_s: float) -> None:
        network = AsyncioNetwork()
        attempt = network.connect(Endpoint(host, port), Unconcerned(), 20.0)
        await asyncio.sleep(after_s)
        attempt.cancel()
        await network.close()
        await asyncio.sleep(0.05)

    with running(Behaviour(DATA)) as (mirror,), black_hole(mirror.port) as hole:
        before = open_sockets()
        for after_s in (0.0, 0.05):
            run_blocking(lambda after_s=after_s: give_up(hole, mirror.port, after_s))
        assert open_sockets() <= before


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


class Borrower:
    """Writes one line when connected, and keeps what happens."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.happened: list[str] = []
        self.changed = asyncio.Event()

    def connected(self, transport: Transport) -> None:
        self.transport = transport
        self._note("connected")

    def secured(self) -> None:
        self._note("secured")

    def received(self, data: memoryview) -> None:
        self._note(bytes(data).decode())

    def lost(self, text: str, permanent: bool) -> None:
        self._note("lost")

    def _note(self, what: str) -> None:
        self.happened.append(what)
        self.changed.set()

    async def until(self, what: str) -> None:
        while what not in self.happened:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 20)


class EchoServer:
    """Sends back what it gets; `clients` are its connections."""

    def __init__(self) -> None:
        self.clients: list[asyncio.StreamWriter] = []
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.append(writer)
        while data := await reader.read(100):
            writer.write(data)
        writer.close()
        self.left.set()


@contextlib.asynccontextmanager
async def lending(most_idle: int) -> AsyncIterator[tuple[AsyncioNetwork, Endpoint, EchoServer]]:
    echo = EchoServer()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    network = AsyncioNetwork(most_idle=most_idle)
    try:
        yield network, Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]), echo
    finally:
        await network.close()
        server.close()
        for client in echo.clients:
            client.close()
            with contextlib.suppress(OSError):
                await client.wait_closed()


async def use(network: AsyncioNetwork, endpoint: Endpoint, word: str) -> None:
    one = Borrower()
    network.connect(endpoint, one, 20.0)
    await one.until("connected")
    assert one.transport is not None
    one.transport.write(word.encode())
    await one.until(word)
    one.transport.release()


def test_a_released_connection_serves_the_next_download() -> None:
    async def play() -> None:
        async with lending(most_idle=1) as (network, endpoint, echo):
            for word in ("one", "two", "three"):
                await use(network, endpoint, word)
            assert len(echo.clients) == 1
        async with lending(most_idle=0) as (network, endpoint, echo):
            await use(network, endpoint, "one")
            await use(network, endpoint, "two")
            assert len(echo.clients) == 2

    run_blocking(play)


@pytest.mark.parametrize("fault", ["bytes without a request", "closed"])
def test_an_idle_connection_that_is_out_of_step_is_not_lent(fault: str) -> None:
    async def play() -> None:
        async with lending(most_idle=1) as (network, endpoint, echo):
            await use(network, endpoint, "one")
            if fault == "closed":
                echo.clients[0].close()
            else:
                echo.clients[0].write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            await asyncio.wait_for(echo.left.wait(), 20)
            await use(network, endpoint, "two")
            assert len(echo.clients) == 2

    run_blocking(play)

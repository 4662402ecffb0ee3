"""The client's network in virtual time: no socket, no thread, no clock of the machine.

Downloads run on it against the mirrors of `faulty_mirrors`; what takes them seconds is played at
once, and the same on a machine that has much else to do.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from faulty_mirrors import Behaviour, Script, Step

from tidegate.client.api import Options, Result, build, read_urls
from tidegate.client.fetch.metalink import Metalink
from tidegate.client.net.network import Endpoint, Network, Readable, Receiver

#: One way; what a mirror sends next leaves when its last part has come.
LATENCY_S = 0.0001


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def fire(self) -> None:
        if self._call is not None:
            self._call()


class VirtualNetwork:
    """See `client.net.network.Network`; `mirrors` by their ports."""

    def __init__(self, mirrors: Mapping[int, Script]) -> None:
        self._mirrors = mirrors
        self._now = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Timer]] = []

    def now(self) -> float:
        return self._now

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        at = self._now + max(delay_s, 0.0)
        heapq.heappush(self._timers, (at, next(self._order), timer))
        return timer

    def connect(self, endpoint: Endpoint, receiver: Receiver, timeout_s: float) -> Timer:
        script = self._mirrors.get(endpoint.port)
        if script is None:
            return self.call_later(LATENCY_S, lambda: receiver.lost("connection refused", False))
        return self.call_later(2 * LATENCY_S, lambda: Connection(self, script, receiver).open())

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        result: Any
        try:
            result = work()
        except (OSError, UnicodeError, ValueError) as error:
            result = error
        self.call_later(0.0, lambda: then(result))

    def watch_reading(self, sock: Readable, call: Callable[[], None] | None) -> None:
        raise NotImplementedError("datagrams are not played in virtual time")

    def run(self, over: Callable[[], bool], until_s: float) -> None:
        """Play until `over()`, or until the clock shows `until_s`."""
        while not over() and self._timers and self._timers[0][0] <= until_s:
            self._now, _, timer = heapq.heappop(self._timers)
            timer.fire()


class Connection:
    """A connection as `client.net.network.Transport`, and the mirror at its other end."""

    rtt_s = 2 * LATENCY_S

    def __init__(self, network: Network, script: Script, receiver: Receiver) -> None:
        script.connections += 1
        self._network = network
        self._receiver: Receiver | None = receiver
        self._steps = script.talk(script.connections)
        self._asked = b""
        self._reads = False
        self._ended = False
        self._lost_as = "the connection was closed"
        self._paused = False
        #: What came while nobody read; the mirror waits then.
        self._unread = b""

    def open(self) -> None:
        assert self._receiver is not None
        self._receiver.connected(self)
        self._go_on(None)

    # -- Transport -----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._network.call_later(LATENCY_S, lambda: self._heard(bytes(data)))

    def abort(self) -> None:
        self._receiver = None
        self._network.call_later(LATENCY_S, self._steps.close)

    def release(self) -> None:
        self.abort()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._unread:
            data, self._unread = self._unread, b""
            self._network.call_later(0.0, lambda: self._arrived(data))

    def expect(self, count: int) -> None:
        """Each part is told at once."""

    def start_tls(self, name: str) -> None:
        raise NotImplementedError("TLS is not played in virtual time")

    # -- the mirror's end ----------------------------------------------------------------------

    def _heard(self, data: bytes) -> None:
        if self._receiver is None or self._ended:
            return
        self._asked += data
        if self._reads:
            self._reads = False
            self._go_on(self._read())

    def _read(self) -> bytes:
        data, self._asked = self._asked, b""
        return data

    def _arrived(self, data: bytes) -> None:
        if self._receiver is None:
            return
        if self._paused:
            self._unread += data
            return
        self._receiver.received(memoryview(data))
        self._go_on(None)

    def _go_on(self, told: bytes | bool | None) -> None:
        """Perform the mirror's steps up to one that takes time."""
        while self._receiver is not None:
            try:
                step = self._steps.send(told)
            except StopIteration:
                self._close()
                return
            told = None
            if isinstance(step, bytes):
                self._network.call_later(LATENCY_S, lambda data=step: self._arrived(data))
                return
            if isinstance(step, float):
                if step > 0:
                    self._network.call_later(step, lambda: self._go_on(None))
                    return
            elif step is Step.READ:
                if not self._asked and not self._ended:
                    self._reads = True
                    return
                told = self._read()
            elif step is Step.LOOK:
                told = bool(self._asked)
            elif step is Step.END:
                self._ended = True
                self._asked = b""
                self._network.call_later(LATENCY_S, self._lose)
            elif step is Step.RESET:
                self._lost_as = "connection reset by peer"

    def _close(self) -> None:
        if self._asked:
            # A close before all is read is a reset.
            self._lost_as = "connection reset by peer"
        self._ended = True
        self._network.call_later(LATENCY_S, self._lose)

    def _lose(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost(self._lost_as, False)


class PlayedMirror(Script):
    """A mirror in virtual time that has a port of its own; `url` names its file."""

    def __init__(self, behaviour: Behaviour, port: int) -> None:
        super().__init__(behaviour)
        self.port = port
        self.url = f"http://127.0.0.1:{port}{behaviour.path}"


class VirtualRun:
    """Downloads of one file into a folder of their own, in virtual time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "out.bin"
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self._ports = itertools.count(1)
        self._played: dict[int, Script] = {}

    @contextlib.contextmanager
    def playing(self, *behaviours: Behaviour) -> Iterator[list[PlayedMirror]]:
        """Mirrors that are there meanwhile, as `faulty_mirrors.running` has them on sockets."""
        mirrors = [PlayedMirror(replace(one), next(self._ports)) for one in behaviours]
        self._played |= {mirror.port: mirror for mirror in mirrors}
        try:
            yield mirrors
        finally:
            for mirror in mirrors:
                del self._played[mirror.port]

    def get(
        self,
        *mirrors: Script | str,
        until_s: float = 60.0,
        metalink: Metalink | None = None,
        unnamed: Sequence[Script] = (),
        **wishes: object,
    ) -> Result:
        """Raises DownloadFailed: Interrupted where it is not over by `until_s`.

        Mirrors are URLs of those that are `playing`, or scripts: the n-th is at port n then, and
        `unnamed` ones, which must be learnt of, at the ports after them.
        """
        wishes = {"data_folder": self.folder / "data", "environ": {}, "seed": 1} | wishes
        options = Options(**wishes)  # type: ignore[arg-type]
        urls, there = [], dict(self._played)
        for number, mirror in enumerate((*mirrors, *unnamed), 1):
            if not isinstance(mirror, str):
                there[number] = mirror
                mirror = f"http://127.0.0.1:{number}{mirror.behaviour.path}"
            urls.append(mirror)
        network = VirtualNetwork(there)

        def emit(event: str, data: Mapping[str, object]) -> None:
            self.events.append((event, data))

        named = read_urls(urls[: len(mirrors)])
        download = build(network, named, self.path, options, emit, metalink)
        try:
            download.start()
            network.run(lambda: download.over, until_s)
        finally:
            download.stop()
        if download.failure is not None:
            raise download.failure
        assert download.result is not None
        return download.result

    def right(self, data: bytes) -> bool:
        """Whether the file is there, whole, and nothing else is left but the data folder."""
        names = {path.name for path in self.folder.iterdir()}
        return self.path.read_bytes() == data and names <= {"data", "out.bin"}

"""The real engine of `tidegate get` as a client: its network is the world's.

A world sees what its connections carry. What the engine promises is seen at its end: the file is
whole and of one version, or there is a stated error.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from tidegate.client.api import Options, build, read_urls
from tidegate.client.fetch.download import Download
from tidegate.client.net.network import Endpoint, Readable, Receiver
from tidegate.protocol.session import OFFER_TYPE

from .others import LATENCY_S, LYING, Connection, Script, other_server
from .programs import SimulatedClient, read_head
from .schedule import ScheduledEvent
from .wire import Channel

_HEAD_END = b"\r\n\r\n"
#: The host that the world has.
SERVER = "files.example"
#: A thread of the engine has worked after this time.
_WORKED_S = 0.001


class _Timer:
    def __init__(self, event: ScheduledEvent) -> None:
        self._event = event

    def cancel(self) -> None:
        self._event.cancelled = True


class EngineNetwork:
    """Implements `client.net.network.Network`; `alive` ends with its process."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.alive = True
        self.transports: dict[EngineTransport, None] = {}
        self.sockets: dict[Any, None] = {}

    def now(self) -> float:
        return self.client.world.schedule.now

    def call_later(self, delay_s: float, call: Callable[[], None]) -> _Timer:
        return _Timer(self.client.world.schedule.after(delay_s, self.run, call))

    def run(self, call: Callable[[], None]) -> None:
        """Unless its process is gone."""
        if self.alive:
            call()

    def connect(
        self, endpoint: Endpoint, receiver: Receiver, timeout_s: float
    ) -> EngineTransport | _Timer:
        other = self.client.other(endpoint.host)
        if other is not None:
            connection = Connection(self, other, receiver)
            return self.call_later(2 * LATENCY_S, connection.open)
        return EngineTransport(self, receiver, timeout_s, is_here=endpoint.host == SERVER)

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        result: Any
        try:
            result = work()
        except (OSError, UnicodeError, ValueError) as error:
            result = error
        self.call_later(_WORKED_S, lambda: then(result))

    def watch_reading(self, sock: Readable, call: Callable[[], None] | None) -> None:
        found: Any = sock
        found.watch = None if call is None else lambda: self.run(call)
        self.sockets[found] = None
        if call is not None:
            self.call_later(0.0, found.look)

    def kill(self) -> None:
        """Its process is gone: the kernel closes what was open."""
        self.alive = False
        for one in tuple(self.transports):
            one.abort()
        for socket in self.sockets:
            socket.close()


class EngineTransport:
    """Implements `client.net.network.Transport` on a connection of the world."""

    def __init__(
        self, network: EngineNetwork, receiver: Receiver, timeout_s: float, *, is_here: bool
    ) -> None:
        client = network.client
        world = client.world
        self._network, self._receiver = network, receiver
        self._open = self._over = False
        #: What was asked for and has no answer yet: whether it is the file, and has a body.
        self._asked: deque[tuple[bool, bool]] = deque()
        self._head = b""
        self._body_left = 0
        self.rtt_s = 2.4 * world.network.latency_s
        self._channel: Channel = world.network.connect(
            client.address, self, client.rate_bytes_s, b""
        )
        network.transports[self] = None
        # No mirror answers.
        if is_here:
            network.call_later(self.rtt_s, self._connected)
        network.call_later(timeout_s, self._times_out)

    def _connected(self) -> None:
        if not self._over:
            self._open = True
            self._receiver.connected(self)

    def _times_out(self) -> None:
        if not self._open:
            self._lose("it does not answer")

    # -- Transport --------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        client = self._network.client
        method, target = data.split(b" ", 2)[:2]
        is_file = target.partition(b"?")[0] == client.file.encode()
        self._asked.append((is_file, method != b"HEAD"))
        if is_file and client.world.client_asks(client):
            self._channel.deaf = True
            client.starts_lost += 1
            client.unheard += 1
        self._channel.write(data)

    def abort(self) -> None:
        self._end()
        self._channel.close(reset=True)

    def release(self) -> None:
        self._end()
        self._channel.close()

    def cancel(self) -> None:
        """Of an attempt."""
        if not self._open:
            self.abort()

    def pause(self) -> None:
        self._channel.read_on(False)

    def resume(self) -> None:
        self._network.call_later(0.0, lambda: self._channel.read_on(True))

    def expect(self, count: int) -> None:
        """Each part is told at once."""

    def start_tls(self, name: str) -> None:
        raise NotImplementedError("this engine speaks no TLS in the world")

    # -- what arrives (`wire.Peer`) -----------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        if not self._over:
            self._look(data)
            self._receiver.received(memoryview(data))

    def ended(self) -> None:
        self._channel.close()
        self._lose("the connection was closed")

    def broken(self) -> None:
        self._lose("connection reset by peer")

    def _end(self) -> None:
        self._over = True
        self._network.transports.pop(self, None)

    def _lose(self, text: str) -> None:
        if not self._over:
            self._end()
            self._network.client.unheard += not self._open or bool(self._asked)
            self._network.run(lambda: self._receiver.lost(text, False))

    def _look(self, data: bytes) -> None:
        """Tell the world of each answer's header."""
        while data:
            if self._body_left:
                count = min(self._body_left, len(data))
                self._body_left -= count
                self._network.client.world.client_took(self._network.client, count)
                data = data[count:]
                continue
            self._head += data
            head, found, data = self._head.partition(_HEAD_END)
            if not found:
                return
            self._head = b""
            status, fields = read_head(head)
            is_file, has_body = self._asked.popleft()
            self._body_left = int(fields.get("content-length", "0")) if has_body else 0
            if fields.get("content-type") == OFFER_TYPE:
                self._network.client.world.note(f"{self._network.client} is offered a session")
            elif is_file:
                self._network.client.hears(status, fields)


class EngineClient(SimulatedClient):
    """Fetches one file as `tidegate get` does. A `drop` kills its process; it is started again."""

    _download: Download | None = None
    _engine: EngineNetwork
    #: How often it has heard nothing since it heard last.
    unheard = 0

    def come(self) -> None:
        """See `SimulatedClient`."""
        self.state, self.asked_s = "asking", self.world.schedule.now
        self._start()
        if self.plan.misdeed:
            self.world.schedule.after(self.plan.misdeed_s, self._misbehave)

    def _start(self) -> None:
        if self.over:
            return
        folder = self.world.root / "got" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        # Random choices of the engine, by its name.
        number = int(self.name.rpartition("-")[2])
        options = Options(
            data_folder=folder / "data",
            environ={},
            seed=number,
            client_id=self.name,
            headers=(("User-Agent", self.manner.agent),),
            multicast="multicast.enabled" in self.world.plan.settings,
            **self._wishes(number),
        )
        self._engine = EngineNetwork(self)
        urls = read_urls([f"http://{SERVER}{self.file}", *self._elsewhere()])
        self._path = folder / "file"
        self._download = download = build(self._engine, urls, self._path, options)
        download.when_over = lambda: self._ended(download)
        download.start()

    def _wishes(self, number: int) -> dict[str, Any]:
        """What its user asks for, where other servers have the file, too."""
        plan = self.world.plan
        if not plan.others:
            return {}
        rng = random.Random(f"wishes {plan.seed} {number}")
        wishes: dict[str, Any] = {"connections": rng.choice([None, None, 2])}
        if rng.random() < 0.3:
            wishes["limit_bytes_s"] = plan.line_bytes_s * rng.choice([0.2, 2.0])
        if rng.random() < 0.4 and not self.world.changes_files:
            content = self.world.versions(self.file)[0].content
            wishes["checksum"] = "sha256", hashlib.sha256(content).digest()
        return wishes

    def _elsewhere(self) -> list[str]:
        """Other places of the file that its user names."""
        plan = self.world.plan
        if "mirrors" in plan.settings:
            return []
        return [f"http://m{number}.example{self.file}" for number in range(len(plan.others))]

    def other(self, host: str) -> Script | None:
        """Another server of this name that has its file."""
        plan, world = self.world.plan, self.world
        for number, kind in enumerate(plan.others):
            if host == f"m{number}.example":
                key = host, self.file
                if key not in world.others:
                    content = world.versions(self.file)[0].content
                    rate = plan.line_bytes_s * (0.3, 1.0, 3.0)[(plan.seed + number) % 3]
                    world.others[key] = other_server(kind, self.file, content, host, rate)
                return world.others[key]
        return None

    def hears(self, status: int, fields: dict[str, str]) -> None:
        """An answer's header is here."""
        self.last_status = status
        self.unheard = 0
        if not self.over:
            if status in (200, 206) and math.isnan(self.first_byte_s):
                self.first_byte_s = self.world.schedule.now
            self.state = "waiting" if status == 503 else "fetching"
            self.world.client_heard(self, status, fields)

    def _ended(self, download: Download) -> None:
        """It has the file, or an error that it states."""
        if self.over or download is not self._download:
            return
        if download.failure is not None:
            self._end("failed", str(download.failure))
            return
        got = self._path.read_bytes()
        self.size = self.body_bytes = len(got)
        is_right = any(one.content == got for one in self.world.versions(self.file))
        if not is_right and not self._was_lied_to(download):
            self.world.broken("RightBytes", f"{self} has a file that is of no version")
        self._end("done")

    def _was_lied_to(self, download: Download) -> bool:
        """Whether a server that lies had answered, and no two others: then nothing tells which."""
        result = download.result
        assert result is not None
        ours, *others = result.sources
        checked = result.verified in ("checksum", "digest", "pieces")
        lying = any(one in LYING for one in self.world.plan.others)
        return lying and not checked and not ours.bytes and sum(one.bytes > 0 for one in others) < 3

    def _misbehave(self) -> None:
        if self.over:
            return
        if self.plan.misdeed == "drop":
            self._engine.kill()
            self._unlock()
            self.world.schedule.after(1.0, self._start)
        elif self.plan.misdeed in ("leave", "reset"):
            self._end("gone", self.plan.misdeed)

    def _unlock(self) -> None:
        """The kernel frees the locks of a process that is gone; its objects may last longer."""
        for one in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{one}").startswith(str(self._path)):
                    fcntl.flock(int(one), fcntl.LOCK_UN)

    def _end(self, state: str, why: str = "") -> None:
        self.state, self.why = state, why
        self.done_s = self.world.schedule.now
        if self._download is not None:
            if not self._download.over:
                self._download.stop()
            self._engine.kill()
        self.world.client_ended(self)

"""An origin that publishes a channel, and a mirror that follows it: the real ones, on memory."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from greenlet import getcurrent
from tuf.api.exceptions import DownloadError

from tidegate.client.mirror.follow import Follower, FollowSettings
from tidegate.client.mirror.place import Place
from tidegate.client.mirror.service import MirrorService, Reporting
from tidegate.client.net.answers import Reply
from tidegate.server.mirror.publish import Publisher
from tidegate.server.mirror.repository import initialise, utc
from tidegate.server.mirror.routes import admit

from .links import Strand, sleep
from .operator import WholeRequest
from .wire import FILES_PORT

if TYPE_CHECKING:
    from tidegate.client.net.client import RequestParts

    from .world import World

_CHANNEL, _ORIGIN = "main", "http://files.example"
#: Where the mirror's own server would be, and its address.
_OWN_URL, _ADDRESS = "http://mirror.example/", "192.0.2.9"
#: A host that nobody answers for is given up after this time.
_AWAY_S = 5.0
#: A whole file comes within this time: a mover is told an even share of the line.
_FILE_S = 120.0


def _tree(root: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(root.iterdir())}


class FollowedChannel:
    """Implements `client.mirror.transport.ChannelTransport` of the mirror on connections of the
    world. `trees` has what each version was."""

    def __init__(self, world: World) -> None:
        self._world = world
        root = world.root
        self.publish_dir = root / "release" / "updates"
        self._keys, self._source = root / "keys", root / "source"
        self._source.mkdir()
        now = world.schedule.wall()
        trusted = initialise(self.publish_dir, self._keys, utc(now))
        secret = admit(self.publish_dir, "m", _OWN_URL)
        self.trees: dict[int, dict[str, bytes]] = {}
        self.published_s = math.inf
        self.publish(0.5)
        self.place = Place(root / "followed")
        settings = FollowSettings(_CHANNEL, f"{_ORIGIN}/updates/", replace_existing=True)
        follower = Follower(self.place, settings, self, world.schedule.wall)
        follower.trust.pin(trusted)
        self._request: WholeRequest | None = None
        service = MirrorService(
            follower,
            self,
            world.schedule.wall,
            sleep,
            steady=lambda: world.schedule.now,
            reporting=Reporting("m", secret, _OWN_URL),
            done=lambda followed: world.note(f"the mirror has version {followed.version}"),
            failed=lambda problem: world.note(f"the mirror has a trouble: {problem.code}"),
            rng=random.Random(world.plan.seed),
        )
        self._strand = Strand(world.schedule, service.run, lambda call, *words: call(*words))
        self._strand.start()

    def publish(self, pick: float) -> None:
        """A file of the tree is another one, or gone, and the tree is published."""
        world, rng = self._world, random.Random(pick)
        place = self._source / f"file{rng.randrange(4)}"
        if place.exists() and rng.random() < 0.2:
            place.unlink()
        else:
            place.write_bytes(rng.randbytes(rng.choice([0, 900, 50_000, 400_000])))
        for one in filter(Path.exists, (place, self._source)):
            # Times are part of what is compressed.
            world.set_time(one)
        publisher = Publisher(self.publish_dir, self._keys, _CHANNEL)
        there = {one.stat().st_ino for one in self.publish_dir.rglob("*")}
        version = publisher.publish(self._source, world.schedule.wall()).version
        for one in self.publish_dir.rglob("*"):
            # A mover's entity tag is of seconds and size: two versions would have one.
            if one.is_file() and one.stat().st_ino not in there:
                world.set_time(one)
        self.trees[version] = _tree(self._source)
        self.published_s = world.schedule.now
        world.note(f"version {version} is published")

    @property
    def version(self) -> int:
        """What the mirror's readers see."""
        return self.place.state.version

    def live(self) -> dict[str, bytes]:
        """The same, file by file."""
        return _tree(self.place.live) if self.place.live.exists() else {}

    def end(self) -> None:
        """The mirror is gone."""
        self._strand.end()
        if self._request is not None:
            self._request.close()

    # -- what the follower asks of the network --------------------------------------------------

    def request(self, method: str, url: str, **asked: Unpack[RequestParts]) -> Reply:
        """See `ChannelTransport`."""
        if not url.startswith(_ORIGIN):
            sleep(_AWAY_S)
            raise DownloadError(f"{url} does not answer")
        body = asked.get("body", b"")
        fields = {"Host": "files.example", "Connection": "close", **(asked.get("headers") or {})}
        if body or method == "POST":
            fields["Content-Length"] = str(len(body))
        head = [f"{method} {url.removeprefix(_ORIGIN)} HTTP/1.1"]
        head += [f"{name}: {value}" for name, value in fields.items()]
        found: list[int] = []
        mine: Any = getcurrent()

        def answered(status: int, _: object) -> None:
            found.append(status)
            mine.wake()

        data = "\r\n".join(head).encode() + b"\r\n\r\n" + body
        self._request = one = WholeRequest(self._world, data, answered, _ADDRESS, FILES_PORT)
        if not found:
            sleep(asked.get("timeout_s", 30.0))
        one.close()
        if not found or not found[0]:
            raise DownloadError(f"{url}: no answer")
        return Reply(found[0], one.fields, one.body[: asked.get("limit_bytes", 1 << 20)])

    def download(self, url: str, path: Path, length_bytes: int, sha256: str) -> None:
        """See `ChannelTransport`: it waits for its turn with its ticket."""
        headers: dict[str, str] = {}
        while True:
            limits = {"limit_bytes": length_bytes, "timeout_s": _FILE_S}
            answer = self.request("GET", url, headers=headers, **limits)
            if answer.status != 503:
                break
            ticket = answer.headers.get("tidegate-ticket")
            headers = {"Tidegate-Ticket": ticket} if ticket else {}
            sleep(float(answer.headers["retry-after"]))
        if not answer.ok:
            raise DownloadError(f"{url}: {answer.status}")
        path.write_bytes(answer.body)

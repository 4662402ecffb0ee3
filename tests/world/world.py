"""A world from its plan to its end, and the history of what happened in it."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import math
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy.exc import OperationalError
from twisted.logger import LogLevel, formatEvent, globalLogPublisher

from tidegate.client.api import Options
from tidegate.policies.estimate.retry import longest_return_s
from tidegate.protocol.errors import ProtocolError
from tidegate.server.admission.gate import Gate
from tidegate.server.files.openfile import OpenFile
from tidegate.server.http.proxies import block_of, prefixes_of

from .engine import EngineClient
from .faults import FAULT_OF
from .fleet import FleetLife
from .life import ServerLife
from .mirror import FollowedChannel
from .mover import Mover
from .operator import Operator
from .oracles import Oracle, TheLoopRests, ToldStartsAreKept, all_oracles
from .others import Script
from .plan import FaultPlan, WorldPlan
from .programs import ClientPlan, FileVersion, HttpExchange, SimulatedClient
from .schedule import ProcessEnded, Schedule, StandingStill, VirtualPool
from .seams import in_world
from .secure import write_certificate
from .wire import MemoryNetwork

#: After the last fault and the last arrival the line needs so many times what is left, and this.
_LIVENESS_FACTOR, _LIVENESS_S = 4.0, 900.0
#: Everything has run out so long after the last client has left. Mostly it has sooner.
_AFTER_S = 80.0
_LOOK_S = 10.0
#: A mirror has the newest version within this time.
_FOLLOWS_S = 200.0
#: A write that failed is tried again, and its answers leave, within this time.
_COMMITS_S = 20.0
#: A connection whose client takes nothing is cut after `min_rate_window_s`, at the latest by the
#: kernel, which finds out so of those that are parked, too.
_CUT_AFTER_S = 60.0
#: Kinds of faults that are none: people look, and operators do what concerns no client.
_HARMLESS = frozenset({"look", "visit", "act", "person", "share", "publish"})


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """What a world found: which promise, when, and how."""

    promise: str
    at_s: float
    text: str

    def __str__(self) -> str:
        lines = self.text.strip().splitlines()
        return f"{self.at_s:.3f} s {self.promise}: " + " … ".join(
            dict.fromkeys((lines[0], lines[-1]))
        )


class World:
    """Runs a plan. `broken_promises` is empty where all held."""

    #: Whether what this process had imported before its first world is frozen.
    _has_frozen: ClassVar[bool] = False

    def __init__(
        self,
        plan: WorldPlan,
        *,
        story: bool = False,
        stop_at_first: bool = True,
        until_s: float = math.inf,
    ) -> None:
        self.plan = plan
        self._until_s = until_s
        self.rng = random.Random(plan.seed ^ 0x5EED)
        self.schedule = Schedule(random.Random(plan.seed ^ 0xC10C))
        self.network = MemoryNetwork(
            self.schedule,
            self.rng,
            rate_bytes_s=plan.line_bytes_s,
            latency_s=plan.latency_s,
            buffer_bytes=plan.buffer_bytes,
            proxied=plan.proxied,
            is_secure=plan.is_secure,
        )
        self.broken_promises: list[BrokenPromise] = []
        self.history: list[str] = []
        self._digest = hashlib.sha256()
        self._keeps_story = story
        self._stops = stop_at_first
        self.clients = [self._client(one) for one in plan.clients]
        self.left = len(self.clients)
        self._kinds = {fault.kind for fault in plan.faults}
        self.life: ServerLife | FleetLife | None = None
        self.lives = 0
        self.policy = plan.policy
        #: What a mirror follows, in worlds that publish.
        self.channel: FollowedChannel | None = None
        #: Other servers that have a file, by host and path.
        self.others: dict[tuple[str, str], Script] = {}
        self._mover: Mover | None = None
        self._pools: list[VirtualPool] = []
        self.root = Path()
        self.files: dict[str, list[FileVersion]] = {}
        self.files_of_earlier_lives: set[tuple[str, int]] = set()
        #: Until when the database does not work, or is slow.
        self.database_full_until_s = self.database_slow_until_s = -math.inf
        #: Until when a machine does not reach another one or the database.
        self.cut_until_s = -math.inf
        #: When an operator last changed something; infinite while that is under way.
        self.switched_s = -math.inf
        self._changing = 0
        self.operator = Operator(self)
        #: When the server that runs started, and when the one before it was killed or stopped.
        self.started_s = self.stopped_s = -math.inf
        #: Until when the server stands still, and when it was asked to stop last.
        self.still_until_s = self.stop_asked_s = -math.inf
        #: Until then the certificate is there without its key.
        self.half_renewed_until_s = -math.inf
        #: Whether that one was killed.
        self.was_killed = False
        #: Tickets of downloads that ended with their server.
        self.started_tickets: set[int] = set()
        #: What excuses a place that grows or a line that idles: when something last happened.
        self.causes: list[tuple[float, str]] = []
        self._lost_s: list[float] = []
        self._numbers: dict[str, int | None] = {}
        #: When the journal was lost last: older tickets come back by their tokens from then on.
        self.journal_lost_s = -math.inf
        self.oracles: list[Oracle] = all_oracles(self)
        #: Faults that wait for their trigger.
        self._armed: list[FaultPlan] = []
        #: The client that set off the fault which happens now.
        self.culprit: SimulatedClient | None = None
        #: How many requests come to the server whose answers are lost.
        self.answers_to_lose = 0

    def _client(self, plan: ClientPlan) -> SimulatedClient:
        kind = EngineClient if plan.program == "get" else SimulatedClient
        return kind(self, plan)

    # -- history ----------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A line of the history."""
        line = f"{self.schedule.now:10.4f}  {text}"
        self._digest.update(line.encode())
        if self._keeps_story:
            self.history.append(line)

    def cause(self, text: str) -> None:
        """The same, of something that excuses what follows."""
        self.causes.append((self.schedule.now, text))
        self.note(f"* {text}")

    def change_begins(self, text: str) -> None:
        """An operator asks for a change."""
        self._changing += 1
        self.switched_s = math.inf
        self.cause(text)

    def change_ends(self, text: str) -> None:
        """It was answered."""
        self._changing -= 1
        if not self._changing:
            self.switched_s = self.schedule.now
        self.cause(text)

    def caused_since(self, since_s: float) -> int:
        """How many causes there were since then."""
        count = 0
        for at_s, _ in reversed(self.causes):
            if at_s < since_s:
                break
            count += 1
        return count

    def lost_since(self, since_s: float) -> int:
        """How many connections broke, or clients left before their time, since then."""
        return sum(at_s >= since_s for at_s in self._lost_s[-200:])

    @property
    def policy_name(self) -> str:
        """The policy of the server that runs."""
        gate = self.gate
        return gate.policy.name if gate is not None else self.policy

    @property
    def is_crowded(self) -> bool:
        """Whether two clients are of one network."""
        networks = {prefixes_of(one.address)[-1] for one in self.clients}
        return len(networks) < len(self.clients)

    def waits_for_small(self, since_s: float) -> bool:
        """Whether a client wants a small file, or wanted one since then.

        Visitors and a mirror may always.
        """
        return (
            self.has_fault("visit")
            or self.has_fault("publish")
            or any(
                one.file == "/SMALL.txt" and not (one.over and one.done_s < since_s)
                for one in self.clients
                if one.asked_s <= self.schedule.now
            )
        )

    @property
    def running(self) -> bool:
        """Whether a server runs, or leads, that is not stopping."""
        return self.life is not None and self.life.leads

    @property
    def gate(self) -> Gate | None:
        """The gate of the server that runs."""
        return self.life.service.gate if self.life is not None and self.running else None

    @property
    def doubted(self) -> int:
        """Leases beyond the slots, as some of these were doubted when they started."""
        gate = self.gate
        return gate.policy.pool.doubted if gate is not None else 0

    @property
    def keeps_room_for_small(self) -> bool:
        """Whether small files need not wait: slots are kept for them, or the link decides."""
        gate = self.gate
        if gate is None:
            return False
        kept = gate.settings.reserve_small > 0 and gate.policy.name != "fcfs"
        return kept or gate.snapshot().link_bound

    def stalled_connections(self) -> int:
        """How many connections have a client that reads no more, or is gone without a word."""
        return sum(one.line.lost or not one.line.reads for one in self.network.connections)

    def somebody_stalls(self) -> bool:
        """Whether a download runs whose client is the limit, or gone without a word."""
        return self.stalled_connections() > 0 or any(
            client.state == "fetching"
            and (client.plan.misdeed or client.rate_bytes_s < self.network.wire.rate_bytes_s)
            for client in self.clients
        )

    def excuses(self, client: SimulatedClient) -> bool:
        """Whether a client may fail: its file was away, it heard nothing, or its wait was ended."""
        away = any(kind in ("delete", "withdraw", "cancel") for kind in self._kinds)
        unheard = isinstance(client, EngineClient) and client.unheard >= Options().max_failures
        # What other servers have is another version then.
        away = away or (bool(self.plan.others) and self.changes_files)
        return away or unheard or client.turned_away or client.last_status == 404

    def hides(self, client: SimulatedClient) -> bool:
        """Whether an operator hides its file, or did when an answer that is here now left."""
        gate, ago_s = self.gate, 5 * self.plan.latency_s
        if gate is None:
            return False
        verdict, now = gate.parts.rules.verdict(client.file), gate.parts.wall()
        return verdict.hidden(now) or verdict.hidden(now - ago_s)

    def receives(self, client: SimulatedClient) -> bool:
        """Whether a client may be in a session: its slot idles out meanwhile, or between parts."""
        return client.plan.program == "get" and "multicast.enabled" in self.plan.settings

    def has_fault(self, kind: str) -> bool:
        """Whether a fault of this kind is part of the plan."""
        return kind in self._kinds

    def has_only(self, kinds: set[str]) -> bool:
        """Whether no other fault is part of the plan, but for those that only look."""
        return self._kinds <= kinds | _HARMLESS

    @property
    def changes_files(self) -> bool:
        """Whether a file gets another content."""
        return self.has_fault("replace") or self.has_fault("overwrite")

    @property
    def keeps_times(self) -> bool:
        """Whether no fault of the plan changes when others start, but for what it ends itself."""
        return self.has_only({"cut", "database slow", "lose answer", "replace", "touch", "wall"})

    @property
    def is_harmless(self) -> bool:
        """Whether no fault of the plan may end the wait of a request."""
        return self.has_only({"overwrite", "replace", "touch", "wall", "line", "stall"})

    def number_of(self, client: SimulatedClient, fields: Mapping[str, str]) -> int | None:
        """The number of the ticket in an answer."""
        token = fields.get("tidegate-ticket")
        if token is None:
            return None
        if token not in self._numbers:
            found = None
            if self.life is not None:
                keys = self.life.service.gate.parts.keys
                with contextlib.suppress(ProtocolError):
                    now = self.schedule.wall()
                    address = block_of(client.address)
                    ticket = keys.read_ticket(token, address, client.file, now, math.inf)
                    found = ticket.number
            self._numbers[token] = found
        return self._numbers[token]

    def told(self) -> Iterator[tuple[str, int, int]]:
        """Which kinds of bounds were told, how many of them were kept, and how many judged."""
        for one in self.oracles:
            if isinstance(one, ToldStartsAreKept):
                yield one.name, one.kept, one.judged

    def digest(self) -> str:
        """The same for the same history."""
        return self._digest.hexdigest()

    def broken(self, promise: str, text: str) -> None:
        """A promise is broken."""
        self.note(f"BROKEN {promise}: {text}")
        self.broken_promises.append(BrokenPromise(promise, self.schedule.now, text))

    def _going(self) -> bool:
        over = self._stops and self.broken_promises
        return not over and self.schedule.now < self._until_s

    # -- files ------------------------------------------------------------------------------

    def versions(self, path: str) -> list[FileVersion]:
        """See `programs.Witness`."""
        return self.files.get(path, [])

    def write_file(self, path: str, size: int, *, in_place: bool = False) -> None:
        """A file gets another content."""
        versions = self.files.setdefault(path, [])
        content = random.Random(f"{self.plan.seed} {path} {len(versions)}").randbytes(size)
        place = self.root / "release" / path[1:]
        now = self.schedule.now
        if versions:
            versions[-1].until_s = min(versions[-1].until_s, now)
        if in_place and place.exists():
            with open(place, "r+b") as stream:
                stream.write(content)
                stream.truncate()
        else:
            beside = place.with_name(".new")
            beside.write_bytes(content)
            self.set_time(beside)
            beside.rename(place)
        self.set_time(place)
        versions.append(FileVersion(content, now))

    def forget_files(self) -> None:
        """A process that was killed has lost those that are open; its objects may last longer."""
        self.files_of_earlier_lives = set(self.open_files())

    def set_time(self, place: Path) -> None:
        """Its modification time is now, in the world."""
        moment_ns = int(self.schedule.wall() * 1e9)
        os.utime(place, ns=(moment_ns, moment_ns))

    def open_files(self) -> dict[tuple[str, int], str]:
        """Descriptors of the release and their inodes, with the names that their files have."""
        found = {}
        release = str(self.root / "release")
        for one in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                name = os.readlink(f"/proc/self/fd/{one}")
                if name.startswith(release + "/") and "/updates/" not in name:
                    inode = os.stat(f"/proc/self/fd/{one}").st_ino
                    found[one, inode] = name.removeprefix(release)
        return found

    # -- the server -------------------------------------------------------------------------

    @property
    def fleet(self) -> FleetLife:
        """The server that runs, where it has several processes."""
        assert isinstance(self.life, FleetLife)
        return self.life

    @property
    def answers_wait(self) -> bool:
        """Whether a cluster's answers wait for its database (docs/cluster.md), or did just now."""
        ill_s = max(self.database_full_until_s, self.database_slow_until_s, self.cut_until_s)
        return self.plan.machines > 1 and self.schedule.now < ill_s + _COMMITS_S

    @property
    def mover(self) -> Mover:
        """What sends the files, before a gate."""
        assert self._mover is not None
        return self._mover

    def _life_begins(self) -> None:
        """A server starts, or a process begins to lead the others."""
        self.lives += 1
        if self.life is not None and self.life.service is not None:
            self.stopped_s = self.life.ended_s
            self.was_killed = not self.life.stopping
            leases = self.life.service.gate.policy.leases()
            self.started_tickets.update(one.ticket for one in leases if one.ticket is not None)
        self.forget_files()
        self.started_s = self.schedule.now
        self.cause(f"server starts (life {self.lives})")

    def start_server(self) -> None:
        """Begin a life."""
        plan = self.plan
        settings: dict[str, Any] = {"policy": self.policy, **plan.settings}
        if self.channel is not None:
            settings["mirror_publish"] = str(self.channel.publish_dir)
            settings["mirror_channel"] = "main"
        if plan.is_secure:
            settings["tls_cert"] = str(self.root / "cert.pem")
            settings["tls_key"] = str(self.root / "key.pem")
        if plan.knows_line:
            settings["bandwidth"] = f"{plan.line_bytes_s / max(1, plan.machines):.0f}B/s"
        of = self.schedule, self.rng, self.network, self.root, settings
        if plan.machines:
            self.life = FleetLife(
                *of,
                plan.machines,
                plan.nodes,
                self._life_begins,
                self._leader_dies,
                self.server_stopped,
                self.cause,
            )
        else:
            self._life_begins()
            self.life = ServerLife(*of)
        self.life.start()

    def _leader_dies(self) -> None:
        # Oracles reach the database when its machine does not.
        whose, self.schedule.running = self.schedule.running, None  # type: ignore[assignment]
        for oracle in self.oracles:
            oracle.dies()
        self.schedule.running = whose

    def server_stopped(self) -> None:
        """It has stopped, as it was asked to."""
        for oracle in self.oracles:
            oracle.stopped()

    def kill_server(self) -> None:
        """End it at once, as SIGKILL does."""
        if self.life is not None and self.life.alive:
            self._leader_dies()
            self.life.kill()

    def _pool(self, most: int, name: str) -> VirtualPool:
        pool = VirtualPool(self.schedule, self.rng, self._latency, most, name)
        self.schedule.running.pools.append(pool)
        self._pools.append(pool)
        return pool

    @property
    def works_total(self) -> int:
        """How much threads have done in databases."""
        return sum(one.works_total for one in self._pools if one.name.startswith("store"))

    def _latency(self, name: str) -> tuple[float, Exception | None]:
        rng, now = self.rng, self.schedule.now
        took_s = rng.random() * self.plan.write_s
        if name.startswith("store"):
            if now < self.database_slow_until_s:
                took_s += rng.random() * 4.0
            if now < self.database_full_until_s and name == "store-write":
                full = Exception("database or disk is full")
                return took_s, OperationalError("INSERT", {}, full)
        return took_s, None

    # -- what clients see (`programs.Witness`) -----------------------------------------------

    def client_heard(self, client: SimulatedClient, status: int, fields: Mapping[str, str]) -> None:
        """See `Witness`."""
        told = " ".join(
            f"{name.removeprefix('tidegate-')}={fields[name]}"
            for name in ("tidegate-place", "tidegate-wait-p90", "retry-after", "content-length")
            if name in fields
        )
        self.note(f"{client} hears {status} {told}")
        for oracle in self.oracles:
            oracle.heard(client, status, fields)
        self._pull(str(status), client)

    def client_lost(self, client: SimulatedClient, exchange: HttpExchange) -> None:
        """See `Witness`."""
        for oracle in self.oracles:
            oracle.lost(client, exchange)
        self._pull("cut", client)

    def client_cut(self, client: SimulatedClient) -> None:
        """The way of a client broke."""
        self._pull("cut", client)

    def client_nearly_done(self, client: SimulatedClient) -> None:
        """See `Witness`."""
        self._pull("last bytes", client)
        for fault in [one for one in self._armed if one.trigger == "soon done"]:
            self._armed.remove(fault)
            self.schedule.after(self.rng.choice([0.1, 0.4, 1.5]), self._happen_to, fault, client)

    def client_asks(self, client: SimulatedClient) -> bool:
        """See `Witness`."""
        self._pull("asked", client)
        if client.state == "waiting":
            self._pull("back", client)
        if self.answers_to_lose and client.manner.tries > 1:
            self.answers_to_lose -= 1
            self.cause(f"the answer to {client} is lost")
            return True
        return False

    def _pull(self, trigger: str, client: SimulatedClient) -> None:
        """Let faults happen that wait for this, within a moment."""
        for fault in [one for one in self._armed if one.trigger == trigger]:
            self._armed.remove(fault)
            self.schedule.after(self.rng.choice([0.0, 0.002, 0.05]), self._happen, fault, client)

    def client_took(self, client: SimulatedClient, count: int) -> None:
        """See `Witness`."""
        for oracle in self._takers:
            oracle.took(client, count)

    def client_called(self, client: SimulatedClient) -> None:
        """See `Witness`."""
        self.note(f"{client} is called")
        for oracle in self.oracles:
            oracle.called(client)

    def client_watched(self, client: SimulatedClient, found: Mapping[str, Any]) -> None:
        """See `Witness`."""
        for oracle in self.oracles:
            oracle.watched(client, found)

    def client_ended(self, client: SimulatedClient) -> None:
        """See `Witness`."""
        self.left -= 1
        if client.state != "done":
            self._lost_s.append(self.schedule.now)
        self.note(f"{client} {client.state} {client.why} ({client.body_bytes} bytes)")
        for oracle in self.oracles:
            oracle.ended(client)
        self._pull(client.state, client)

    # -- the run ----------------------------------------------------------------------------

    def _log(self, event: Mapping[str, Any]) -> None:
        level = event.get("log_level")
        if level not in (LogLevel.error, LogLevel.critical, LogLevel.warn):
            return
        text = formatEvent(event)  # type: ignore[arg-type]
        if "log_failure" in event:
            failure = event["log_failure"]
            if failure.check(ProcessEnded):
                # It went through a Deferred.
                return
            text += ": " + failure.getTraceback()
        elif text.startswith("Unhandled error in Deferred"):
            # The next event has the failure.
            return
        text = text.replace(str(self.root), "")
        self.note(f"log {level.name}: {text.splitlines()[0] if text else ''}")
        for oracle in self.oracles:
            oracle.logged(level.name, text)

    def _tick(self) -> None:
        self.schedule.running = None  # type: ignore[assignment]
        for oracle in self.oracles:
            oracle.tick()
        self.schedule.after(1.0, self._tick)

    def _suffer(self, fault: FaultPlan) -> None:
        if fault.trigger:
            self._armed.append(fault)
        else:
            self._happen(fault)

    def _happen_to(self, fault: FaultPlan, client: SimulatedClient) -> None:
        """If it is not done by now."""
        if not client.over:
            self._happen(fault, client)

    def _happen(self, fault: FaultPlan, culprit: SimulatedClient | None = None) -> None:
        self.culprit = culprit
        FAULT_OF[fault.kind](self, fault)

    def run(self) -> World:
        """From the first start to the end, when all has gone and nothing may be left."""
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="world-", dir=place))
        self._takers = [one for one in self.oracles if type(one).took is not Oracle.took]
        (self.root / "release").mkdir()
        collects = gc.isenabled()
        gc.disable()
        # What was imported is no garbage: looking at it takes as long as a small world. Of an
        # earlier world nothing is frozen: it would stay for ever.
        if not World._has_frozen:
            World._has_frozen = True
            gc.freeze()
        observer: Any = self._log
        globalLogPublisher.addObserver(observer)
        rng = random.Random(self.plan.seed ^ 0xFACE)
        at_hand, cold = OpenFile.at_hand, self.plan.cold

        def maybe_at_hand(file: OpenFile, start: int, stop: int) -> bool:
            return self.rng.random() >= cold and at_hand(file, start, stop)

        if cold:
            OpenFile.at_hand = maybe_at_hand  # type: ignore[method-assign,assignment]
        try:
            with in_world(
                rng,
                self.schedule.wall,
                lambda: self.schedule.now,
                lambda: self.network,
                self._pool,
                lambda: self.fleet,
                lambda: self.mover.kernel,
            ):
                self._run()
        except StandingStill as error:
            self.broken(TheLoopRests.__name__, str(error))
        finally:
            OpenFile.at_hand = at_hand  # type: ignore[method-assign]
            globalLogPublisher.removeObserver(observer)
            if self.life is not None and self.life.alive:
                self.life.kill()
            if self.channel is not None:
                self.channel.end()
            self.life = None
            self.schedule.forget()
            gc.collect()
            if collects:
                gc.enable()
            shutil.rmtree(self.root, ignore_errors=True)
        return self

    def _run(self) -> None:
        plan = self.plan
        for path, size in plan.files.items():
            self.write_file(path, size)
        # What operators hide, and draw for.
        later = self.root / "release" / "later" / "a.iso"
        later.parent.mkdir()
        later.write_bytes(bytes(300_000))
        self.set_time(later)
        self.set_time(later.parent)
        if self.has_fault("publish"):
            self.channel = FollowedChannel(self)
        if plan.is_secure:
            write_certificate(self.root, 0)
        if plan.mover:
            release = self.root / "release"
            of = self.schedule, self.rng, self.network, release
            self._mover = Mover(*of, plan.mover)
            self._mover.start()
        self.start_server()
        for client in self.clients:
            self.schedule.after(client.plan.comes_s, client.come)
        for fault in plan.faults:
            self.schedule.after(fault.at_s, self._suffer, fault)
        self.schedule.after(1.0, self._tick)
        last_s = max(plan.last_fault_s, max((one.comes_s for one in plan.clients), default=0.0))
        total = sum(plan.files.get(one.file, 0) for one in plan.clients)
        until_s = last_s + _LIVENESS_S + _LIVENESS_FACTOR * total / plan.line_bytes_s
        while self._going() and self.left and self.schedule.now < until_s:
            self.schedule.run(min(until_s, self.schedule.now + 5.0), self._going)
        if not self._going():
            return
        if self.channel is not None:
            # The mirror has time to follow: its downloads had to wait for others.
            last_s = max(self.schedule.now, last_s) + _FOLLOWS_S
        self.schedule.run(max(self.schedule.now, last_s), self._going)
        self._armed.clear()
        for oracle in self.oracles:
            oracle.settled()
        if self.channel is not None:
            self.channel.end()
        for client in self.clients:
            client.leave("the end of the world")
        # No client that is gone holds anything for longer, however many connections it had.
        after_s = _AFTER_S + (2 * _CUT_AFTER_S if self.stalled_connections() else 0.0)
        if self.lives > 1 and self.gate is not None:
            # Clients of an earlier life may have been told to come back so late.
            after_s += longest_return_s(self.gate.settings)
        end_s = self.schedule.now + after_s
        while self._going() and self.schedule.now < end_s:
            self.schedule.run(self.schedule.now + _LOOK_S, self._going)
            if all(oracle.has_gone() for oracle in self.oracles):
                break
        if self._going():
            gc.collect()
            for oracle in self.oracles:
                oracle.at_the_end()
        self.note("the end")


def run_plan(plan: WorldPlan, **how: Any) -> World:
    """Run a world to its end."""
    return World(plan, **how).run()

"""What a seed draws: which server, which clients, which faults. A plan is plain data.

Swarm testing: each seed allows a few kinds of faults and clients, so that none hides another.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .mover import MOVERS
from .others import LYING, OTHERS
from .programs import MANNERS, ClientPlan
from .wire import PROXY, REPORT_PORT

POLICY_NAMES = ("fair", "fair", "ticket", "ticket", "reserve", "fcfs", "adaptive")
MISDEEDS = (
    *("leave", "reset", "vanish", "stop reading", "half close", "drop"),
    *("ask twice", "ask early", "watch", "ask again"),
)
#: What a fault may wait for once its time has come: nothing, or that a client hears a status, asks,
#: lacks only the last bytes, is done, or loses its connection. Such moments are too short to be hit
#: by chance. A theme may wait for a client that comes "back" as it was told, or is "soon done":
#: lacks its last bytes still, a little later.
TRIGGERS = ("", "", "503", "200", "done", "asked", "last bytes", "cut")
#: Kinds of faults, and what each costs a seed that has it: how many there are at most.
FAULTS: Mapping[str, int] = {
    "kill": 3,
    "restart": 2,
    "lose journal": 2,
    "stall": 3,
    "wall": 3,
    "replace": 3,
    "touch": 3,
    "overwrite": 2,
    "delete": 2,
    "policy": 4,
    "settings": 4,
    "doors": 2,
    "promote": 3,
    "withdraw": 3,
    "cancel": 3,
    "database slow": 2,
    "database full": 2,
    "line": 3,
    "cut": 5,
    "lose answer": 5,
    "block": 2,
    "pass": 3,
    "look": 9,
}
#: What is drawn for a rare theme alone.
_RARE_FAULTS: Mapping[str, int] = {"give up": 5, "kill again": 2}
#: What happens to one of several processes, instead of what happens to one alone.
FLEET_FAULTS: Mapping[str, tuple[str, ...]] = {
    "kill": ("kill process", "kill process", "lose machine"),
    "kill again": ("kill process",),
    "restart": ("stop machine",),
    "lose journal": ("cut off",),
    "stall": ("stall process",),
}
#: The part of the worlds in which several processes serve.
_SEVERAL = 0.15
#: The same where another program sends the files, before a gate.
GATE_FAULTS: Mapping[str, tuple[str, ...]] = {
    "kill": ("kill", "kill", "kill mover"),
    "stall": ("stall", "kill mover", "lose reports"),
    "cut": ("cut", "cut", "lose reports"),
    # A file that is written over is sent as it is then.
    "overwrite": ("replace",),
}
#: The part of the worlds that have a gate, if they have one process, no proxy and no multicast.
_GATED, _MOVERS = 0.15, ("nginx", "nginx", *MOVERS)
#: The part of the worlds whose clients speak TLS, and what may happen there.
_SECURE, _OF_TLS = 0.05, ("certificate", "half hello")
#: The part of the worlds in which clients come through a proxy, and how it says whose requests
#: it forwards: in a header field, or in a preface of each connection.
_BEHIND, PROXIED = 0.1, ("field", "preface")
#: The part of the worlds whose clients have addresses of IPv6.
_IPV6 = 0.15
#: The part of the worlds that have a theme, and of those that have visitors.
_THEMED = 0.6
_VISITED = 0.15
_MOST_VISITS = 30
#: The part of the worlds in which the operator does what concerns no client.
_OPERATED = 0.15
_ACTS, _MOST_ACTS = ("act", "act", "person"), 15
#: The part of the worlds that have torrents, and peers who look for them.
_SHARED, _MOST_PEERS = 0.1, 6
#: The part of the worlds that send hot files by multicast, and how many more receivers come then.
_CAST, _MOST_RECEIVERS = 0.04, 5
#: The part of the worlds that publish a channel, which a mirror follows.
_MIRRORED, _MOST_VERSIONS = 0.06, 5
#: The part of the worlds that are small, and of those with a rare theme. A small one takes a third
#: of the time, and most that goes wrong needs few clients.
_SMALL, _RARELY_SMALL = 0.25, 0.9
_SMALL_CLIENTS, _SMALL_FAULTS = 5, 4
#: The part of these whose clients are of one network.
_SMALL_CROWD = 0.2
#: The part of the worlds whose files other servers have, too; how many these are, and how many
#: `tidegate get` and other clients come then.
_ELSEWHERE, _MOST_OTHERS, _MOST_GETS, _MOST_BESIDE = 0.08, 3, 3, 4
#: How many bytes a file has there at most.
_ELSEWHERE_BYTES = 3_000_000


@dataclass(frozen=True, slots=True)
class Theme:
    """What hits one mechanism together: a world that draws from all rarely has it."""

    #: Kinds of faults.
    kinds: tuple[str, ...]
    triggers: tuple[str, ...] = TRIGGERS
    #: What its clients are and do wrong; nothing: as in other worlds.
    programs: tuple[str, ...] = ()
    deeds: tuple[str, ...] = ()
    #: How long a fault lasts.
    lasts_s: tuple[float, ...] = (0.5, 4.0, 20.0)
    #: How many of its clients want a small file; nothing: as elsewhere.
    small: float = 0.0
    #: Its policy, with one slot for all; nothing: as elsewhere.
    policy: str = ""
    #: How long its database takes for a write at most, on a server near its clients; 0: as
    #: elsewhere.
    write_s: float = 0.0


#: Programs that keep a ticket: one that its server has lost comes back with them.
_KEEPERS = ("tidegate", "browser", "browser without script")
THEMES = (
    Theme(("kill",)),
    Theme(("kill", "database slow"), ("503",)),
    Theme(("kill",), ("503",)),
    Theme(("kill",), ("last bytes", "done"), ("tidegate",), ("ask again",)),
    Theme(("kill", "cut"), ("last bytes", "cut")),
    Theme(("kill", "lose answer", "cut")),
    Theme(("kill", "database full")),
    Theme(("restart", "database slow")),
    Theme(("restart", "database full"), ("", "503")),
    Theme(("wall", "kill")),
    Theme(("wall", "restart")),
    Theme(("lose journal",), ("", "503"), _KEEPERS),
    Theme(("lose journal", "kill"), ("", "503"), _KEEPERS),
    Theme(("lose answer", "cut")),
    Theme(("lose answer",), ("503", "asked"), _KEEPERS),
    Theme(("cut",), ("asked",), _KEEPERS),
    Theme(("policy", "settings", "doors")),
    Theme(("replace", "touch", "overwrite")),
    Theme(("touch", "cut", "lose answer")),
    Theme(("stall",), ("", "200")),
    Theme(("stall", "line")),
    Theme(("database full", "look")),
    Theme(("pass", "block")),
    Theme(("look",)),
    Theme((), programs=("browser",), deeds=("ask twice", "watch")),
)
#: What is drawn apart, so that all other seeds stay as they were, for this part of the worlds.
_RARE_THEMES = (
    Theme(("lose answer",), ("back",), _KEEPERS),
    # A clock counts what is shorter than 3 s.
    Theme(("stall",), ("200",), lasts_s=(1.5, 2.8), policy="ticket"),
    Theme(("give up",), ("asked", "503", "200")),
    Theme(("cut", "give up", "database slow"), ("soon done", "soon done", ""), _KEEPERS),
    Theme((), programs=("browser",), small=0.6, policy="ticket"),
    Theme(("kill",), ("last bytes", "done"), ("tidegate",), ("ask again",), policy="ticket"),
    Theme((), programs=("tidegate", "browser"), deeds=("ask early",), policy="ticket"),
    Theme(("kill", "kill again"), ("", "503"), ("tidegate", "browser", "curl"), policy="ticket"),
    Theme(("lose journal", "kill again"), ("", "503"), _KEEPERS, policy="ticket"),
    Theme(("lose journal",), ("", "503"), (*_KEEPERS, "curl-retry"), lasts_s=(0.5, 2.0)),
    Theme(("database full", "database slow"), ("asked", "503", "200"), lasts_s=(0.5, 1.5)),
    # What its clients have is on record a moment later. One of 30 such worlds hits that moment, so
    # three parts of the rare worlds are such.
    *3
    * (Theme(("kill",), ("done",), ("tidegate",), ("ask again",), policy="ticket", write_s=0.3),),
)
#: The way to a server that is near.
_NEAR_S = 0.0005
_RARELY = 0.5


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """A fault: its kind, when, and what it draws from: a number in 0…1 and one of seconds."""

    kind: str
    at_s: float
    pick: float
    for_s: float
    #: One of `TRIGGERS`.
    trigger: str = ""


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """A world before it runs."""

    seed: int
    policy: str
    settings: Mapping[str, Any]
    knows_line: bool
    line_bytes_s: float
    latency_s: float
    buffer_bytes: int
    #: How long the database takes for a write at most, seconds.
    write_s: float
    #: How often a part of a file is not in the page cache.
    cold: float
    files: Mapping[str, int]
    clients: tuple[ClientPlan, ...]
    faults: tuple[FaultPlan, ...] = field(default=())
    #: How many machines have one queue, and how many processes serve on each; 0: one process.
    machines: int = 0
    nodes: int = 0
    #: One of `PROXIED` where a proxy stands before the server.
    proxied: str = ""
    #: One of `mover.MOVERS` where that program sends the files.
    mover: str = ""
    #: Whether clients speak TLS.
    is_secure: bool = False
    #: What each other server that has the files is like, by its name in `others.OTHERS`.
    others: tuple[str, ...] = ()

    @property
    def last_fault_s(self) -> float:
        """When nothing more is drawn to happen."""
        ends = [fault.at_s + fault.for_s for fault in self.faults]
        for one in self.clients:
            back_s = 0.0 if math.isinf(one.back_s) else one.back_s
            ends.append(one.comes_s + one.misdeed_s + back_s)
        return max(ends, default=0.0)

    def as_text(self) -> str:
        """JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def read_plan(text: str) -> WorldPlan:
    """The plan of `WorldPlan.as_text`."""
    found = json.loads(text)
    found["clients"] = tuple(ClientPlan(**one) for one in found["clients"])
    found["faults"] = tuple(FaultPlan(**one) for one in found["faults"])
    found["others"] = tuple(found.get("others", ()))
    return WorldPlan(**found)


def _sizes(rng: random.Random, line_bytes_s: float) -> dict[str, int]:
    # Short downloads make many worlds: whatever goes wrong does so at starts and ends.
    files = {"/SMALL.txt": rng.randint(200, 60_000)}
    for number in range(rng.randint(1, 3)):
        size = int(line_bytes_s * math.exp(rng.uniform(math.log(0.5), math.log(8.0))))
        files[f"/big{number}.iso"] = max(300_000, min(size, 8_000_000))
    return files


def draw_plan(seed: int) -> WorldPlan:
    """The world of a seed."""
    rng = random.Random(seed)
    line_bytes_s = math.exp(rng.uniform(math.log(1e5), math.log(2e6)))
    slots = rng.choice([1, 1, 1, 2, 3, 8])
    settings: dict[str, Any] = {
        "admission.slots": slots,
        "admission.reserve_small": rng.randint(0, max(0, slots - 1)),
        "admission.small_below_bytes": 256_000,
        "admission.lease_idle_s": rng.choice([2.0, 5.0, 16.0]),
        "admission.ticket_ttl_s": rng.choice([10.0, 40.0]),
        "admission.connections_per_lease": rng.choice([1, 2, 4]),
        "clients_per_address": 64,
        "drain_s": rng.choice([0.0, 5.0, 30.0]),
    }
    files = _sizes(rng, line_bytes_s)
    span_s = rng.choice([5.0, 20.0, 60.0])
    theme = rng.choice(THEMES) if rng.random() < _THEMED else None
    rare = random.Random(f"theme {seed}")
    is_rare = rare.random() < _RARELY
    if is_rare:
        theme = rare.choice(_RARE_THEMES)
    programs = rng.sample(sorted(MANNERS.keys() - {"get"}), rng.randint(1, 6))
    # Its clock costs as much as ten other clients.
    engines = rng.choice([0, 0, 0, 0, 1, 2])
    deeds = rng.sample(MISDEEDS, rng.randint(0, 3))
    rude = rng.choice([0.0, 0.1, 0.4]) if deeds else 0.0
    if theme is not None and theme.programs:
        programs, engines = list(theme.programs), 0
    if theme is not None and theme.deeds:
        deeds, rude = list(theme.deeds), 0.5
    small_too = rng.choice([0.0, 0.1, 0.3])
    if theme is not None and theme.small:
        small_too = theme.small
    clients = []
    big = [name for name in files if name != "/SMALL.txt"]
    networks = rng.choice([1, 3, 200])
    # A few clients make ten times as many worlds.
    for number in range(rng.choice([rng.randint(2, 9), rng.randint(2, 9), rng.randint(8, 40)])):
        network = rng.randrange(networks)
        misdeed = rng.choice(deeds) if rng.random() < rude else ""
        comes_s = rng.uniform(0.5, span_s)
        slow = rng.random() < 0.3
        clients.append(
            ClientPlan(
                name=f"client-{number}",
                program="get" if number < engines else rng.choice(programs),
                address=f"198.{18 + network // 100}.{network % 100}.{number + 1}",
                file="/SMALL.txt" if rng.random() < small_too else rng.choice(big),
                comes_s=comes_s,
                rate_bytes_s=line_bytes_s * (rng.uniform(0.05, 0.5) if slow else 10.0),
                misdeed=misdeed,
                misdeed_s=rng.uniform(0.0, 30.0),
                back_s=rng.choice([5.0, 40.0, math.inf]),
            )
        )
    lasts_s = theme.lasts_s if theme is not None else Theme(()).lasts_s
    if theme is not None:
        kinds, triggers = list(theme.kinds), theme.triggers
    else:
        kinds, triggers = rng.sample(sorted(FAULTS), rng.choice([0, 0, 1, 2, 4, 9])), TRIGGERS
    faults = [
        FaultPlan(
            kind,
            rng.uniform(1.0, span_s + 20.0),
            rng.random(),
            rng.choice(lasts_s),
            rng.choice(triggers),
        )
        for kind in kinds
        for _ in range(rng.randint(1, {**FAULTS, **_RARE_FAULTS}[kind]))
    ]
    # Drawn apart, so that all else of a seed is as it was without visitors.
    visits = random.Random(f"visits {seed}")
    if visits.random() < _VISITED:
        faults += [
            FaultPlan("visit", visits.uniform(1.0, span_s + 20.0), visits.random(), 0.0)
            for _ in range(visits.randint(1, _MOST_VISITS))
        ]
    acts = random.Random(f"acts {seed}")
    if acts.random() < _OPERATED:
        faults += [
            FaultPlan(acts.choice(_ACTS), acts.uniform(1.0, span_s + 20.0), acts.random(), 0.0)
            for _ in range(acts.randint(1, _MOST_ACTS))
        ]
    if acts.random() < _SHARED:
        settings |= {"torrent.enabled": True, "torrent.least": 300_000}
        settings["mirrors"] = ["http://mirror.example/"]
        faults += [
            FaultPlan("share", acts.uniform(1.0, span_s + 20.0), acts.random(), 0.0)
            for _ in range(acts.randint(1, _MOST_PEERS))
        ]
    cast = random.Random(f"cast {seed}")
    if cast.random() < _CAST:
        settings |= {
            "multicast.enabled": True,
            "multicast.rate": f"{line_bytes_s * cast.choice([0.3, 0.9]):.0f}B/s",
            "multicast.threshold": cast.choice([2, 3]),
            "multicast.window_s": cast.choice([2.0, 15.0]),
            "multicast.fec": cast.choice(["auto", "xor", "none"]),
        }
        # Codes cost more than all else of such a world.
        comes_s, file = cast.uniform(0.5, span_s), min(big, key=files.__getitem__)
        clients += [
            ClientPlan(
                name=f"client-{len(clients) + number}",
                program="get",
                address=f"198.20.{number}.1",
                file=file,
                comes_s=comes_s + cast.uniform(0.0, 3.0),
                rate_bytes_s=line_bytes_s * cast.choice([0.3, 10.0]),
                misdeed=cast.choice(("", "", "", "drop", "reset")),
                misdeed_s=cast.uniform(0.0, 20.0),
                back_s=40.0,
            )
            for number in range(cast.randint(2, _MOST_RECEIVERS))
        ]
    mirror = random.Random(f"mirror {seed}")
    if mirror.random() < _MIRRORED:
        faults += [
            FaultPlan("publish", mirror.uniform(1.0, span_s + 20.0), mirror.random(), 0.0)
            for _ in range(mirror.randint(1, _MOST_VERSIONS))
        ]
    proxy, proxied = random.Random(f"proxy {seed}"), ""
    if proxy.random() < _BEHIND:
        proxied = proxy.choice(PROXIED)
        settings |= {"trusted_proxies": [PROXY], "proxy_protocol": proxied == "preface"}
    if proxy.random() < _IPV6:
        clients = [dataclasses.replace(one, address=_ipv6(one.address)) for one in clients]
    fleet = random.Random(f"fleet {seed}")
    machines = nodes = 0
    if fleet.random() < _SEVERAL:
        machines, nodes = fleet.choice([1, 2, 2, 3]), fleet.randint(1, 2)
        if machines == 1:
            nodes = 2
        faults = [
            dataclasses.replace(one, kind=_of(FLEET_FAULTS, fleet, one.kind)) for one in faults
        ]
    policy, knows_line = rng.choice(POLICY_NAMES), rng.random() < 0.6
    if theme is not None and theme.policy:
        policy = theme.policy
        settings |= {"admission.slots": 1, "admission.reserve_small": 0}
    gate, mover = random.Random(f"gate {seed}"), ""
    if gate.random() < _GATED and not (machines or proxied or "multicast.enabled" in settings):
        mover = gate.choice(_MOVERS)
        settings |= {
            "gate.enabled": True,
            "gate.report": f"127.0.0.1:{REPORT_PORT}",
            "gate.claim_s": gate.choice([2.0, 15.0]),
            "trusted_proxies": ["127.0.0.1"],
            # What the mover sends, the next gate finds.
            "drain_s": gate.choice([0.0, 0.0, 5.0]),
        }
        if not knows_line and policy in ("fair", "adaptive"):
            policy = "ticket"
        faults = [dataclasses.replace(one, kind=_of(GATE_FAULTS, gate, one.kind)) for one in faults]
    secure, is_secure = random.Random(f"secure {seed}"), False
    if secure.random() < _SECURE and not (machines or proxied or mover):
        is_secure = True
        faults += [
            FaultPlan(
                secure.choice(_OF_TLS), secure.uniform(1.0, span_s + 20.0), secure.random(), 20.0
            )
            for _ in range(secure.randint(0, 3))
        ]
    plan = WorldPlan(
        seed=seed,
        policy=policy,
        settings=settings,
        knows_line=knows_line,
        line_bytes_s=line_bytes_s,
        latency_s=rng.choice([0.0005, 0.02, 0.15]),
        buffer_bytes=rng.choice([32_000, 200_000, 2_000_000]),
        write_s=rng.choice([0.002, 0.02, 0.3]),
        cold=rng.choice([0.0, 0.0, 0.2]),
        files=files,
        clients=tuple(sorted(clients, key=lambda one: one.comes_s)),
        faults=tuple(sorted(faults, key=lambda one: one.at_s)),
        machines=machines,
        nodes=nodes,
        proxied=proxied,
        mover=mover,
        is_secure=is_secure,
    )
    if theme is not None and theme.write_s:
        plan = dataclasses.replace(plan, write_s=theme.write_s, latency_s=_NEAR_S)
    elsewhere = random.Random(f"others {seed}")
    if elsewhere.random() < _ELSEWHERE:
        return _elsewhere(plan, elsewhere)
    part = _SMALL
    if is_rare:
        part = _RARELY_SMALL
    small = random.Random(f"small {seed}")
    return _small(plan, theme, small) if small.random() < part else plan


def _small(plan: WorldPlan, theme: Theme | None, rng: random.Random) -> WorldPlan:
    """The same with one process, one slot, few clients and faults, and nothing beside them."""
    files = {"/SMALL.txt": plan.files["/SMALL.txt"]}
    for path in ("/big0.iso", "/big1.iso")[: rng.randint(1, 2)]:
        files[path] = max(300_000, int(plan.line_bytes_s * rng.uniform(1.0, 6.0)))
    small_too = theme.small if theme is not None and theme.small else rng.choice([0.0, 0.0, 0.3])
    crowd, span_s = rng.random() < _SMALL_CROWD, rng.choice([3.0, 12.0])
    big = [name for name in files if name != "/SMALL.txt"]
    clients = []
    for number in range(rng.randint(2, _SMALL_CLIENTS)):
        one = rng.choice(plan.clients)
        clients.append(
            dataclasses.replace(
                one,
                name=f"client-{number}",
                program="tidegate" if one.program == "get" else one.program,
                address=f"198.18.{0 if crowd else number}.{number + 1}",
                file="/SMALL.txt" if rng.random() < small_too else rng.choice(big),
                comes_s=rng.uniform(0.5, span_s),
            )
        )
    suffers = [one for one in plan.faults if one.kind in FAULTS or one.kind in _RARE_FAULTS]
    faults = [
        dataclasses.replace(one, at_s=rng.uniform(0.3, span_s if one.trigger else span_s + 8.0))
        for one in rng.sample(suffers, min(len(suffers), _SMALL_FAULTS))
    ]
    rooms = ("torrent.", "mirrors", "multicast.", "gate.")
    settings = {name: one for name, one in plan.settings.items() if not name.startswith(rooms)}
    return dataclasses.replace(
        plan,
        settings=settings | {"admission.slots": 1, "admission.reserve_small": 0},
        files=files,
        clients=tuple(sorted(clients, key=lambda one: one.comes_s)),
        faults=tuple(sorted(faults, key=lambda one: one.at_s)),
        machines=0,
        nodes=0,
        mover="",
        is_secure=False,
    )


def _elsewhere(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """The same with one process, few clients, and other servers that have the files, too.

    At most one of these lies: without any digest the majority counts.
    """
    others = [rng.choice(sorted(OTHERS)) for _ in range(rng.randint(1, _MOST_OTHERS))]
    lying = [kind for kind in others if kind in LYING]
    for kind in lying[1:]:
        others[others.index(kind)] = "plain"
    files = {path: min(size, _ELSEWHERE_BYTES) for path, size in plan.files.items()}
    gets = rng.randint(1, _MOST_GETS)
    clients = []
    for number in range(gets + rng.randint(0, _MOST_BESIDE)):
        one = rng.choice(plan.clients)
        program = "tidegate" if one.program == "get" else one.program
        clients.append(
            dataclasses.replace(
                one,
                name=f"client-{number}",
                program="get" if number < gets else program,
                address=f"198.18.{number}.{number + 1}",
            )
        )
    rooms = ("torrent.", "mirrors", "multicast.", "gate.")
    settings = {name: one for name, one in plan.settings.items() if not name.startswith(rooms)}
    if rng.random() < 0.5:
        # The server names them.
        settings["mirrors"] = [f"http://m{number}.example/" for number in range(len(others))]
    kinds = FAULTS.keys() | _RARE_FAULTS.keys()
    return dataclasses.replace(
        plan,
        settings=settings,
        files=files,
        clients=tuple(sorted(clients, key=lambda one: one.comes_s)),
        faults=tuple(one for one in plan.faults if one.kind in kinds),
        machines=0,
        nodes=0,
        mover="",
        is_secure=False,
        others=tuple(others),
    )


def _ipv6(address: str) -> str:
    """A network of IPv4 becomes a /48, and each address of it a /64."""
    _, one, other, host = map(int, address.split("."))
    return f"2001:db8:{256 * one + other:x}:{host:x}::1"


def _of(table: Mapping[str, tuple[str, ...]], rng: random.Random, kind: str) -> str:
    """What happens to such a server where this happens to one alone."""
    return rng.choice(table.get(kind, (kind,)))

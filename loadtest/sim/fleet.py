"""A cluster in virtual time: nodes with lines of their own, and one leader that decides for all.

The policy is the server's own, called through the server's own driver; what stands between it and
the clients is modelled: a message takes `delay_s` each way, the leader works off one decision
after the other, nodes tell progress four times a second. Lines are shared max-min and exact; the
leader is told what they carry, as after it has been found.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from ...policies.contract import Admit, Job, LineSeen, Wait
from ...policies.driver import PolicyDriver
from ...policies.keep_alive import BACKGROUND_WEIGHT
from ...policies.max_min import Flow, SharedLink
from ...policies.registry import make_policy
from ...policies.settings import PolicySettings

TICK_S = 0.25
#: A client that lost its node asks another one after so long, seconds; without an answer again
#: after this.
_AGAIN_S = 1.0
_FILE = "/release"


@dataclass(frozen=True, slots=True)
class Failure:
    """A node (by its number) or the leader (None) is away from a time on for so long, seconds."""

    node: int | None
    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class SimFleetPlan:
    """A crowd and the fleet that serves it. Times in seconds, sizes in bytes.

    `balancer`: requests go to the node with the `fewest` connections, or to one by `chance`.
    `clients` come evenly by chance within `within_s`; sizes are exponential around `size_bytes`
    (at least a tenth), each client's own line carries `speed_bytes_s`. `line_bytes_s` is each
    node's. `decision_s` is what one decision takes of the leader, `report_s` one body's progress.
    `hold`: who waits does so in its request, else it comes back when it is told.
    """

    nodes: int
    line_bytes_s: float
    clients: int
    within_s: float
    size_bytes: float
    speed_bytes_s: float
    policy: str = "fair"
    slots: int = 30
    delay_s: float = 0.001
    decision_s: float = 400e-6
    report_s: float = 10e-6
    hold: bool = True
    balancer: str = "fewest"
    failures: tuple[Failure, ...] = ()
    seed: int = 0

    def settings(self) -> PolicySettings:
        """As each machine is configured; the fleet has the sum."""
        return PolicySettings(
            slots=self.slots * self.nodes,
            slots_max=max(self.slots * self.nodes, 10_000),
            reserve_small=0,
            small_below_bytes=0,
            bandwidth_bytes_s=self.line_bytes_s * self.nodes,
        )


@dataclass(slots=True)
class FleetResult:
    """What became of it. Waits are until the first byte, sessions until the last."""

    waits_s: list[float] = field(default_factory=list)
    sessions_s: list[float] = field(default_factory=list)
    #: Of the leader: decisions, time spent, the longest that a message waited for its turn.
    decisions: int = 0
    leader_longest_s: float = 0.0
    leader_peak: float = 0.0
    ended_s: float = 0.0
    broken: int = 0
    most_bodies: int = 0

    @property
    def mean_session_s(self) -> float:
        """From the first request to the last byte."""
        return statistics.fmean(self.sessions_s)

    @property
    def mean_wait_s(self) -> float:
        """From the first request to the first byte."""
        return statistics.fmean(self.waits_s)


@dataclass(eq=False, slots=True)
class _Client:
    number: int
    key: str
    size_bytes: int
    arrived_s: float
    node: int = 0
    ticket: int | None = None
    lease: int | None = None
    flow: Flow | None = None
    begun_s: float = math.nan
    parked: bool = False


class Fleet:
    """One run; build it, call `run` once. Implements the driver's `Hands`."""

    def __init__(self, plan: SimFleetPlan) -> None:
        self._plan = plan
        self._random = random = Random(f"fleet/{plan.seed}")
        policy = make_policy(plan.policy, plan.settings(), Random(f"policy/{plan.seed}"))
        self._driver = PolicyDriver(policy, self)
        self._lines = [SharedLink(plan.line_bytes_s) for _ in range(plan.nodes)]
        self._up = set(range(plan.nodes))
        #: Connections of each node: bodies, and who waits in a request.
        self._here = [0] * plan.nodes
        self._now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        #: Until when the leader is at work on what it was told; until when it is away.
        self._free_s = self._back_s = 0.0
        self._spent_s = 0.0
        self._wake_s: float | None = None
        self._running: dict[int, _Client] = {}
        self._parked: dict[int, _Client] = {}
        self._waiting: set[tuple[str, str]] = set()
        self._paused: set[int] = set()
        self._background: set[int] = set()
        self._rates: dict[int, tuple[float, float]] = {}
        self._delivered = [0.0] * plan.nodes
        self.result = FleetResult()
        for number in range(plan.clients):
            size = max(0.1 * plan.size_bytes, random.expovariate(1.0 / plan.size_bytes))
            at_s = random.uniform(0.0, plan.within_s)
            key = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}#c"
            self._at(at_s, partial(self._arrive, _Client(number, key, int(size), at_s)))
        for failure in plan.failures:
            self._at(failure.at_s, partial(self._fail, failure))
        self._left = plan.clients

    # -- time ---------------------------------------------------------------------------------

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when_s, self._order, act))

    def run(self) -> FleetResult:
        """Until the last client has its file."""
        next_tick = TICK_S
        ends = [math.inf] * len(self._lines)
        while self._left:
            ends = [line.next_end() for line in self._lines]
            end = min(ends)
            event = self._heap[0][0] if self._heap else math.inf
            now = min(end, event, next_tick)
            for line in self._lines:
                line.run_to(now)
            self._now = now
            if end <= now:
                for index, at_s in enumerate(ends):
                    if at_s <= now:
                        flow = self._lines[index].pop_ended()
                        if flow is not None:
                            self._body_ended(flow.payload)
            elif event <= now:
                heapq.heappop(self._heap)[2]()
            else:
                next_tick = now + TICK_S
                self._tick()
        self.result.ended_s = self._now
        return self.result

    def _tell(self, act: Callable[[], None], cost_s: float | None = None) -> None:
        """Send the leader a message: it is worked off in its turn."""
        due_s = self._now + self._plan.delay_s
        self._at(due_s, partial(self._receive, due_s, act, cost_s))

    def _receive(self, came_s: float, act: Callable[[], None], cost_s: float | None) -> None:
        begin_s = max(self._now, self._free_s, self._back_s)
        cost = self._plan.decision_s if cost_s is None else cost_s
        self._free_s = begin_s + cost
        self._spent_s += cost
        self.result.leader_longest_s = max(self.result.leader_longest_s, self._free_s - came_s)

        def done() -> None:
            act()
            self._settle()

        self._at(self._free_s, done)

    def _settle(self) -> None:
        wake_s = self._driver.settle(self._now)
        if wake_s is not None and (self._wake_s is None or wake_s < self._wake_s):
            self._wake_s = max(wake_s, self._now + 1e-3)
            self._at(self._wake_s, self._wake)

    def _wake(self) -> None:
        if self._wake_s is not None and self._now >= self._wake_s - 1e-9:
            self._wake_s = None
            self._settle()

    def _tick(self) -> None:
        """Nodes tell how far their bodies are."""
        plan, result = self._plan, self.result
        if self._now < self._back_s:
            return
        cost = plan.report_s * len(self._running)
        self._free_s = max(self._free_s, self._now) + cost
        result.leader_peak = max(result.leader_peak, (self._spent_s + cost) / TICK_S)
        self._spent_s = 0.0
        result.most_bodies = max(result.most_bodies, len(self._running))
        busy = any(line.full for line in self._lines)
        for lease, client in self._running.items():
            flow = client.flow
            if flow is None or not flow.running or lease in self._paused:
                continue
            line = self._lines[client.node]
            rate = line.rate(flow)
            held_back = line.full and rate < flow.cap_bytes_s
            left = math.ceil(line.remaining(flow))
            self._driver.progress(lease, self._now, left, rate, held_back)
        lines = {}
        for node, line in enumerate(self._lines):
            before, self._delivered[node] = self._delivered[node], line.delivered_bytes
            if node in self._up:
                goodput = (line.delivered_bytes - before) / TICK_S
                lines[str(node)] = LineSeen(line.capacity_bytes_s, goodput, line.full)
        goodput = sum(line.goodput_bytes_s for line in lines.values())
        carried = sum(line.line_bytes_s for line in lines.values())
        self._driver.observe(goodput, busy, self._now, max(1.0, carried), lines)
        self._settle()

    # -- a client's way -------------------------------------------------------------------------

    def _arrive(self, client: _Client) -> None:
        if not self._up:
            self._at(self._now + _AGAIN_S, partial(self._arrive, client))
            return
        client.node = self._choose()
        self._here[client.node] += 1
        self._tell(partial(self._offer, client))

    def _choose(self) -> int:
        nodes = sorted(self._up)
        self._random.shuffle(nodes)
        if self._plan.balancer == "chance":
            return nodes[0]
        return min(nodes, key=lambda node: self._here[node])

    def _offer(self, client: _Client) -> None:
        self.result.decisions += 1
        left = client.size_bytes
        if client.flow is not None:
            left = self._left_of(client, client.flow)
        hold = self._plan.hold
        job = Job(
            client.key,
            _FILE,
            client.size_bytes,
            left,
            present=hold,
            network=(client.key,),
            line=str(client.node),
        )
        decision = self._driver.offer(job, self._now, client.ticket)
        if isinstance(decision, Admit):
            client.lease = decision.lease
            self._running[decision.lease] = client
            flow = Flow(self._plan.speed_bytes_s, left, client)
            client.flow = flow
            self._at(self._now + self._plan.delay_s, partial(self._begin, client, flow))
        elif isinstance(decision, Wait) and decision.ticket is not None:
            client.ticket = decision.ticket
            if hold:
                client.parked = True
                self._parked[decision.ticket] = client
                self._waiting.add((client.key, _FILE))
            else:
                self._here[client.node] -= 1
                self._at(self._now + decision.retry_after_s, partial(self._arrive, client))
        else:
            client.ticket = None
            self._here[client.node] -= 1
            again_s = decision.retry_after_s or _AGAIN_S
            self._at(self._now + again_s, partial(self._arrive, client))

    def _begin(self, client: _Client, flow: Flow) -> None:
        if client.flow is not flow or client.lease is None:
            return
        if client.node not in self._up:
            self._lose(client)
            return
        if client.lease not in self._paused:
            self._carry(client)

    def _carry(self, client: _Client) -> None:
        if client.flow is not None and not client.flow.running:
            if math.isnan(client.begun_s):
                client.begun_s = self._now
            self._lines[client.node].start(client.flow)

    def _body_ended(self, client: _Client) -> None:
        lease = client.lease
        assert lease is not None
        client.lease = None
        self._left -= 1
        self._here[client.node] -= 1
        result = self.result
        result.waits_s.append(client.begun_s - client.arrived_s)
        result.sessions_s.append(self._now - client.arrived_s)
        self._tell(partial(self._ended, lease, 0))

    def _ended(self, lease: int, left: int) -> None:
        self._running.pop(lease, None)
        self._paused.discard(lease)
        self._background.discard(lease)
        self._driver.end(lease, self._now, left, done=not left)

    # -- failures -----------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        if failure.node is None:
            self._back_s = max(self._back_s, self._now + failure.for_s)
            return
        node = failure.node
        self._up.discard(node)
        self._at(self._now + failure.for_s, partial(self._up.add, node))
        for client in tuple(self._running.values()):
            if client.node == node and client.lease is not None:
                self._lose(client)
        for ticket, client in tuple(self._parked.items()):
            if client.node == node:
                self._unpark(ticket)
                self._here[node] -= 1
                self._tell(partial(self._driver.absent, ticket, self._now))
                self._at(self._now + _AGAIN_S, partial(self._arrive, client))

    def _lose(self, client: _Client) -> None:
        """Its body breaks off: it asks at another node for the rest."""
        lease, flow = client.lease, client.flow
        assert lease is not None
        assert flow is not None
        self._lines[client.node].stop(flow)
        client.lease = client.ticket = None
        self._here[client.node] -= 1
        self.result.broken += 1
        self._tell(partial(self._ended, lease, self._left_of(client, flow)))
        self._at(self._now + _AGAIN_S, partial(self._arrive, client))

    def _left_of(self, client: _Client, flow: Flow) -> int:
        return max(1, math.ceil(self._lines[client.node].remaining(flow)))

    def _unpark(self, ticket: int) -> _Client:
        client = self._parked.pop(ticket)
        client.parked = False
        self._waiting.discard((client.key, _FILE))
        return client

    # -- the driver's hands ---------------------------------------------------------------------

    def put_behind(self, lease: int, now: float, *, background: bool) -> None:
        """See `Hands`."""
        (self._background.add if background else self._background.discard)(lease)
        self._at(now + self._plan.delay_s, partial(self._follow, lease))

    def pause(self, lease: int, now: float) -> None:
        """See `Hands`."""
        self._paused.add(lease)
        self._at(now + self._plan.delay_s, partial(self._follow, lease))

    def resume(self, lease: int, now: float) -> None:
        """See `Hands`."""
        self._paused.discard(lease)
        self._at(now + self._plan.delay_s, partial(self._follow, lease))

    def _follow(self, lease: int) -> None:
        client = self._running.get(lease)
        if client is None or client.lease != lease or client.flow is None:
            return
        weight = BACKGROUND_WEIGHT if lease in self._background else 1.0
        self._lines[client.node].weigh(client.flow, weight)
        if lease in self._paused:
            self._lines[client.node].stop(client.flow)
        elif client.node in self._up:
            self._carry(client)

    def idled_out(self, lease: int, now: float) -> None:
        """See `Hands`."""
        self._paused.discard(lease)
        self._background.discard(lease)
        self._running.pop(lease, None)

    def expired(self, ticket: int, now: float) -> None:
        """See `Hands`."""
        if ticket in self._parked:
            client = self._unpark(ticket)
            client.ticket = None
            self._here[client.node] -= 1
            self._at(now, partial(self._arrive, client))

    def parked(self, client: str, file: str) -> bool:
        """See `Hands`."""
        return (client, file) in self._waiting

    def call(self, ticket: int, now: float) -> bool:
        """See `Hands`."""
        if ticket not in self._parked:
            return False
        cost = self._plan.decision_s
        self._free_s = max(self._free_s, now) + cost
        self._spent_s += cost
        self._offer(self._unpark(ticket))
        return True

"""The lines of a fleet are found by what its nodes tell, each machine's for itself."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import representation
from tidegate.policies.contract import Admit, Job
from tidegate.server.admission.downloads import Delivery, LeasedDownload
from tidegate.server.cluster.leader import Node, Nodes, RemoteTransfer
from tidegate.server.cluster.line import FleetLine
from tidegate.server.cluster.messages import ProgressReport
from tidegate.server.files.transfer import BodyPlan

SIZE = 10**10
TICK_S = 0.25


@dataclass(eq=False)
class Body:
    """A body at a node: what its client can take, what was sent and what has arrived."""

    most_bytes_s: float
    transfer: RemoteTransfer
    download: LeasedDownload
    sent: float = 0.0
    arrived: float = 0.0


@dataclass
class Machine:
    """Real messages from the nodes of one machine, in front of a line that carries so much."""

    name: str
    line_bytes_s: float
    nodes: list[Node]
    bodies: list[tuple[Node, Body]] = field(default_factory=list)

    def pass_time(self, lines: FleetLine, now: float) -> None:
        running = [(n, b) for n, b in self.bodies if not b.transfer.paused]
        cap = lines.cap_of(self.name)
        room = min(self.line_bytes_s, cap if cap is not None else self.line_bytes_s) * TICK_S
        wishes = sorted(running, key=lambda one: one[1].most_bytes_s)
        for left, (_, body) in zip(range(len(wishes), 0, -1), wishes, strict=True):
            got = min(body.most_bytes_s * TICK_S, room / left)
            room -= got
            body.arrived += got
            # A socket's buffer is full while more could be sent than arrives.
            body.sent = body.arrived + 100_000
        capped = cap is not None and cap < self.line_bytes_s and room < 1.0
        for node in self.nodes:
            mine = [body for other, body in self.bodies if other is node]
            for body in mine:
                stuck = not capped and not body.transfer.paused
                body.transfer.moved(int(body.sent), int(body.arrived), stuck)
            goodput = sum(min(b.most_bytes_s, self.line_bytes_s / len(mine)) for b in mine)
            total = int(sum(body.sent for body in mine))
            flying = total - int(sum(body.arrived for body in mine))
            node.told = ProgressReport((), goodput, capped, (), 0, 0, total, flying, now)
            node.told_s = now


class Link:
    def send(self, message: Any) -> None: ...


def _body(number: int, node: Node, size: int, most_bytes_s: float) -> Body:
    job = Job(f"192.0.2.{number}#x", "/big.bin", size, size)
    download = LeasedDownload(Admit(number), job, representation("/big.bin", size), 0.0)
    plan = BodyPlan(200, (), ((0, size),), size)
    delivery = Delivery(download, plan, lambda one, go_on: go_on(), lambda one: None)
    transfer = RemoteTransfer(node, number, delivery, size, 0, lambda: 0.0)
    delivery.transfer = transfer
    download.join(delivery)
    return Body(most_bytes_s, transfer, download)


def build(*machines: tuple[str, float, list[tuple[int, float]]]) -> tuple[FleetLine, list[Machine]]:
    """Machines by name, what their line carries, and their clients: node and own speed."""
    nodes = Nodes()
    found = []
    number = 0
    for name, line, clients in machines:
        here = [Node(f"{name}/{n}", n, Link(), name) for n in range(2)]  # type: ignore[arg-type]
        for node in here:
            nodes.add(node)
        machine = Machine(name, line, here)
        for at, speed in clients:
            number += 1
            machine.bodies.append((here[at], _body(number, here[at], SIZE, speed)))
        found.append(machine)
    return FleetLine(nodes, None), found


def run(lines: FleetLine, machines: list[Machine], seconds: float, now: float = 0.0) -> None:
    downloads = [body.download for machine in machines for _, body in machine.bodies]
    for turn in range(int(seconds / TICK_S)):
        now += TICK_S
        for machine in machines:
            machine.pass_time(lines, now)
        for download in downloads:
            download.look()
        lines.looked(now + 0.05, downloads)
        lines.tick(now + 0.05, downloads, 0)
        if turn % 2:
            # The gate's clock is quicker than the nodes.
            lines.tick(now + 0.15, downloads, 0)


def test_each_machines_line_is_found_for_itself() -> None:
    crowd = [(n % 2, 4e6) for n in range(10)]
    lines, machines = build(("a", 10e6, crowd), ("b", 5e6, crowd))
    run(lines, machines, 30.0)
    for machine in machines:
        cap = lines.cap_of(machine.name)
        assert cap is not None
        assert 0.85 * machine.line_bytes_s <= cap <= 1.3 * machine.line_bytes_s
    assert 0.85 * 15e6 <= lines.line_bytes_s <= 1.3 * 15e6
    seen = lines.lines
    assert set(seen) == {"a", "b"}
    assert sum(one.line_bytes_s for one in seen.values()) == lines.line_bytes_s
    assert seen["a"].line_bytes_s > seen["b"].line_bytes_s


def test_clients_that_are_slow_by_themselves_are_no_full_line() -> None:
    lines, machines = build(("a", 100e6, [(n % 2, 1e6) for n in range(10)]))
    run(lines, machines, 30.0)
    assert lines.cap_of("a") is lines.capacity_bytes_s is None
    assert lines.line_bytes_s == float("inf")


def test_a_configured_bandwidth_is_each_machines_own_and_the_fleet_has_the_sum() -> None:
    crowd = [(n % 2, 4e6) for n in range(10)]
    lines, machines = build(("a", 100e6, crowd), ("b", 100e6, crowd))
    lines.set_ceiling(3e6)
    assert (lines.cap_of("a"), lines.cap_of("c")) == (3e6, 3e6)
    assert lines.capacity_bytes_s == 3e6, "as nobody has told anything so far"
    run(lines, machines, 5.0)
    assert (lines.line_bytes_s, lines.capacity_bytes_s) == (6e6, 6e6)
    assert [(one.line_bytes_s, one.busy) for one in lines.lines.values()] == [(3e6, True)] * 2
    assert lines.busy


def test_a_node_that_leaves_takes_nothing_from_what_was_sent() -> None:
    lines, machines = build(("a", 10e6, [(n % 2, 4e6) for n in range(10)]))
    [machine] = machines
    run(lines, machines, 20.0)
    before = lines.cap_of("a")
    assert before is not None
    gone = machine.nodes.pop()
    lines._nodes.remove(gone, 20.0)
    machine.bodies = [one for one in machine.bodies if one[0] is not gone]
    run(lines, machines, 5.0, 20.0)
    after = lines.cap_of("a")
    assert after is not None
    assert after > 0.7 * before


@dataclass
class ShortBodies:
    """A crowd at one machine that takes a body after another, with large buffers.

    Much of each arrives after it is over, as real sockets have it.
    """

    node: Node
    line_bytes_s: float
    count: int
    size: int = 2_000_000
    buffer: int = 700_000
    running: list[Body] = field(default_factory=list)
    over: list[Body] = field(default_factory=list)
    sent_total: float = 0.0
    made: int = 0

    def pass_time(self, lines: FleetLine, now: float) -> None:
        while len(self.running) < self.count:
            self.made += 1
            # They are not all at the same point.
            done = self.size * (self.made % self.count) / self.count if now < 1.0 else 0.0
            body = _body(self.made, self.node, self.size, 1e9)
            body.sent = body.arrived = done
            self.running.append(body)
        cap = lines.cap_of("a")
        room = self.line_bytes_s * TICK_S
        to_send = (cap if cap is not None else 1e12) * TICK_S
        takers = [body for body in self.running if not body.transfer.paused]

        def room_of(body: Body) -> float:
            return min(self.size, body.arrived + self.buffer) - body.sent

        for left, body in zip(range(len(takers), 0, -1), sorted(takers, key=room_of), strict=True):
            more = min(room_of(body), to_send / left)
            body.sent += more
            to_send -= more
            self.sent_total += more
        here = [body for body in self.running + self.over if body.sent > body.arrived]
        for body in here:
            body.arrived += min(body.sent - body.arrived, room / len(here))
        self.over = [body for body in self.over if body.sent > body.arrived]
        flying = sum(body.sent - body.arrived for body in self.running + self.over)
        for body in list(self.running):
            stuck = to_send > 0.0 and not body.transfer.paused
            body.transfer.moved(int(body.sent), int(body.arrived), stuck)
            if body.sent >= self.size:
                body.transfer.ended(self.size, True)
                self.running.remove(body)
                self.over.append(body)
        told = int(flying)
        self.node.told = ProgressReport(
            (), 0.0, to_send <= 0.0, (), 0, 0, int(self.sent_total), told, now
        )
        self.node.told_s = now


def _found() -> float:
    """What a line of 10 MB/s is taken for, where bodies are short and buffers large."""
    nodes = Nodes()
    node = Node("a/0", 0, Link(), "a")  # type: ignore[arg-type]
    nodes.add(node)
    lines, crowd = FleetLine(nodes, None), ShortBodies(node, 10e6, 12)
    caps = []
    for turn in range(240):
        now = turn * TICK_S
        crowd.pass_time(lines, now)
        running = [body.download for body in crowd.running]
        for download in running:
            download.look()
        lines.looked(now + 0.05, running)
        lines.tick(now + 0.05, running, 0)
        cap = lines.cap_of("a")
        caps.append(cap if cap is not None else float("inf"))
    return statistics.median(caps[80:])


def test_short_bodies_do_not_make_a_line_look_wider_than_it_is() -> None:
    assert 9e6 <= _found() <= 11e6

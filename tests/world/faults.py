"""What goes wrong: each kind of fault does one thing to the world when its time has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .fleet import DATABASE
from .life import ServerLife
from .operator import Person, share, visit
from .plan import POLICY_NAMES, FaultPlan
from .secure import write_certificate

if TYPE_CHECKING:
    from .fleet import Process
    from .programs import SimulatedClient
    from .world import World

_DATABASE = ("tidegate.db", "tidegate.db-wal", "tidegate.db-shm")


def _a_big_file(world: World, fault: FaultPlan) -> str:
    names = [name for name in world.files if name != "/SMALL.txt"]
    return names[int(fault.pick * len(names))]


def _start_again(world: World) -> None:
    if world.life is None or not world.life.alive:
        waits_s = world.half_renewed_until_s - world.schedule.now
        if waits_s > 0.0:
            # It refuses a certificate without its key.
            world.schedule.after(waits_s + 0.1, _start_again, world)
        else:
            world.start_server()


def _kill(world: World, fault: FaultPlan) -> None:
    life = world.life
    if life is not None and life.alive:
        world.kill_server()
        world.cause("server is killed")
        world.schedule.after(0.2 + fault.for_s / 4, _start_again, world)


def _kill_again(world: World, fault: FaultPlan) -> None:
    """A server that does not stay up: it is killed some seconds after each of two starts."""
    for number in range(3):
        after_s = number * (1.5 + fault.for_s * fault.pick)
        world.schedule.after(after_s, _kill, world, fault)


def _restart(world: World, fault: FaultPlan) -> None:
    life = world.life
    if isinstance(life, ServerLife) and life.leads:
        world.cause("server is stopped")
        world.stop_asked_s = world.schedule.now

        def stopped() -> None:
            world.cause("server has stopped")
            world.server_stopped()
            world.schedule.after(0.2, _start_again, world)

        life.stop(stopped)


def _lose_journal(world: World, fault: FaultPlan) -> None:
    """Killed, and its database is that of some time ago, or none."""
    state = world.root / "state"
    copies = {name: (state / name).read_bytes() for name in _DATABASE if (state / name).exists()}

    def lose() -> None:
        life = world.life
        if life is None or not life.alive:
            return
        life.kill()
        for name in _DATABASE:
            (state / name).unlink(missing_ok=True)
        if fault.pick < 0.5:
            for name, content in copies.items():
                (state / name).write_bytes(content)
        world.journal_lost_s = world.schedule.now
        world.cause("server is killed, its journal is lost")
        world.schedule.after(0.5, _start_again, world)

    world.schedule.after(fault.for_s, lose)


def _stall(world: World, fault: FaultPlan) -> None:
    if world.life is not None and world.life.alive:
        world.cause(f"server stands still for {fault.for_s} s")
        world.life.reactor.stall(fault.for_s)
        world.still_until_s = max(world.still_until_s, world.schedule.now + fault.for_s)
        world.schedule.after(fault.for_s, world.cause, "server may go on")


def _wall(world: World, fault: FaultPlan) -> None:
    step_s = (fault.pick - 0.5) * 20_000.0
    world.schedule.wall_step_s += step_s
    world.cause(f"wall clock steps by {step_s:.0f} s")


def _replace(world: World, fault: FaultPlan) -> None:
    path = _a_big_file(world, fault)
    size = len(world.files[path][-1].content)
    # A mover's tag is of seconds and size: two contents of one second would have one.
    same = fault.pick < 0.5 and not world.plan.mover
    world.write_file(path, size if same else size + 1234)
    world.cause(f"{path} is replaced")


def _overwrite(world: World, fault: FaultPlan) -> None:
    path = _a_big_file(world, fault)
    size = len(world.files[path][-1].content)
    world.write_file(path, size if fault.pick < 0.5 else size - 1234, in_place=True)
    world.cause(f"{path} is written over in place")


def _touch(world: World, fault: FaultPlan) -> None:
    place = world.root / "release" / _a_big_file(world, fault)[1:]
    if place.exists():
        world.set_time(place)
        world.cause(f"{place.name} is touched")


def _delete(world: World, fault: FaultPlan) -> None:
    path = _a_big_file(world, fault)
    place = world.root / "release" / path[1:]
    if place.exists():
        content = place.read_bytes()
        place.unlink()
        world.cause(f"{path} is deleted")

        def back() -> None:
            if not place.exists():
                place.write_bytes(content)
                world.set_time(place)
                world.cause(f"{path} is there again")

        world.schedule.after(fault.for_s, back)


def _policy(world: World, fault: FaultPlan) -> None:
    if world.running:
        name = POLICY_NAMES[int(fault.pick * len(POLICY_NAMES))]
        world.operator.change(f"policy becomes {name}", "PATCH", "/settings", {"policy": name})


def _settings(world: World, fault: FaultPlan) -> None:
    gate = world.gate
    if gate is not None:
        slots = 1 + int(fault.pick * 8)
        changes = {
            "slots": slots,
            "reserve_small": min(gate.settings.reserve_small, slots - 1),
            "connections_per_lease": 1 + int(fault.pick * 97) % 4,
            "bandwidth_bytes_s": None if fault.pick < 0.3 else world.network.wire.rate_bytes_s,
        }
        asked = {"settings": changes}
        world.operator.change(f"settings become {changes}", "PATCH", "/settings", asked)


def _doors(world: World, fault: FaultPlan) -> None:
    def let(closed: bool) -> None:
        text = "doors are " + ("closed" if closed else "opened")
        world.operator.change(text, "PUT", "/doors", {"closed": closed}, again=not closed)

    let(True)
    world.schedule.after(fault.for_s, let, False)


def _cancel(world: World, fault: FaultPlan) -> None:
    leases = sorted(world.gate.downloads) if world.gate is not None else []
    if leases:
        number = leases[int(fault.pick * len(leases))]
        world.operator.change("a download is cancelled", "DELETE", f"/downloads/{number}")


def _a_ticket(world: World, fault: FaultPlan) -> int | None:
    rows = list(world.gate.policy.tickets()) if world.gate is not None else []
    return rows[int(fault.pick * len(rows))].number if rows else None


def _promote(world: World, fault: FaultPlan) -> None:
    number = _a_ticket(world, fault)
    if number is not None:
        text = f"ticket {number} is promoted"
        world.operator.change(text, "POST", f"/tickets/{number}/promote")


def _withdraw(world: World, fault: FaultPlan) -> None:
    number = _a_ticket(world, fault)
    if number is not None:
        text = f"ticket {number} is withdrawn"
        world.operator.change(text, "DELETE", f"/tickets/{number}")


def _a_client(world: World, fault: FaultPlan) -> SimulatedClient | None:
    there = [one for one in world.clients if not one.over]
    return there[int(fault.pick * len(there))] if there else None


def _block(world: World, fault: FaultPlan) -> None:
    """An address is blocked, and later no more."""
    client = _a_client(world, fault)
    if client is None:
        return
    client.turned_away = True
    network = client.address
    world.operator.change(f"{client} is blocked", "POST", "/blocks", {"network": network})

    def again() -> None:
        place = f"/blocks?network={quote(network, safe='')}"
        world.operator.change(f"{client} is blocked no more", "DELETE", place, again=True)

    world.schedule.after(fault.for_s, again)


def _pass(world: World, fault: FaultPlan) -> None:
    """A client gets a priority pass, which may be revoked."""
    client = _a_client(world, fault)
    if client is None:
        return
    body = {"kind": "gold", "expires_s": world.schedule.wall() + 1e6, "max_uses": 100}

    def issued(found: Any) -> None:
        one = found["passes"][0]
        client.pass_token = one["token"]
        if fault.pick < 0.3:
            client.turned_away = True
            world.schedule.after(fault.for_s, revoke, one["serial"])

    def revoke(serial: str) -> None:
        world.operator.change(f"the pass of {client} is revoked", "DELETE", f"/passes/{serial}")

    world.operator.change(f"{client} gets a pass", "POST", "/passes", body, issued)


def _look(world: World, fault: FaultPlan) -> None:
    world.operator.look(fault.pick)


def _visit(world: World, fault: FaultPlan) -> None:
    visit(world, fault.pick)


def _share(world: World, fault: FaultPlan) -> None:
    share(world, fault.pick)


def _act(world: World, fault: FaultPlan) -> None:
    world.operator.act(fault.pick)


def _person(world: World, fault: FaultPlan) -> None:
    Person(world, fault.pick)


def _publish(world: World, fault: FaultPlan) -> None:
    assert world.channel is not None
    world.channel.publish(fault.pick)


def _database_slow(world: World, fault: FaultPlan) -> None:
    world.database_slow_until_s = world.schedule.now + fault.for_s
    world.cause(f"the database is slow for {fault.for_s} s")


def _database_full(world: World, fault: FaultPlan) -> None:
    world.database_full_until_s = world.schedule.now + fault.for_s
    world.cause(f"the database takes nothing for {fault.for_s} s")


def _line(world: World, fault: FaultPlan) -> None:
    wire, whole = world.network.wire, world.plan.line_bytes_s
    wire.rate_bytes_s = whole * (0.2 + 0.6 * fault.pick)
    world.cause(f"the line carries {wire.rate_bytes_s:.0f} bytes/s")

    def back() -> None:
        wire.rate_bytes_s = whole
        world.cause("the line carries all again")

    world.schedule.after(fault.for_s, back)


def _cut(world: World, fault: FaultPlan) -> None:
    busy = [
        one.exchange
        for client in ([world.culprit] if world.culprit is not None else world.clients)
        if not client.over
        for one in client.segments
        if one.exchange is not None
    ]
    if busy:
        found = busy[int(fault.pick * len(busy))]
        assert found is not None
        world.cause(f"a connection of {found.client} is cut")
        if fault.pick * 7 % 1.0 < 0.3:
            # The server is not told.
            found.channel.vanish()
            found.client.has_vanished = True
        else:
            found.channel.close(reset=True)
        found.client.starts_lost += not found.status
        found.cut_off()
        world.client_cut(found.client)


def _give_up(world: World, fault: FaultPlan) -> None:
    """A person has enough of it."""
    client = world.culprit or _a_client(world, fault)
    if client is not None and not client.over and client.state != "coming":
        client.leave("gives up")


def _lose_answer(world: World, fault: FaultPlan) -> None:
    client = world.culprit
    if fault.trigger == "back" and client is not None:
        world.cause(f"the answer to {client} is lost")
        client.lose_answer()
    else:
        world.answers_to_lose += 1 + int(fault.pick * 3)


def _a_process(world: World, fault: FaultPlan) -> Process | None:
    """That of the leader half of the time."""
    fleet = world.fleet
    if fleet.leader is not None and fault.pick < 0.5:
        return fleet.leader
    found = list(fleet.processes.values())
    return found[int(fault.pick * 97) % len(found)] if found else None


def _kill_process(world: World, fault: FaultPlan) -> None:
    process = _a_process(world, fault)
    if process is not None:
        world.cause(f"{process.name} of machine {process.parent.number} is killed")
        world.fleet.kill_process(process)
        world.forget_files()


def _stall_process(world: World, fault: FaultPlan) -> None:
    process = _a_process(world, fault)
    if process is not None:
        number = process.parent.number
        world.cause(f"{process.name} of machine {number} stands still for {fault.for_s} s")
        process.reactor.stall(fault.for_s)
        world.still_until_s = max(world.still_until_s, world.schedule.now + fault.for_s)
        world.schedule.after(fault.for_s, world.cause, "it may go on")


def _lose_machine(world: World, fault: FaultPlan) -> None:
    fleet = world.fleet
    number = int(fault.pick * len(fleet.machines))
    if fleet.machines[number] is not None:
        world.cause(f"machine {number} is lost")
        fleet.lose_machine(number)
        world.forget_files()
        world.schedule.after(0.5 + fault.for_s, fleet.start_machine, number)


def _stop_machine(world: World, fault: FaultPlan) -> None:
    fleet = world.fleet
    number = int(fault.pick * len(fleet.machines))
    if fleet.machines[number] is not None:
        world.cause(f"machine {number} is stopped")
        world.stop_asked_s = world.schedule.now
        fleet.stop_machine(number)


def _cut_off(world: World, fault: FaultPlan) -> None:
    """A machine does not reach another one, or the database."""
    fleet = world.fleet
    number = int(fault.pick * len(fleet.machines))
    others = [one for one in range(DATABASE, len(fleet.machines)) if one != number]
    other = others[int(fault.pick * 97) % len(others)]
    pair = frozenset((number, other))
    named = "the database" if other == DATABASE else f"machine {other}"
    world.cause(f"machine {number} does not reach {named}")
    fleet.links.cut.add(pair)
    world.cut_until_s = max(world.cut_until_s, world.schedule.now + fault.for_s)

    def back() -> None:
        fleet.links.cut.discard(pair)
        world.cause(f"machine {number} reaches {named} again")

    world.schedule.after(fault.for_s, back)


def _kill_mover(world: World, fault: FaultPlan) -> None:
    """The program that sends the files is killed, and starts again."""
    if world.mover.alive:
        world.cause("the mover is killed")
        world.mover.kill()
        world.schedule.after(0.2 + fault.for_s / 4, _start_mover, world)


def _start_mover(world: World) -> None:
    world.mover.start()
    world.cause("the mover starts")


def _lose_reports(world: World, fault: FaultPlan) -> None:
    """What the mover reports gets lost for a while, and at times what the kernel tells, too."""
    until_s = world.schedule.now + fault.for_s
    world.cause(f"reports get lost for {fault.for_s} s")
    world.mover.loses_until_s = until_s
    if fault.pick < 0.3:
        world.mover.kernel.deaf_until_s = until_s


def _certificate(world: World, fault: FaultPlan) -> None:
    """It is renewed, at times in two steps: the key is missing for a while."""
    number = int(fault.pick * 1000)
    whole = fault.pick < 0.5
    write_certificate(world.root, number, key_too=whole)
    world.note("the certificate is renewed" + ("" if whole else ", its key is to come"))
    if not whole:
        until_s = world.schedule.now + fault.for_s
        world.half_renewed_until_s = max(world.half_renewed_until_s, until_s)
        world.schedule.after(fault.for_s, write_certificate, world.root, number)


def _half_hello(world: World, fault: FaultPlan) -> None:
    """A part of a handshake, and silence or the end."""
    data = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[: int(fault.pick * 12)]
    peer = SilentPeer()
    channel = world.network.connect("192.0.2.7", peer, 1e6, data, raw=True)
    world.schedule.after(fault.for_s * fault.pick, channel.close)


class SilentPeer:
    """A client that says nothing more; a `wire.Peer`."""

    def arrived(self, data: bytes) -> None:
        """See `wire.Peer`."""

    def ended(self) -> None:
        """See `wire.Peer`."""

    def broken(self) -> None:
        """See `wire.Peer`."""


FAULT_OF: Mapping[str, Callable[[World, FaultPlan], None]] = {
    "kill": _kill,
    "kill again": _kill_again,
    "restart": _restart,
    "lose journal": _lose_journal,
    "stall": _stall,
    "wall": _wall,
    "replace": _replace,
    "touch": _touch,
    "overwrite": _overwrite,
    "delete": _delete,
    "policy": _policy,
    "settings": _settings,
    "doors": _doors,
    "promote": _promote,
    "withdraw": _withdraw,
    "cancel": _cancel,
    "database slow": _database_slow,
    "database full": _database_full,
    "line": _line,
    "cut": _cut,
    "lose answer": _lose_answer,
    "give up": _give_up,
    "block": _block,
    "pass": _pass,
    "look": _look,
    "visit": _visit,
    "share": _share,
    "act": _act,
    "person": _person,
    "publish": _publish,
    "kill process": _kill_process,
    "stall process": _stall_process,
    "lose machine": _lose_machine,
    "stop machine": _stop_machine,
    "cut off": _cut_off,
    "kill mover": _kill_mover,
    "certificate": _certificate,
    "half hello": _half_hello,
    "lose reports": _lose_reports,
}

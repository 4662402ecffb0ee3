"""What goes wrong: each kind of fault does one thing to the world when its time has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .plan import POLICY_NAMES, FaultPlan

if TYPE_CHECKING:
    from .world import World

_DATABASE = ("tidegate.db", "tidegate.db-wal", "tidegate.db-shm")


def _a_big_file(world: World, fault: FaultPlan) -> str:
    names = [name for name in world.files if name != "/SMALL.txt"]
    return names[int(fault.pick * len(names))]


def _start_again(world: World) -> None:
    if world.life is None or not world.life.alive:
        world.start_server()


def _kill(world: World, fault: FaultPlan) -> None:
    life = world.life
    if life is not None and life.alive:
        life.kill()
        world.cause("server is killed")
        world.schedule.after(0.2 + fault.for_s / 4, _start_again, world)


def _restart(world: World, fault: FaultPlan) -> None:
    life = world.life
    if life is not None and life.alive and not life.stopping:
        world.cause("server is stopped")

        def stopped() -> None:
            world.cause("server has stopped")
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
        world.schedule.after(fault.for_s, world.cause, "server may go on")


def _wall(world: World, fault: FaultPlan) -> None:
    step_s = (fault.pick - 0.5) * 20_000.0
    world.schedule.wall_step_s += step_s
    world.cause(f"wall clock steps by {step_s:.0f} s")


def _replace(world: World, fault: FaultPlan) -> None:
    path = _a_big_file(world, fault)
    size = len(world.files[path][-1].content)
    world.write_file(path, size if fault.pick < 0.5 else size + 1234)
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
        assert world.life is not None
        service = world.life.service
        world.cause(f"policy becomes {name}")
        world.switched_s = world.schedule.now
        service.admin.server.revisions.apply(name, service.gate.settings, "operator")


def _settings(world: World, fault: FaultPlan) -> None:
    if world.running:
        assert world.life is not None
        service = world.life.service
        old = service.gate.settings
        slots = 1 + int(fault.pick * 8)
        changes = {
            "slots": slots,
            "reserve_small": min(old.reserve_small, slots - 1),
            "connections_per_lease": 1 + int(fault.pick * 97) % 4,
            "bandwidth_bytes_s": None if fault.pick < 0.3 else world.network.wire.rate_bytes_s,
        }
        new = type(old).model_validate({**old.model_dump(), **changes})
        world.cause(f"settings become {changes}")
        world.switched_s = world.schedule.now
        service.admin.server.revisions.apply(service.gate.policy.name, new, "operator")


def _doors(world: World, fault: FaultPlan) -> None:
    def let(closed: bool) -> None:
        if world.running:
            assert world.life is not None
            world.life.service.gate.close_doors(closed)
            world.cause("doors are " + ("closed" if closed else "opened"))

    let(True)
    world.schedule.after(fault.for_s, let, False)


def _steer(what: str) -> Callable[[World, FaultPlan], None]:
    def steer(world: World, fault: FaultPlan) -> None:
        if not world.running:
            return
        assert world.life is not None
        service = world.life.service
        if what == "cancel":
            leases = sorted(service.gate.downloads)
            if leases:
                world.cause("the operator cancels a download")
                service.admin.server.desk.cancel(leases[int(fault.pick * len(leases))], "cancelled")
            return
        rows = list(service.gate.policy.tickets())
        if rows:
            row = rows[int(fault.pick * len(rows))]
            world.cause(f"the operator makes a ticket {what}n: {row.number}")
            getattr(service.admin.server.desk, what)(row.number)

    return steer


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
        else:
            found.channel.close(reset=True)
        found.client.starts_lost += not found.status
        found.cut_off()
        world.client_cut(found.client)


def _lose_answer(world: World, fault: FaultPlan) -> None:
    world.answers_to_lose += 1 + int(fault.pick * 3)


FAULT_OF: Mapping[str, Callable[[World, FaultPlan], None]] = {
    "kill": _kill,
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
    "promote": _steer("promote"),
    "withdraw": _steer("withdraw"),
    "cancel": _steer("cancel"),
    "database slow": _database_slow,
    "database full": _database_full,
    "line": _line,
    "cut": _cut,
    "lose answer": _lose_answer,
}

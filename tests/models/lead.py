"""The lead of a cluster: the lease, its epochs and the fence, under cut-offs of every kind.

Three machines, one lease row. What a machine makes of an answer is the real code: each step calls
`server.cluster.election.answered` and `passed`. The rest stands for:

| action | code |
|---|---|
| `campaign` | `Candidate._ask`, `store.cluster.campaign` |
| `renew`, `read` | `Candidate._ask`, `store.cluster.renew`, `read_seat` |
| `hear`, `lose answer` | `Candidate._handle`, and `StoreUnavailable` in `Candidate._run` |
| `look` | `Candidate._tick` |
| `begin`, `fenced` | `Store._flush`, `store.cluster.check_epoch`; `Machine.retire` |
| `commit`, `abort` | the end of that transaction, which the database may see late |
| `hand over` | `Machine._hand_over`, `Candidate.release`, `store.cluster.release` |
| `end` | a crash or `Machine._end`; the next process campaigns unless the machine stops |
| `tick` | time passes by the database's clock and by each `time.monotonic` |

Cut-offs need no action of their own, as steps come in every order:

| what happens | in the model |
|---|---|
| a leader is cut off from the database | none of its `renew`, `begin` and `commit` comes |
| a process is paused | none of its steps comes while `tick` does |
| a clock stands, jumps or runs wrong | `Lead(clocks_run=False)`: no time bounds anything |
| an answer is late | `hear` after any number of `tick` |
| a connection breaks between commit and answer | `lose answer`; `end`, then `commit` |

Three ticks are one lease. The database keeps what it has committed: a standby that takes over
without the last commits is outside of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tests.models.explorer import Fault, Step
from tidegate.server.cluster.election import Candidacy, Standing, answered, passed
from tidegate.server.store.cluster import Seat

MACHINES = 3
#: Ticks.
LEASE = 3
_ME, _OTHER = "me", "other"


class Answer(NamedTuple):
    """What the database has said and the machine has not heard yet; `age` in ticks.

    Epoch 0 stands for a leader that is another one than before.
    """

    epoch: int = 0
    mine: bool = False
    age: int = 0


class Machine(NamedTuple):
    """One machine's process.

    `sure` says for how many ticks more it is sure, `own` in which epoch it writes
    (`Database.epoch`; 0: none), `holds` whether the row names the machine.
    """

    standing: Standing = Standing.FOLLOWS
    sure: int = 0
    own: int = 0
    answers: tuple[Answer, ...] = ()
    campaigns: bool = True
    holds: bool = False

    @property
    def candidacy(self) -> Candidacy:
        """As `election` has it, with the time now as 0.

        Answers reach a process in order, so one that follows needs no epoch to tell older ones.
        """
        return Candidacy(self.standing, Seat(self.own), float(self.sure))


class Cluster(NamedTuple):
    """The row (`epoch`, ticks that are `left`), the transactions that have checked the fence, by
    epoch, the epochs in which a process has led, and the machines, which have no names."""

    epoch: int
    left: int
    sessions: tuple[int, ...]
    led: frozenset[int]
    machines: tuple[Machine, ...]


START = Cluster(1, 0, (), frozenset(), (Machine(),) * MACHINES)


@dataclass(frozen=True)
class Lead:
    """The model. Each field is a guard of the code; without one a fault must be found."""

    #: A transaction that writes checks the epoch of the lease.
    fenced: bool = True
    #: A successor waits for the transactions that have checked it.
    locked: bool = True
    #: Each leader has an epoch of its own.
    counted: bool = True
    #: Only a process that has asked for the lease leads.
    asked: bool = True
    #: All clocks run. Else any lease may have run out at any time, and nobody is ever sure.
    clocks_run: bool = True

    def check(self, state: Cluster) -> None:
        """At most one is sure that it is the only leader."""
        sure = sum(one.standing is Standing.LEADS and one.sure > 0 for one in state.machines)
        if sure > 1:
            raise Fault(f"{sure} machines are sure that they lead")

    def steps(self, state: Cluster) -> Iterator[Step[Cluster]]:
        """All that may happen next."""
        for action, after in self._steps(state):
            yield action, _canonical(after)

    def _steps(self, state: Cluster) -> Iterator[Step[Cluster]]:
        if self.clocks_run:
            yield "tick", _tick(state)
        for at in _different(state):
            yield from self._of_machine(state, at)
        for session in state.sessions:
            yield "abort", state._replace(sessions=())
            if session != state.epoch:
                raise Fault(f"commit: a write of epoch {session} in epoch {state.epoch}")
            yield "commit", state._replace(sessions=())

    def _of_machine(self, state: Cluster, at: int) -> Iterator[Step[Cluster]]:
        machine = state.machines[at]
        if machine.standing is not Standing.RETIRED:
            if machine.answers:
                yield "hear", self._hear(state, at)
                yield "lose answer", _with(state, at, machine._replace(answers=()))
            else:
                yield from self.ask(state, at)
        if machine.standing is Standing.LEADS and not machine.sure:
            found = passed(machine.candidacy, 0.0).standing
            yield "look", _with(state, at, _standing(machine, found))
        if machine.own:
            yield from self._begin(state, at)
        if machine.standing is Standing.LEADS and machine.own not in state.sessions:
            yield "hand over", _ended(released(state, machine.own), at)
        for campaigns in (True, False):
            yield "end", _ended(state, at, campaigns=campaigns)

    def ask(self, state: Cluster, at: int) -> Iterator[Step[Cluster]]:
        """A machine asks the database."""
        machine = state.machines[at]
        waits = self.locked and bool(state.sessions)
        if machine.standing is Standing.LEADS:
            if machine.own != state.epoch:
                yield "renew", _answer(state, at)
            elif not waits:
                yield "renew", _answer(state._replace(left=self._lease), at)
        elif not machine.campaigns:
            yield "read", _answer(state, at)
        elif state.left and not machine.holds:
            yield "campaign", _answer(state, at)
        elif not waits:
            yield "campaign", _answer(self._taken(state, at), at)

    def _taken(self, state: Cluster, at: int) -> Cluster:
        machines = [one._replace(holds=False) for one in state.machines]
        machines[at] = machines[at]._replace(holds=True)
        epoch = state.epoch + 1 if self.counted else state.epoch
        return state._replace(epoch=epoch, left=self._lease, machines=tuple(machines))

    @property
    def _lease(self) -> int:
        return LEASE if self.clocks_run else 0

    def _hear(self, state: Cluster, at: int) -> Cluster:
        machine = state.machines[at]
        (answer,) = machine.answers
        found = answered(
            machine.candidacy,
            _ME,
            Seat(answer.epoch, _ME if answer.mine else _OTHER),
            -float(answer.age),
            float(LEASE),
            campaigns=machine.campaigns or not self.asked,
        )
        sure = max(0, round(found.until_s)) if self.clocks_run else 0
        heard = machine._replace(sure=sure, answers=())
        if found.standing is Standing.LEADS and machine.standing is Standing.FOLLOWS:
            if answer.epoch in state.led:
                raise Fault(f"hear: two processes lead in epoch {answer.epoch}")
            heard = heard._replace(own=answer.epoch)
            state = state._replace(led=state.led | {answer.epoch})
        return _with(state, at, _standing(heard, found.standing))

    def _begin(self, state: Cluster, at: int) -> Iterator[Step[Cluster]]:
        own = state.machines[at].own
        if self.fenced and own != state.epoch:
            yield "fenced", _ended(state, at)
        elif not state.sessions:
            yield "begin", state._replace(sessions=(own,))


def _different(state: Cluster) -> Iterator[int]:
    """One of each kind of machine: they are sorted."""
    machines = state.machines
    return (at for at, one in enumerate(machines) if not at or machines[at - 1] != one)


def _with(state: Cluster, at: int, machine: Machine) -> Cluster:
    machines = sorted((*state.machines[:at], machine, *state.machines[at + 1 :]))
    return state._replace(machines=tuple(machines))


def _answer(state: Cluster, at: int) -> Cluster:
    machine = state.machines[at]
    matters = machine.holds if machine.standing is Standing.FOLLOWS else machine.own == state.epoch
    answer = Answer(state.epoch, machine.holds) if matters else Answer()
    return _with(state, at, machine._replace(answers=(answer,)))


def _standing(machine: Machine, standing: Standing) -> Machine:
    """What a process that has retired knows counts no more; it may still write."""
    if standing is Standing.RETIRED:
        return Machine(standing, own=machine.own, campaigns=machine.campaigns, holds=machine.holds)
    return machine._replace(standing=standing)


def _ended(state: Cluster, at: int, *, campaigns: bool = True) -> Cluster:
    """The process is over; the machine's next one follows. What it has sent may still arrive."""
    return _with(state, at, Machine(campaigns=campaigns, holds=state.machines[at].holds))


def released(state: Cluster, epoch: int) -> Cluster:
    """The leader of this epoch has given its lease back."""
    if state.epoch != epoch:
        return state
    machines = tuple(one._replace(holds=False) for one in state.machines)
    return state._replace(left=0, machines=machines)


def _tick(state: Cluster) -> Cluster:
    machines = sorted(map(_older, state.machines))
    return state._replace(left=max(0, state.left - 1), machines=tuple(machines))


@cache
def _older(machine: Machine) -> Machine:
    # One that makes nobody sure any more is old, however old.
    answers = tuple(
        one._replace(age=min(LEASE, one.age + 1)) if one.epoch else one for one in machine.answers
    )
    return machine._replace(sure=max(0, machine.sure - 1), answers=answers)


@cache
def _canonical(state: Cluster) -> Cluster:
    """Epochs by their order, and only those that matter: there is no end of them."""
    used = {one.own for one in state.machines} | {state.epoch, *state.sessions}
    used |= {answer.epoch for one in state.machines for answer in one.answers}
    used.discard(0)
    if max(used) == len(used):
        return state if state.led <= used else state._replace(led=state.led & used)
    names = {epoch: name for name, epoch in enumerate((0, *sorted(used)))}
    return Cluster(
        names[state.epoch],
        state.left,
        tuple(names[one] for one in state.sessions),
        frozenset(names[one] for one in state.led & used),
        tuple(
            sorted(
                one._replace(
                    own=names[one.own],
                    answers=tuple(each._replace(epoch=names[each.epoch]) for each in one.answers),
                )
                for one in state.machines
            )
        ),
    )

"""Replays a population in real time: each process takes its share, at the planned moments.

The arrivals are open: who comes does not depend on who has left. Locust's users are only the hands
that carry arrivals out; when all hands are busy an arrival starts late and is counted as late.
"""

from __future__ import annotations

import time
from typing import Any

import gevent
import gevent.event
from locust import LoadTestShape, events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest.population import scaled
from loadtest.recorder import tally, total
from loadtest.workloads import Visitor, Workload, make_workload, with_rude

_SHARE = "tidegate-share"
#: Between "start" and the first arrival: the users must be up by then.
_LEAD_S = 1.5


class Schedule:
    """The arrivals of this process, taken one by one; `start` may come after the first `take`."""

    def __init__(self) -> None:
        self._ready = gevent.event.Event()
        self._visitors: list[tuple[int, Visitor]] = []
        self._next = 0
        self._epoch_s = 0.0
        self._again = False
        self.workload: Workload | None = None

    def start(
        self, workload: Workload, epoch_s: float, index: int, of: int, *, again: bool
    ) -> None:
        """Take every `of`-th arrival from `index` on; time 0 is the wall clock's `epoch_s`.

        `again`: when the last one has come, the whole population comes once more.
        """
        self._again = again
        self.workload = workload
        self._visitors = list(enumerate(workload.visitors))[index::of]
        self._next = 0
        self._epoch_s = epoch_s
        self._ready.set()

    def stop(self) -> None:
        """Nothing more is handed out until the next `start`."""
        self._ready.clear()
        self._visitors = []

    def take(self) -> tuple[int, Visitor] | None:
        """The next arrival, at its time (this sleeps until then); None when there are no more."""
        self._ready.wait()
        if self._next >= len(self._visitors):
            if not self._again or self.workload is None:
                return None
            self._next = 0
            self._epoch_s += self.workload.visitors[-1].arrival_s + 1.0
        number, visitor = self._visitors[self._next]
        self._next += 1
        early_s = self._epoch_s + visitor.arrival_s - time.time()
        if early_s > 0:
            gevent.sleep(early_s)
        else:
            tally().observe("lateness", -early_s)
            if early_s < -1.0:
                tally().count("late_arrivals")
        return number, visitor


SCHEDULE = Schedule()


def population(options: Any) -> Workload:
    """The population that the command line describes."""
    workload = make_workload(options.workload, options.seed)
    if options.rude_fraction:
        workload = with_rude(workload, options.rude_fraction)
    return scaled(workload, time_scale=options.time_scale, thin=options.thin)


@events.test_start.add_listener
def _share_out(environment: Environment, **_: Any) -> None:
    runner = environment.runner
    epoch_s = time.time() + _LEAD_S
    if isinstance(runner, WorkerRunner):
        return
    again = bool(getattr(environment.shape_class, "again", False))
    if isinstance(runner, MasterRunner):
        workers = list(runner.clients)
        for index, worker in enumerate(workers):
            share = {"index": index, "of": len(workers), "epoch_s": epoch_s, "again": again}
            runner.send_message(_SHARE, share, worker)
    else:
        SCHEDULE.start(population(environment.parsed_options), epoch_s, 0, 1, again=again)


@events.init.add_listener
def _listen(environment: Environment, **_: Any) -> None:
    def take_share(environment: Environment, msg: Any, **_: Any) -> None:
        share = msg.data
        workload = population(environment.parsed_options)
        place = share["index"], share["of"]
        SCHEDULE.start(workload, share["epoch_s"], *place, again=share["again"])

    if isinstance(environment.runner, WorkerRunner):
        environment.runner.register_message(_SHARE, take_share)


@events.test_stop.add_listener
def _stop(**_: Any) -> None:
    SCHEDULE.stop()


class Replay(LoadTestShape):
    """All users at once; the end when every arrival has ended, or when `--run-time` is over."""

    #: Locust takes the first shape that it finds in a locustfile: a profile's own, not this one.
    abstract = True
    use_common_options = True
    #: Users that are there beside those who carry out the arrivals.
    beside = 0
    #: Whether the population comes again when it is through.
    again = False

    def __init__(self) -> None:
        super().__init__()
        self._arrivals = 0

    def reset_time(self) -> None:
        """A new test starts."""
        super().reset_time()
        self._arrivals = 0

    def tick(self) -> tuple[int, float] | None:
        """Locust asks once a second."""
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        if not self._arrivals:
            self._arrivals = len(population(options).visitors)
        if options.run_time and self.get_run_time() > options.run_time:
            return None
        if not self.again and total().counters["visitors_done"] >= self._arrivals:
            return None
        users = min(options.num_users or 1, self._arrivals) + self.beside
        return users, float(users)

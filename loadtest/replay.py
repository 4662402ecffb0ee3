"""Replays a population in real time: the processes take its arrivals at the planned moments.

The arrivals are open: who comes does not depend on who has left. Locust's users are only the hands
that carry arrivals out; when all hands are busy an arrival starts late and is counted as late.
"""

from __future__ import annotations

import bisect
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gevent
import gevent.queue
from locust import LoadTestShape, events
from locust.env import Environment
from locust.runners import HEARTBEAT_LIVENESS, MasterRunner, Runner, WorkerRunner

from .recorder import reset, tally, total
from .registry import find_workload
from .workloads import Visitor, Workload, scaled, with_rude

_ARRIVALS = "tidegate-arrivals"


#: Between "start" and the first arrival: the users must be up by then.
LEAD_S = 1.5


class ArrivalFeed:
    """The arrivals that were handed to this process, taken one by one at their moments."""

    def __init__(self) -> None:
        self._queue: gevent.queue.Queue[tuple[int, float]] = gevent.queue.Queue()
        self._workload: Workload | None = None

    def begin(self) -> None:
        """A new test: forget the last one's population and whatever was left of it."""
        self._workload = None
        self.stop()

    def stop(self) -> None:
        """Drop the arrivals that were handed over and have not begun."""
        while not self._queue.empty():
            self._queue.get_nowait()

    def hand(self, arrivals: Sequence[tuple[int, float]]) -> None:
        """Visitors by their number in the population, each with its moment by the wall clock."""
        for number, at_s in arrivals:
            self._queue.put((number, at_s))

    def take(self, options: Any) -> tuple[int, Visitor]:
        """The next arrival, at its moment (this sleeps until then)."""
        number, at_s = self._queue.get()
        if self._workload is None:
            self._workload = population(options)
        early_s = at_s - time.time()
        if early_s > 0:
            gevent.sleep(early_s)
        else:
            tally().observe("lateness", -early_s)
            if early_s < -1.0:
                tally().count("late_arrivals")
        return number, self._workload.visitors[number]


ARRIVALS = ArrivalFeed()


def population(options: Any) -> Workload:
    """The population that the command line describes."""
    workload = find_workload(options.workload, options.seed)
    if options.rude_fraction:
        workload = with_rude(workload, options.rude_fraction)
    return scaled(workload, time_scale=options.time_scale, thin=options.thin)


def moments(workload: Workload, epoch_s: float, *, again: bool) -> Iterator[tuple[int, float]]:
    """Every visitor's number and moment, in order.

    Time 0 is `epoch_s`. `again`: when the last one has come, all come once more.
    """
    while True:
        for number, visitor in enumerate(workload.visitors):
            yield number, epoch_s + visitor.arrival_s
        if not again:
            return
        epoch_s += workload.visitors[-1].arrival_s + 1.0


class Dealer:
    """Hands the arrivals out, shortly before their moments, to the processes that have users.

    A process that is not there, or was given no users, is handed nothing: what it held would
    never come.
    """

    def __init__(self) -> None:
        self._greenlet: gevent.Greenlet[..., None] | None = None

    def start(self, environment: Environment) -> None:
        """Hand out this environment's population from now on."""
        self.stop()
        again = bool(getattr(environment.shape_class, "again", False))
        arrivals = moments(
            population(environment.parsed_options), time.time() + LEAD_S, again=again
        )
        self._greenlet = gevent.spawn(self._run, environment.runner, arrivals)

    def stop(self) -> None:
        """Hand out nothing more."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def _run(self, runner: Runner, arrivals: Iterator[tuple[int, float]]) -> None:
        following = next(arrivals, None)
        turn = 0
        while following is not None:
            workers = busy_workers(runner) if isinstance(runner, MasterRunner) else [None]
            shares: list[list[tuple[int, float]]] = [[] for _ in workers]
            # What a process holds is lost with the process.
            soon_s = time.time() + 1.0
            while workers and following is not None and following[1] <= soon_s:
                shares[turn % len(workers)].append(following)
                turn += 1
                following = next(arrivals, None)
            for worker, share in zip(workers, shares, strict=True):
                if worker is None:
                    ARRIVALS.hand(share)
                elif share:
                    runner.send_message(_ARRIVALS, share, worker)
            gevent.sleep(0.25)


DEALER = Dealer()


def busy_workers(runner: MasterRunner) -> list[str]:
    """The ids of the workers that run users and were heard of within the last two seconds."""
    there = [*runner.clients.spawning, *runner.clients.running]
    return sorted(
        worker.id
        for worker in there
        if worker.user_count and worker.heartbeat >= HEARTBEAT_LIVENESS - 1
    )


@events.test_start.add_listener
def _begin(environment: Environment, **_: Any) -> None:
    ARRIVALS.begin()
    if not isinstance(environment.runner, WorkerRunner):
        DEALER.start(environment)


@events.init.add_listener
def _listen(environment: Environment, **_: Any) -> None:
    def take_arrivals(environment: Environment, msg: Any, **_: Any) -> None:
        ARRIVALS.hand([(number, at_s) for number, at_s in msg.data])

    if isinstance(environment.runner, WorkerRunner):
        environment.runner.register_message(_ARRIVALS, take_arrivals)


@events.test_start.add_listener
def _show_progress(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    if getattr(options, "progress", False) and not isinstance(environment.runner, WorkerRunner):
        arrivals_s = sorted(one.arrival_s for one in population(options).visitors)
        gevent.spawn(_tell, environment, arrivals_s)


def _tell(environment: Environment, arrivals_s: Sequence[float]) -> None:
    """A line every few seconds while the run goes on; its time 0 is the first line's."""
    begun_s = time.monotonic()
    while environment.runner is not None and environment.runner.state not in (
        "stopped",
        "stopping",
    ):
        seen = total().counters
        told_s = time.monotonic() - begun_s
        came = max(bisect.bisect(arrivals_s, told_s - LEAD_S), seen["visitors_done"])
        sys.stderr.write(
            f"{told_s:6.0f} s: {seen['visitors_done']} of {came} clients who came are through, "
            f"{len(arrivals_s) - came} are still to come; {seen['finished']} downloads, "
            f"{seen['queued']} told to wait, {seen['failed']} failed\n"
        )
        sys.stderr.flush()
        gevent.sleep(5.0)


@events.test_stop.add_listener
def _stop(**_: Any) -> None:
    DEALER.stop()
    ARRIVALS.stop()


class Replay(LoadTestShape):
    """All users at once; the end when every arrival has ended, or when `--run-time` is over."""

    #: Locust takes the first shape that it finds in a locustfile: a profile's own, not this one.
    abstract = True
    use_common_options = True
    #: Whether the population comes again when it is through.
    again = False

    def __init__(self) -> None:
        super().__init__()
        self._arrivals = 0

    def reset_time(self) -> None:
        """A new test starts; call it before the first tick, which counts arrivals."""
        super().reset_time()
        reset()
        self._arrivals = 0

    def tick(self) -> tuple[int, float] | None:
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        if not self._arrivals:
            self._arrivals = len(population(options).visitors)
        if options.run_time and self.get_run_time() > options.run_time:
            return None
        if not self.again and total().counters["visitors_done"] >= self._arrivals:
            return None
        users = min(options.num_users or 1, self._arrivals)
        return users, float(users)

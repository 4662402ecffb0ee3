"""Steady: a calm day, arrivals well below capacity, for as long as `--run-time` says."""

from tidegate.loadtest import options
from tidegate.loadtest.replay import Replay
from tidegate.loadtest.users import Visitors

__all__ = ["Steady", "Visitors", "options"]


class Steady(Replay):
    """The population of `--workload`, again and again until `--run-time` is over."""

    again = True

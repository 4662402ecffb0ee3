"""The clients of paper A's experiments, with real sockets, real or scaled time."""

from tidegate.loadtest import options
from tidegate.loadtest.replay import Replay
from tidegate.loadtest.users import Downloader

__all__ = ["PaperClients", "PaperExperiment", "options"]


class PaperClients(Downloader):
    """One client of the paper: its line's speed, one to four files, one after another."""


class PaperExperiment(Replay):
    """The same clients, moments and files as the simulator draws from the same seed."""

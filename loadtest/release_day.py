"""Release day: a rush above capacity, then calm; the artefact mix; clients that give up."""

from loadtest import options
from loadtest.replay import Replay
from loadtest.users import Downloader

__all__ = ["ReleaseDay", "Visitors", "options"]


class Visitors(Downloader):
    """Whoever wants the release."""


class ReleaseDay(Replay):
    """The population of `--workload`, at its own pace."""

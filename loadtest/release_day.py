"""Release day: a rush above capacity, then calm; the artefact mix; clients that give up."""

from tidegate.loadtest import options
from tidegate.loadtest.replay import Replay
from tidegate.loadtest.users import Visitors

__all__ = ["ReleaseDayReplay", "Visitors", "options"]


class ReleaseDayReplay(Replay):
    """The population of `--workload`, at its own pace."""

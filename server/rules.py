"""Rules for single files and folders: pure matching, the last rule that speaks wins.

A rule may require a preference class (no pass, no download), hide files until a release time, or
count a file as small or large whatever its size.
"""

from __future__ import annotations

import datetime
import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field


class Rule(BaseModel):
    """One `[[rules]]` entry; what it leaves empty, it does not touch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(
        min_length=1,
        max_length=1024,
        description="Which files: a shell pattern over the path below the served directory, such "
        "as `/nightly/*` (`*` crosses slashes); a folder ending in `/` means all that is in it.",
    )
    require_class: str | None = Field(
        None,
        max_length=32,
        description="Only clients with a pass of this preference class may download.",
    )
    hidden_until: datetime.datetime | None = Field(
        None,
        description="Not there before this time (with an offset, such as 2030-01-31T14:00:00Z).",
    )
    prequeue_from: datetime.datetime | None = Field(
        None,
        description="From this time to `hidden_until` clients may register; their order is drawn "
        "at random when the file appears.",
    )
    treat_as: Literal["small", "large"] | None = Field(
        None, description="Count the file as small or large whatever its size."
    )
    multicast: bool | None = Field(
        None, description="Whether the file may be multicast; empty: as the server decides."
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say about one path."""

    require_class: str | None = None
    hidden_until_s: float | None = None
    treat_as: str | None = None
    prequeue_from_s: float | None = None
    multicast: bool | None = None

    def registers(self, now: float) -> bool:
        """Whether clients may register for it while it is hidden."""
        return self.prequeue_from_s is not None and now >= self.prequeue_from_s

    def hidden(self, now: float) -> bool:
        """Whether the file must not be seen yet."""
        return self.hidden_until_s is not None and now < self.hidden_until_s


NOTHING = Verdict()


class RuleBook:
    """All rules of a server, compiled; asking for a path without rules costs nothing."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self._compiled = [(_pattern(rule.path), rule) for rule in self.rules]
        self._verdicts: dict[str, Verdict] = {}

    def __bool__(self) -> bool:
        return bool(self._compiled)

    def verdict(self, url_path: str) -> Verdict:
        """What counts for a file, named by its percent-encoded URL path."""
        if not self._compiled:
            return NOTHING
        found = self._verdicts.get(url_path)
        if found is None:
            if len(self._verdicts) >= 4096:
                self._verdicts.clear()
            found = self._verdicts[url_path] = self._judge(unquote(url_path))
        return found

    def _judge(self, path: str) -> Verdict:
        require_class: str | None = None
        hidden_until: float | None = None
        treat_as: str | None = None
        prequeue_from: float | None = None
        multicast: bool | None = None
        for pattern, rule in self._compiled:
            if pattern.match(path) is None:
                continue
            if rule.require_class is not None:
                require_class = rule.require_class
            if rule.hidden_until is not None:
                hidden_until = _seconds(rule.hidden_until)
            if rule.prequeue_from is not None:
                prequeue_from = _seconds(rule.prequeue_from)
            if rule.multicast is not None:
                multicast = rule.multicast
            if rule.treat_as is not None:
                treat_as = rule.treat_as
        found = Verdict(require_class, hidden_until, treat_as, prequeue_from, multicast)
        return NOTHING if found == NOTHING else found


def openings(rules: Iterable[Rule]) -> list[tuple[float, str]]:
    """When files with a pre-queue open, and which."""
    return [
        (_seconds(rule.hidden_until), rule.path)
        for rule in rules
        if rule.hidden_until is not None and rule.prequeue_from is not None
    ]


def _seconds(moment: datetime.datetime) -> float:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def _pattern(path: str) -> re.Pattern[str]:
    if not path.startswith(("/", "*")):
        path = "/" + path
    if path.endswith("/"):
        path += "*"
    return re.compile(fnmatch.translate(path))

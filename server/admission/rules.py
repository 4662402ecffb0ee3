"""Rules for single files and folders: pure matching, the last rule that matches wins.

A rule may require a priority class (no pass, no download), hide files until a release time, or
count a file as small or large whatever its size. A file behind links has two names, the requested
one and the real one; the stricter rule of both counts. A companion (signature, digest) reveals its
file: it is hidden as long, and needs the same pass.
"""

from __future__ import annotations

import datetime
import fnmatch
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field

from ...protocol.bounded_table import BoundedTable
from ..files.paths import accompanied


class Rule(BaseModel):
    """One `[[rules]]` entry; what it leaves empty, it does not touch."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    path: str = Field(min_length=1, max_length=1024)
    """Which files: a shell pattern over the path below the served directory, such as `/nightly/*`
    (`*` crosses slashes); a folder ending in `/` means all that is in it."""
    require_class: str | None = Field(None, max_length=32)
    """Only clients with a pass of this priority class may download."""
    hidden_until: datetime.datetime | None = None
    """Not there before this time (with an offset, such as 2030-01-31T14:00:00Z)."""
    prequeue_from: datetime.datetime | None = None
    """From this time to `hidden_until` clients may register; their order is drawn at random when
    the file appears."""
    treat_as: Literal["small", "large"] | None = None
    """Count the file as small or large whatever its size."""
    multicast: bool | None = None
    """Whether the file may be multicast; empty: as the server decides."""
    note: str = Field("", max_length=200)
    """Why; shown on the admin page."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The effect of the rules on one path."""

    require_class: str | None = None
    hidden_until_s: float | None = None
    treat_as: str | None = None
    prequeue_from_s: float | None = None
    multicast: bool | None = None

    def is_plain(self, now: float) -> bool:
        """Whether it restricts no client: there is no rule, or its time has come."""
        return self is NOTHING or (
            self.require_class is None
            and self.treat_as is None
            and self.prequeue_from_s is None
            and not self.multicast
            and not self.hidden(now)
        )

    def registers(self, now: float) -> bool:
        """Whether clients may register for it while it is hidden."""
        return self.prequeue_from_s is not None and now >= self.prequeue_from_s

    def hidden(self, now: float) -> bool:
        """Whether the file must not be seen yet."""
        return self.hidden_until_s is not None and now < self.hidden_until_s

    def opens_in_s(self, now: float) -> float | None:
        """Seconds until it opens, where visitors may know of it and register for it."""
        if self.hidden_until_s is None or self.require_class is not None:
            return None
        if not self.hidden(now) or not self.registers(now):
            return None
        return self.hidden_until_s - now


NOTHING = Verdict()


class RuleBook:
    """All rules of a server, compiled. Without rules a verdict costs nothing.

    `resolve` follows all links: it returns the real URL path of a file.
    """

    def __init__(
        self, rules: Iterable[Rule] = (), resolve: Callable[[str], str] = lambda url_path: url_path
    ) -> None:
        self.rules = tuple(rules)
        self._resolve = resolve
        self._compiled = [(_pattern(rule.path), rule) for rule in self.rules]
        #: As many as there are answers that the fast path knows.
        self._verdicts: BoundedTable[str, Verdict] = BoundedTable(32_768)

    def __bool__(self) -> bool:
        return bool(self._compiled)

    def replaced(self, rules: Iterable[Rule]) -> RuleBook:
        """Other rules over the same files."""
        return RuleBook(rules, self._resolve)

    def verdict(self, url_path: str) -> Verdict:
        """The verdict on a percent-encoded URL path; a folder ends in `/`."""
        if not self._compiled:
            return NOTHING
        real_path = self._resolve(url_path)
        found = self._of_names(url_path, real_path)
        for file in _accompanied(url_path, real_path):
            kept = self._of_names(file, self._resolve(file))
            if kept.require_class is not None or kept.hidden_until_s is not None:
                # A companion gives no registration for the file, and does not count like it.
                found = stricter(found, Verdict(kept.require_class, kept.hidden_until_s))
        return found

    def _of_names(self, url_path: str, real_path: str) -> Verdict:
        """The verdict on a file by its own names, without the files that it goes with."""
        asked = self._of_name(url_path)
        return asked if real_path == url_path else stricter(asked, self._of_name(real_path))

    def _of_name(self, url_path: str) -> Verdict:
        found = self._verdicts.get(url_path)
        if found is None:
            found = self._verdicts[url_path] = self._judge(unquote(url_path))
        return found

    def matching(self, url_path: str) -> list[Rule]:
        """The rules that match a file, by its requested name or its real one."""
        names: set[str] = set()
        if self._compiled:
            for name in (url_path, *_accompanied(url_path, self._resolve(url_path))):
                names |= {unquote(name), unquote(self._resolve(name))}
        return [
            rule
            for pattern, rule in self._compiled
            if any(pattern.match(name) is not None for name in names)
        ]

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
                hidden_until = seconds_of(rule.hidden_until)
            if rule.prequeue_from is not None:
                prequeue_from = seconds_of(rule.prequeue_from)
            if rule.multicast is not None:
                multicast = rule.multicast
            if rule.treat_as is not None:
                treat_as = rule.treat_as
        found = Verdict(require_class, hidden_until, treat_as, prequeue_from, multicast)
        return NOTHING if found == NOTHING else found


def _accompanied(url_path: str, real_path: str) -> list[str]:
    """The files that a file goes with, by its requested name and its real one."""
    found = list(accompanied(url_path))
    if real_path == url_path:
        return found
    # A name that goes with nothing may be a link to one that does.
    return found + [file for file in accompanied(real_path) if file not in found]


def stricter(asked: Verdict, real: Verdict) -> Verdict:
    """The verdict on a file that was requested by one name and has another real one.

    The later opening counts, with its registration. The class of the real name comes before that of
    the requested one, and `treat_as` of the requested one before that of the real one. There is no
    multicast if either forbids it.
    """
    if asked is NOTHING or real is NOTHING:
        return real if asked is NOTHING else asked
    later = max(asked, real, key=lambda one: one.hidden_until_s or -math.inf)
    both = [one.multicast for one in (asked, real) if one.multicast is not None]
    return Verdict(
        real.require_class if real.require_class is not None else asked.require_class,
        later.hidden_until_s,
        asked.treat_as if asked.treat_as is not None else real.treat_as,
        later.prequeue_from_s,
        all(both) if both else None,
    )


def openings(rules: Iterable[Rule]) -> list[tuple[float, str]]:
    """When files with a pre-queue open, and which."""
    return [
        (seconds_of(rule.hidden_until), rule.path)
        for rule in rules
        if rule.hidden_until is not None and rule.prequeue_from is not None
    ]


def seconds_of(moment: datetime.datetime) -> float:
    """Unix time; a moment without an offset is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def _pattern(path: str) -> re.Pattern[str]:
    if not path.startswith(("/", "*")):
        path = "/" + path
    if path.endswith("/"):
        path += "*"
    return re.compile(fnmatch.translate(path))

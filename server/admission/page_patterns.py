"""Pages with open blanks: filling them costs a tenth of rendering."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from markupsafe import escape

from ...protocol.bounded_table import BoundedTable
from ..files.pages import Pages


def blank(name: str) -> str:
    """What a page is rendered with where a value of this name is filled in later.

    Escaping leaves it alone.
    """
    return f"\ue000{name}\ue001"


def escaped(value: object) -> bytes:
    """A value as it stands in a page."""
    return escape(value).encode("utf-8", "replace")


class Pattern:
    """A page with open blanks."""

    __slots__ = ("_blanks", "_pieces")

    def __init__(self, pieces: list[bytes], blanks: list[str]) -> None:
        #: At each odd place a blank of this name, in their order.
        self._pieces = pieces
        self._blanks = [(2 * number + 1, name) for number, name in enumerate(blanks)]

    @classmethod
    def of(cls, page: bytes) -> Pattern:
        """From a page that was rendered with `blank`s."""
        parts = re.split("\ue000([a-z_]+)\ue001".encode(), page)
        names = [name.decode("ascii") for name in parts[1::2]]
        parts[1::2] = [b""] * len(names)
        return cls(parts, names)

    def bound(self, values: Mapping[str, bytes]) -> Pattern:
        """The pattern with some blanks filled for good; values are `escaped`."""
        pieces, blanks = [self._pieces[0]], []
        for at, name in self._blanks:
            after = self._pieces[at + 1]
            if name in values:
                pieces[-1] += values[name] + after
            else:
                blanks.append(name)
                pieces += [b"", after]
        return Pattern(pieces, blanks)

    def filled(self, values: Mapping[str, bytes]) -> bytes:
        """The page; values are `escaped`. Raises KeyError where one is missing."""
        pieces = self._pieces.copy()
        for at, name in self._blanks:
            pieces[at] = values[name]
        return b"".join(pieces)


class PagePatterns:
    """Keeps the patterns of `pages`."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._kept: BoundedTable[Hashable, Pattern] = BoundedTable(256)

    def pattern(
        self, template: str, shape: Hashable, fixed: Callable[[], Mapping[str, Any]]
    ) -> Pattern:
        """A page in which only some values differ, rendered once for each `shape`.

        `fixed` gives the values, with `blank` for those that differ. Whatever else decides how
        the page comes out must be in the shape.
        """
        key = template, shape
        pattern = self._kept.get(key)
        if pattern is None:
            pattern = self._kept[key] = Pattern.of(self.pages.render(template, **fixed()))
        return pattern

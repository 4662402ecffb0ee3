"""Compares a few bytes of each mirror's copy and says who differs from the majority. Pure."""

from __future__ import annotations

from collections import Counter


class SampleVote:
    """`testify` for each mirror; `liars` once more than half of at least three agree.

    `heard` are those that have been asked.
    """

    def __init__(self) -> None:
        self._said: dict[int, bytes] = {}
        self.heard: set[int] = set()

    @property
    def said(self) -> set[int]:
        """Those that have answered."""
        return set(self._said)

    def testify(self, source: int, data: bytes) -> None:
        self._said[source] = data

    def liars(self) -> list[int]:
        """Mirrors whose bytes differ from those of a clear majority; empty while unclear."""
        if len(self._said) < 3:
            return []
        (word, votes), *_ = Counter(self._said.values()).most_common(1)
        if votes * 2 <= len(self._said):
            return []
        return sorted(source for source, said in self._said.items() if said != word)

    def against_first(self, among: list[int]) -> list[int]:
        """Where no more will be heard: who of these differs from what most of them say, or, where
        as many say one thing as another, from the one with the least number."""
        words = [self._said[source] for source in sorted(among) if source in self._said]
        if not words:
            return []
        word = max(words, key=words.count)
        return [source for source in sorted(among) if self._said.get(source, word) != word]

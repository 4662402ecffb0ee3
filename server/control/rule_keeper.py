"""The rules for files in force: those of the configuration, then the operators' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..admission.draw import Prequeue
from ..admission.gate import Gate
from ..admission.rules import Rule, RuleBook, openings
from .key_values import KeyValues

Source = Literal["configuration", "admin"]
_PAPER = "rules"


@dataclass(frozen=True, slots=True)
class Sourced:
    """A rule and where it comes from."""

    rule: Rule
    source: Source


class RuleKeeper:
    """Keeps the rules and puts them in force; the operators' are remembered."""

    def __init__(
        self,
        gate: Gate,
        prequeue: Prequeue,
        papers: KeyValues,
        now: Callable[[], float],
        configured: Iterable[Rule],
        real_url: Callable[[str], str],
    ) -> None:
        self._gate = gate
        self._prequeue = prequeue
        self._papers = papers
        self._now = now
        self._real_url = real_url
        self.configured: tuple[Rule, ...] = tuple(configured)
        self.own: tuple[Rule, ...] = tuple(
            Rule.model_validate(row) for row in papers.read_list(_PAPER)
        )

    def all(self) -> list[Sourced]:
        """Every rule in the order in which they speak; the last one that does counts."""
        return [
            *(Sourced(rule, "configuration") for rule in self.configured),
            *(Sourced(rule, "admin") for rule in self.own),
        ]

    def matching(self, url_path: str) -> list[Sourced]:
        """The rules that speak of a file (its percent-encoded URL path)."""
        found = self._gate.parts.rules.matching(url_path)
        return [one for one in self.all() if one.rule in found]

    def configure(self, rules: Iterable[Rule]) -> None:
        """Take over the configuration's rules."""
        self.configured = tuple(rules)
        self.put_in_force()

    def set_own(self, rules: Sequence[Rule]) -> None:
        """Replace the operators' rules, and remember them."""
        self.own = tuple(rules)
        rows = [rule.model_dump(mode="json", exclude_defaults=True) for rule in rules]
        self._papers.write_list(_PAPER, rows)
        self.put_in_force()

    def put_in_force(self) -> None:
        """Let the gate judge by these, and make the draws they need."""
        rules = [one.rule for one in self.all()]
        self._gate.use_rules(RuleBook(rules, self._real_url))
        self._prequeue.plan(openings(rules), self._now())

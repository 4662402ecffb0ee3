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


@dataclass(frozen=True, slots=True)
class Sourced:
    rule: Rule
    source: Source


class RuleKeeper:
    """Keeps the rules and applies them; those of operators are stored."""

    def __init__(
        self,
        gate: Gate,
        prequeue: Prequeue,
        documents: KeyValues,
        now: Callable[[], float],
        configured: Iterable[Rule],
        real_url: Callable[[str], str],
    ) -> None:
        self._gate = gate
        self._prequeue = prequeue
        self._documents = documents
        self._now = now
        self._real_url = real_url
        self.configured: tuple[Rule, ...] = tuple(configured)
        self.own: tuple[Rule, ...] = tuple(
            Rule.model_validate(row) for row in documents.read_list("rules")
        )

    def all(self) -> list[Sourced]:
        """All rules in order; the last one that matches a file decides."""
        return [
            *(Sourced(rule, "configuration") for rule in self.configured),
            *(Sourced(rule, "admin") for rule in self.own),
        ]

    def matching(self, url_path: str) -> list[Sourced]:
        """The rules that match a file, given by its percent-encoded URL path."""
        found = self._gate.parts.rules.matching(url_path)
        return [one for one in self.all() if one.rule in found]

    def configure(self, rules: Iterable[Rule]) -> None:
        self.configured = tuple(rules)
        self.put_in_force()

    def set_own(self, rules: Sequence[Rule]) -> None:
        """Replace and store the operators' rules."""
        self.own = tuple(rules)
        rows = [rule.model_dump(mode="json", exclude_defaults=True) for rule in rules]
        self._documents.write_list("rules", rows)
        self.put_in_force()

    def put_in_force(self) -> None:
        """Apply all rules to the gate, and plan the draws that they need."""
        rules = [one.rule for one in self.all()]
        self._gate.parts.rules = RuleBook(rules, self._real_url)
        self._prequeue.plan(openings(rules), self._now())

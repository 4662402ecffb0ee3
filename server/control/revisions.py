"""The policy in force, and all earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...policies.registry import POLICIES
from ...policies.settings import PolicySettings, unit_of
from ...protocol.units import exact_duration, exact_rate, exact_size
from ..admission.gate import Gate
from ..gate.settings import NEEDS_LINE
from ..store.queries import keep_revision, read_revision, read_revisions
from ..store.records import RevisionRecord
from ..store.store import Store
from .events import EventLog, ask
from .problems import Problem

#: Author of revisions that come from the configuration.
CONFIGURATION = "configuration"


class StaleRevision(Problem):
    """The change was based on an earlier revision."""

    def __init__(self) -> None:
        text = "The settings were changed meanwhile; read them again."
        super().__init__(412, text, code="stale-settings")


class Revisions:
    """Applies changes of the policy and stores them; `configured` is the policy of the file."""

    def __init__(
        self,
        gate: Gate,
        store: Store,
        events: EventLog,
        now: Callable[[], float],
        current: RevisionRecord,
        configured: RevisionRecord,
    ) -> None:
        self._gate = gate
        self._store = store
        self._events = events
        self._now = now
        self.current = current
        self.configured = configured

    def apply(
        self,
        policy: str,
        settings: PolicySettings,
        who: str,
        note: str = "",
        *,
        expected: int | None = None,
        restored_from: int | None = None,
    ) -> RevisionRecord:
        """Apply this policy; no download is dropped and no place lost. Works without a store.

        Raises StaleRevision when `expected` is not the current revision's number, and Problem for a
        policy that cannot be used here.
        """
        old = self.current
        told = self._gate.parts.can_pause or settings.bandwidth_bytes_s is not None
        if POLICIES[policy].link_bound and not told:
            raise Problem(409, f"A gate with {policy} needs bandwidth_bytes_s: {NEEDS_LINE}.")
        if expected is not None and expected != old.number:
            raise StaleRevision
        self._gate.apply(policy, settings)
        self.current = record = RevisionRecord(
            self._now(),
            who,
            policy,
            settings.model_dump(mode="json"),
            note,
            old.number + 1,
            restored_from,
        )
        changes = diff(old.policy, old.settings, record.policy, record.settings)
        words = "; ".join(f"{c.name}: {c.before} → {c.after}" for c in changes[:12])
        self._events.add(
            "apply", f"revision {record.number}: {words or 'no change'}. {note}".strip(), who=who
        )
        self._store.must(lambda connection: keep_revision(connection, record))
        return record

    def reconfigure(self, configured: RevisionRecord) -> None:
        """Follow a configuration that was read again: its last change of the policy wins."""
        if not configured.same_policy(self.configured):
            self.configured = configured
            settings = PolicySettings.model_validate(configured.settings)
            note = "The configuration was read again."
            self.apply(configured.policy, settings, configured.who, note)

    async def listed(self, before: int | None, limit: int) -> list[RevisionRecord]:
        """Revisions older than `before`, newest first. Raises StoreSilent."""
        rows = await ask(self._store, lambda connection: read_revisions(connection, limit, before))
        current = self.current
        fresh = before is None or before > current.number
        if fresh and (not rows or rows[0].number < current.number):
            rows.insert(0, current)  # not stored yet
        return rows[:limit]

    async def get(self, number: int) -> RevisionRecord | None:
        """One revision. Raises StoreSilent."""
        if number == self.current.number:
            return self.current
        return await ask(self._store, lambda connection: read_revision(connection, number))

    def overrides(self) -> list[DiffLine]:
        """How the policy in force differs from the configuration file (`before`)."""
        file, current = self.configured, self.current
        return diff(file.policy, file.settings, current.policy, current.settings)


def usable(revision: RevisionRecord) -> PolicySettings | None:
    """A stored revision's settings, if this version knows its policy and all settings."""
    try:
        settings = PolicySettings.model_validate(dict(revision.settings))
    except ValueError:
        return None
    return settings if revision.policy in POLICIES else None


def shown(name: str, value: Any) -> str:
    """A setting's value as an input field shows it and `read_text` reads it: `40Mbit`, `45s`."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "\n".join(f"{key} = {number:.12g}" for key, number in value.items())
    field = PolicySettings.model_fields.get(name)
    unit = unit_of(field.json_schema_extra) if field else None
    if unit == "bytes":
        return exact_size(value)
    if unit == "bytes/s":
        return exact_rate(value)
    if unit == "s":
        return exact_duration(value)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class DiffLine:
    name: str
    before: str
    after: str


def diff(
    policy: str, settings: Mapping[str, Any], new_policy: str, new_settings: Mapping[str, Any]
) -> list[DiffLine]:
    """The differences of two revisions, the policy first."""
    found = [DiffLine("policy", policy, new_policy)] if policy != new_policy else []
    for name in dict.fromkeys((*settings, *new_settings)):
        before, after = settings.get(name), new_settings.get(name)
        if before != after:
            found.append(DiffLine(name, _word(name, before), _word(name, after)))
    return found


def _word(name: str, value: Any) -> str:
    return (shown(name, value) or "(none)").replace("\n", ", ")

"""The rows of the store as dataclasses, without SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """An applied change of policy; `number` is 0 until it is stored."""

    at_s: float
    who: str
    policy: str
    settings: Mapping[str, Any]
    note: str = ""
    number: int = 0
    restored_from: int | None = None

    def same_policy(self, other: RevisionRecord) -> bool:
        """Whether both have the same policy and settings."""
        return self.policy == other.policy and dict(self.settings) == dict(other.settings)


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """A file's begun and complete downloads and its delivered bytes, up to `at_s`."""

    file: str
    begun: int
    complete: int
    sent_bytes: int
    at_s: float


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One line of the operator's log. `level` is info, warning or error."""

    at_s: float
    kind: str
    text: str
    level: str = "info"
    data: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0

    @property
    def who(self) -> str:
        """The person who acted; empty if the server did."""
        return str(self.data.get("who", ""))


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One point of a series: the mean and the peak over its resolution."""

    at_s: float
    series: str
    mean: float
    peak: float


@dataclass(frozen=True, slots=True)
class ArrivalRecord:
    """The first request of a client for a large file; `program` is what it calls itself."""

    at_s: float
    client: str
    file: str
    size_bytes: int
    program: str = ""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """A priority pass as issued, and how often it was used."""

    serial: str
    priority_class: str
    weight: float
    path: str
    issued_s: float
    not_before_s: float
    expires_s: float
    max_uses: int
    uses: int = 0
    revoked: bool = False
    note: str = ""

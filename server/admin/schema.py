"""What the JSON API takes and gives: bytes, bytes per second, and Unix seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from policies.registry import POLICIES
from policies.settings import PolicySettings
from server.admin.preview import WORKLOADS

_BIG = 2**53 - 1
#: Free text as people write it, without the control characters that no page should show.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$")]


def _one_of(words: Iterable[str | None]) -> dict[str, Any]:
    """The words that are known, for the document; the operation itself names them in its fault."""
    return {"enum": list(words)}


class Shape(BaseModel):
    """All bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class NumberPath(Shape):
    number: int = Field(ge=0, le=_BIG, description="The number.")


class SerialPath(Shape):
    serial: str = Field(min_length=1, max_length=80, description="The serial.")


class KeyPath(Shape):
    key: str = Field(min_length=1, max_length=80, description="The key.")


class ListQuery(Shape):
    q: str = Field("", max_length=128, description="Only what contains this.")
    offset: int = Field(0, ge=0, le=10_000_000, description="Skip so many.")
    limit: int = Field(50, ge=1, le=500, description="At most so many.")


class TicketQuery(ListQuery):
    state: Literal["", "waiting", "ready"] = Field("", description="Only tickets in this state.")


class BeforeQuery(Shape):
    before: int | None = Field(None, ge=0, le=_BIG, description="Only older than this number.")
    limit: int = Field(50, ge=1, le=500, description="At most so many.")


class EventQuery(BeforeQuery):
    kind: str = Field("", max_length=64, description="Only of this kind.")
    q: str = Field("", max_length=128, description="Only what contains this.")


class HistoryQuery(Shape):
    span_s: float = Field(3600.0, gt=0, le=366 * 86_400.0, description="How far back.")
    points: int = Field(240, ge=2, le=2000, description="At most so many points.")


class NetworkQuery(Shape):
    network: str = Field(min_length=2, max_length=64, description="An address or network.")


class EstimateOut(Shape):
    expected_s: float
    p90_s: float


class StateOut(Shape):
    """The server at a glance."""

    now_s: float
    tone: str
    headline: str
    more: str
    policy: str
    mode: str
    slots: int
    large_slots: int
    small_active: int
    large_active: int
    paused: int
    waiting: int
    ready: int
    ready_target: int
    link_bound: bool
    last_wait: EstimateOut | None
    no_show_fraction: float
    eta_within_p90: float | None
    eta_median_error: float | None
    totals: dict[str, int]
    goodput_bytes_s: float
    capacity_bytes_s: float | None
    connections: int
    held: int
    multicast_cohorts: int
    multicast_receivers: int
    draining: bool
    store_degraded: bool
    store_fault: str
    started_s: float
    version: str
    listeners: list[str]


class HistoryOut(Shape):
    t: list[float]
    series: dict[str, list[float | None]]


class LeaseOut(Shape):
    lease: int
    ticket: int | None
    client: str
    file: str
    size_bytes: int
    remaining_bytes: int
    large: bool
    started_s: float
    connections: int
    paused: bool
    rate_bytes_s: float


class LeasesOut(Shape):
    total: int
    leases: list[LeaseOut]


class TicketOut(Shape):
    number: int
    place: int | None
    client: str
    file: str
    size_bytes: int
    kind: str
    weight: float
    state: str
    issued_s: float
    polls: int
    early_polls: int
    expected_s: float | None


class TicketsOut(Shape):
    total: int
    tickets: list[TicketOut]


class BlockIn(Shape):
    network: str = Field(min_length=2, max_length=64, description="Such as 192.0.2.0/24.")
    for_s: float | None = Field(None, gt=0, le=366 * 86_400.0, description="Null: for good.")
    note: Text = Field("", max_length=200)


class BlockOut(Shape):
    network: str
    since_s: float
    until_s: float | None
    who: str
    note: str


class BlocksOut(Shape):
    blocks: list[BlockOut]


class SettingsIn(Shape):
    """A policy with all its settings; what is left out takes its default."""

    policy: str = Field(max_length=32, json_schema_extra=_one_of(POLICIES))
    settings: PolicySettings
    note: Text = Field("", max_length=500)


class SettingsPatch(Shape):
    """Single settings to change; the rest stays."""

    policy: str | None = Field(None, json_schema_extra=_one_of((*POLICIES, None)))
    settings: dict[str, Any] = Field(default_factory=dict)
    note: Text = Field("", max_length=500)


class RestoreIn(Shape):
    note: Text = Field("", max_length=500)


class RevisionOut(Shape):
    number: int
    at_s: float
    who: str
    note: str
    policy: str
    settings: dict[str, Any]
    restored_from: int | None


class RevisionsOut(Shape):
    revisions: list[RevisionOut]


class SettingOut(Shape):
    """What is known of one setting."""

    name: str
    unit: str
    help: str
    policies: list[str]
    bounds: dict[str, Any]
    default: Any


class SettingsHelpOut(Shape):
    policies: list[str]
    settings: list[SettingOut]


class PreviewIn(Shape):
    policy: str = Field(max_length=32, json_schema_extra=_one_of(POLICIES))
    settings: PolicySettings
    workload: str = Field("recorded", max_length=32, json_schema_extra=_one_of(WORKLOADS))
    note: Text = Field("", max_length=500)


class MeasureOut(Shape):
    name: str
    label: str
    unit: str
    now: float | None
    proposed: float | None
    verdict: str


class PreviewOut(Shape):
    key: str
    state: str
    fault: str
    workload: str
    jobs: int
    took_s: float
    measures: list[MeasureOut]


class EventOut(Shape):
    number: int
    at_s: float
    kind: str
    who: str
    text: str


class EventsOut(Shape):
    events: list[EventOut]


class RowOut(Shape):
    name: str
    state: str
    facts: dict[str, str]


class RowsOut(Shape):
    rows: list[RowOut]


class SidePath(KeyPath):
    side: Literal["before", "after"] = Field(description="Which of the two.")

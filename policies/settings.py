"""Every setting of admission: its type, bounds, unit, default and what it does.

The one source for the command line, the configuration file, the admin form, the API, the manual
and the simulator. `json_schema_extra` of a field carries `unit` (for people and parsers: `slots`,
`bytes`, `bytes/s`, `s`, `fraction`, `ratio`, `tickets`, `count`). A policy says itself which it
reads (`policies.hooks.Policy.reads`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from ..protocol.units import parse_duration, parse_rate, parse_size

#: Pages, sums, signatures and most wheels. More than that would no longer be small to Fair, which
#: ranks by bytes: a flash crowd of downloads that all count as small shares the line as on a plain
#: server (`docs/decisions/policies.md`).
SMALL_BELOW_BYTES = 256_000
#: What every policy reads, policies with tickets, and policies that fill the link.
COMMON = (
    "slots",
    "connections_per_lease",
    "lease_idle_s",
    "slot_use_fraction",
    "network_shares",
)
TICKETS = (
    "come_back_s",
    "retry_min_s",
    "retry_max_s",
    "retry_jitter",
    "ready_list",
    "ready_grow_s",
    "ticket_ttl_s",
    "tickets_per_client",
    "tickets_max",
    "early_polls_free",
    "early_tolerance_s",
    "early_penalty_s",
    "early_penalty_max_s",
    "early_answer_s",
    "class_weights",
)
LINK = ("slots_max", "bandwidth_bytes_s")


_BOUNDS = {
    "greater_than_equal": "must be at least {ge:,}",
    "greater_than": "must be above {gt:,}",
    "less_than_equal": "must be at most {le:,}",
    "less_than": "must be below {lt:,}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "extra_forbidden": "is not known here",
}
_KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "tuple": 'must be a list, such as ["one", "two"]',
    "path": "must be a path in quotes",
    "datetime": "must be a time, such as 2030-01-31T14:00:00Z",
}


def fault_text(fault: Mapping[str, Any], form: str = "") -> str:
    """One of pydantic's faults in words that follow a name, such as `must be at least 1`.

    `form` says what a text looks like whose pattern would be shown otherwise.
    """
    # A text that a validator of ours has read is a "Value".
    kind = ("string_" if fault.get("ctx", {}).get("field_type") == "Value" else "") + fault["type"]
    if kind == "string_pattern_mismatch" and form:
        return f"does not fit: {form.removesuffix('.')}"
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**fault.get("ctx", {})).removesuffix(".0")
    what, _, wrong = kind.partition("_")
    faults = ("parsing", "type", "from_float", "from_date_parsing")
    if wrong in faults and what in _KINDS:
        return _KINDS[what]
    # Messages of our own validators come prefixed; the reader does not care whose fault it is.
    return str(fault["msg"]).removeprefix("Value error, ")


def unit_of(extra: Any) -> str | None:
    """The unit that a field declares in its `json_schema_extra`."""
    return extra.get("unit") if isinstance(extra, dict) else None


def one_line(text: str | None) -> str:
    """What a field says it does, which its docstring may have on several lines."""
    return " ".join((text or "").split())


def read_text(name: str, field: FieldInfo, text: str) -> Any:
    """The value of a setting as people write it: `90s`, `20KB`, `none`.

    The one reading for files, variables, flags and forms. What has no unit comes back as text, for
    the schema to judge. Raises BadUnit.
    """
    annotation: Any = field.annotation
    is_optional = isinstance(annotation, UnionType) and type(None) in annotation.__args__
    # TOML and forms know no null.
    if is_optional and text.lower() in ("", "none", "auto"):
        return None
    unit = unit_of(field.json_schema_extra)
    if unit == "bytes/s" and name.endswith("_bytes_s"):
        # The name says the unit, so a bare number is clear.
        with contextlib.suppress(ValueError):
            return float(text)
    match unit:
        case "bytes":
            return parse_size(text)
        case "bytes/s":
            return parse_rate(text)
        case "s":
            return parse_duration(text)
    return text


_Weight = Annotated[float, Field(ge=0.01, le=1_000.0)]


def _field(default: Any, unit: str, **bounds: Any) -> Any:
    return Field(default, json_schema_extra={"unit": unit}, **bounds)


class PolicySettings(BaseModel):
    """What an operator may turn; the defaults are those that the simulator found to serve best."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    slots: int = _field(36, "slots", ge=1, le=1_000_000)
    """How many downloads may run at once, the reserved ones included. Under fair the line
    decides."""
    reserve_small: int = _field(6, "slots", ge=0, le=999_999)
    """Slots that large downloads never take."""
    slots_max: int = _field(4096, "slots", ge=1, le=1_000_000)
    """Where the line decides, no more than this many downloads run or are paused."""
    small_below_bytes: int = _field(SMALL_BELOW_BYTES, "bytes", ge=0, le=1 << 40)
    """A file below this size is small: it never waits behind large ones."""
    connections_per_lease: int = _field(8, "count", ge=1, le=1024)
    """Parallel connections (byte ranges) that one download may use."""
    lease_idle_s: float = _field(20.0, "s", ge=0.0, le=86_400.0)
    """How long a download that lost its connection keeps its slot for a resume. One that had taken
    nearly nothing keeps it as long as it ran, and at least a quarter of this."""
    slot_use_fraction: float = _field(0.1, "fraction", ge=0.0, le=1.0)
    """While others wait, a download must take this part of its slot's share of the link, or of what
    a typical client takes while the link is unknown. Otherwise its slot goes to the next. 0:
    never."""
    network_shares: int = _field(16, "count", ge=0, le=1_000_000)
    """What new clients of one network (IPv4 /24, IPv6 /48) may have together. Where the line
    decides, short ones go first only while they took less than a quarter of this many shares. Where
    slots decide, they have this many parts of the slots while others wait, and all others 16. 0: no
    limit."""
    busy_retry_s: float = _field(15.0, "s", gt=0.0, le=86_400.0)
    """Clients that get no ticket come back after this."""
    come_back_s: float | None = _field(None, "s", gt=0.0, le=86_400.0)
    """Clients that wait for a large file come back after this. Empty: at the time of their turn
    (reserve: after `busy_retry_s`)."""
    retry_min_s: float = _field(2.0, "s", gt=0.0, le=3_600.0)
    """No client is asked to come back sooner than this."""
    retry_max_s: float = _field(300.0, "s", gt=0.0, le=86_400.0)
    """A longer wait is told in several visits."""
    retry_jitter: float = _field(0.05, "fraction", ge=0.0, le=1.0)
    """Come-back times are lengthened at random by up to this part."""
    ready_list: int | None = _field(None, "tickets", ge=1, le=1_000_000)
    """This many tickets may start as soon as a slot is free. Empty: as many as there are slots for
    large downloads, and those whose turn comes within `retry_min_s`."""
    ready_grow_s: float = _field(5.0, "s", gt=0.0, le=3_600.0)
    """While slots stay free although tickets wait, the ready list grows by a quarter each time this
    has passed."""
    ticket_ttl_s: float = _field(45.0, "s", gt=0.0, le=86_400.0)
    """A client whose turn has come keeps it for this long after the told time."""
    tickets_per_client: int = _field(32, "tickets", ge=1, le=100_000)
    """One client may wait for this many files at once."""
    tickets_max: int = _field(2_000_000, "tickets", ge=1, le=100_000_000)
    """Waiting tickets in all. Further clients have no place, and come back."""
    early_polls_free: int = _field(2, "count", ge=0, le=1_000)
    """This many visits of a ticket before the told time have no effect."""
    early_tolerance_s: float = _field(1.0, "s", ge=0.0, le=60.0)
    """A visit this much before the told time counts as on time."""
    early_penalty_s: float = _field(1.0, "s", ge=0.0, le=3_600.0)
    """Each further early visit moves the told time by this."""
    early_penalty_max_s: float = _field(15.0, "s", ge=0.0, le=86_400.0)
    """Early visits move one told time by no more than this."""
    early_answer_s: float = _field(2.0, "s", ge=0.0, le=25.0)
    """The answer to a further early visit is kept back this long, up to five times as long when
    more follow."""
    class_weights: dict[str, _Weight] = _field({"silver": 2.0, "gold": 4.0}, "ratio", max_length=64)
    """Priority classes: a pass of a class with weight 4 enters the queue at a quarter of its
    length."""
    bandwidth_bytes_s: float | None = _field(None, "bytes/s", gt=0.0, le=1e12)
    """What the line carries at most, such as 40Mbit. Empty: the server measures it."""

    @model_validator(mode="after")
    def _agree(self) -> PolicySettings:
        if self.reserve_small >= self.slots:
            raise ValueError(
                f"reserve_small ({self.reserve_small}) leaves no slot for large downloads: "
                f"lower it below slots ({self.slots})"
            )
        if self.retry_min_s > self.retry_max_s:
            raise ValueError(
                f"retry_min_s ({self.retry_min_s}) is above retry_max_s ({self.retry_max_s})"
            )
        return self

    def of_machines(self, count: int) -> PolicySettings:
        """What `count` machines have together: each has slots and a line of its own."""
        if count == 1:
            return self
        line = self.bandwidth_bytes_s
        return self.model_copy(
            update={
                "slots": count * self.slots,
                "reserve_small": count * self.reserve_small,
                "slots_max": count * self.slots_max,
                "bandwidth_bytes_s": count * line if line is not None else None,
            }
        )

    def weight_of(self, priority_class: str | None) -> float:
        """The weight of a priority class; 1 for none or one that is not configured."""
        return 1.0 if priority_class is None else self.class_weights.get(priority_class, 1.0)

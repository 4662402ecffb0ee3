"""What several operations take: bounded numbers, texts, times, pages of lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
)

from protocol.units import BadUnit, parse_duration
from server.admin.render import read_time

T = TypeVar("T")
_BIG = 2**53 - 1
#: Free text as people write it, without the control characters that no page should show.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$")]


Search = Annotated[str, Field(max_length=128, description="Only entries that contain this text.")]
Offset = Annotated[int, Field(ge=0, le=10_000_000, description="Skip this many.")]
Limit = Annotated[int, Field(ge=1, le=500, description="At most this many.")]
Before = Annotated[int | None, Field(ge=0, le=_BIG, description="Only older than this number.")]
Key = Annotated[str, Field(min_length=1, max_length=80, description="The key.")]


def _typed_time(value: Any, given: ValidationInfo) -> Any:
    """A form says a time as `datetime-local` does, in the person's zone (the context)."""
    if given.context is None or not isinstance(value, str):
        return value
    try:
        return read_time(value, given.context)
    except ValueError:
        raise ValueError("Write a time like 2030-01-31T12:00.") from None


def _typed_span(value: Any, given: ValidationInfo) -> Any:
    """A form says a duration as the command line does: 90s, 15m or 7d."""
    if given.context is None or not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except BadUnit as fault:
        raise ValueError(str(fault)) from None


#: What makes wall time (seconds) of a form's field, and a duration (seconds).
AsTime = BeforeValidator(_typed_time)
AsSpan = BeforeValidator(_typed_span)
#: Wall time, seconds; None: never.
Hour = Annotated[float | None, Field(ge=0, le=4e9), AsTime]


class Shape(BaseModel):
    """All documents: unknown fields are refused, and what the domain gives is read as it is."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


class NumberPath(Shape):
    number: int = Field(ge=0, le=_BIG, description="The number.")


class SerialPath(Shape):
    serial: str = Field(min_length=1, max_length=80, description="The serial.")


class KeyPath(Shape):
    key: Key


class ListQuery(Shape):
    q: Search = ""
    offset: Offset = 0
    limit: Limit = 50

    def page(self, rows: Sequence[T]) -> Sequence[T]:
        """The rows that were asked for."""
        return rows[self.offset : self.offset + self.limit]


class BeforeQuery(Shape):
    before: Before = None
    limit: Limit = 50
